"""What is refused, as one table for one loop: starting a test for each row would cost more than the row."""

import re


def not_refused(calls):
    """Return, for {name: (call, pattern)}, lines about calls that raise no ValueError of which the pattern is found."""
    lines = []
    for name, (call, pattern) in calls.items():
        try:
            call()
        except ValueError as error:
            if not re.search(pattern, str(error)):
                lines.append(f"{name}: expected {pattern!r}; got {str(error)!r}")
        else:
            lines.append(f"{name}: expected {pattern!r}; nothing was raised")
    return "\n".join(lines)
