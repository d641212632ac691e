"""What stops the local stack, said so that a person can act on it."""


class StackError(Exception):
    """The message is one line that names what is wrong and the remedy; callers print it and exit 1."""
