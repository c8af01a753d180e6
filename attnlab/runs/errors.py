"""Errors that a command line shows as one line."""

import textwrap


class Invalid(ValueError):
    """A setting that cannot be used; the message is one line for the user."""


class Stopped(Exception):
    """A run that cannot go on, what is done being kept; the message is one line for the user."""


class Lost(Stopped):
    """An item that ends the same way whenever it is tried, while others may not; one line."""


def one_line(error: Exception) -> str:
    """An error as the message of a row."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 300, placeholder=' …')}"


def of_system(error: OSError) -> str:
    """What the system refused, and of which file.

    >>> of_system(OSError(28, "No space left on device", "x")), of_system(OSError("not gzipped"))
    ('x: No space left on device', 'not gzipped')
    """
    where = f"{error.filename}: " if error.filename else ""
    return where + " ".join((error.strerror or str(error) or type(error).__name__).split())
