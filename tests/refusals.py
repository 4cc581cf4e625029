"""Tables of arguments that must be refused: all of a table are tried, and what fails is reported of all at once."""

import re


def complaints(pattern, call, *args, **options):
    """Return what is wrong with a call that must raise a `ValueError` whose message begins so: one line, or none."""
    try:
        call(*args, **options)
    except ValueError as error:
        return [] if re.match(pattern, str(error)) else [f"expected {pattern!r}; got {str(error)!r}"]
    except Exception as error:
        return [f"expected {pattern!r}; got {type(error).__name__} {str(error)!r}"]
    return [f"expected {pattern!r}; nothing was raised"]


def not_refused(calls):
    """Return the complaints about {name: (call, pattern)}, a line each."""
    return "\n".join(f"{name}: {line}" for name, (call, pattern) in calls.items() for line in complaints(pattern, call))
