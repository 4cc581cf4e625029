"""Compare the update rules: constant time, linear time and full rank."""
