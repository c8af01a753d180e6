"""The error that a command line shows as one line."""

__all__ = ["Invalid"]


class Invalid(ValueError):
    """A setting that cannot be used; the message is one line for the user."""
