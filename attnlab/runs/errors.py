"""Errors that a command line shows as one line."""

__all__ = ["Invalid", "Stopped", "one_line"]


class Invalid(ValueError):
    """A setting that cannot be used; the message is one line for the user."""


class Stopped(Exception):
    """A run that cannot go on, what is done being kept; the message is one line for the user."""


def one_line(error: Exception) -> str:
    """An error as the message of a row."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
