"""Errors that a command line shows as one line."""

__all__ = ["Invalid", "Stopped"]


class Invalid(ValueError):
    """A setting that cannot be used; the message is one line for the user."""


class Stopped(Exception):
    """A run that cannot go on, what is done being kept; the message is one line for the user."""
