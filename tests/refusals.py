"""Tables of arguments that must be refused: all of a table are tried, and what fails is told of all at once."""

import re


def complaints(message, call, *args, **options):
    """Return what is wrong with a call that must raise a `ValueError` whose message begins so: one line, or none."""
    try:
        call(*args, **options)
    except ValueError as error:
        return [] if re.match(message, str(error)) else [f"wanted {message!r}, got {str(error)!r}"]
    return [f"wanted {message!r}, and nothing was refused"]
