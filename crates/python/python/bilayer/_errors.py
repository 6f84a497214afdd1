"""Exceptions: each has the engine's message, and the exit code that the command line would end with."""

from __future__ import annotations

__all__ = ["Error", "UsageError", "ModelFileError", "MissingFileError", "MemoryExceededError"]


class Error(RuntimeError):
    """Something that the engine could not do.

    Attributes
    ----------
    code : int
        The exit code of the command line for this failure.
    """

    def __init__(self, message: str, code: int = 70) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self):
        return type(self), (str(self), self.code)


class UsageError(Error, ValueError):
    """An argument that is out of range, or a call that does not suit the model."""


class ModelFileError(Error, ValueError):
    """A model file that cannot be used."""


class MissingFileError(Error, FileNotFoundError):
    """A file that does not exist."""

    def __str__(self) -> str:
        return str(self.args[0])


class MemoryExceededError(Error, MemoryError):
    """A model that does not fit the memory, or a text that does not fit the context."""


_CLASSES = {2: UsageError, 65: ModelFileError, 66: MissingFileError, 75: MemoryExceededError}


def made(message: str, code: int) -> Error:
    """Return the exception for a message and an exit code."""
    return _CLASSES.get(code, Error)(message, code)
