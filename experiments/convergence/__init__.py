"""Study which updates and schedules converge on graphs with cycles."""
