"""Errors that are written for the person who reads them.

Every failure that a user can meet is a `LockstepError`: one line that says what was wrong and where,
and a second that says what to do. The command line prints both without a stack trace (`--debug` shows
it) and exits with the error's code: 2 for a mistake in how a command was called, 1 for a failure.
"""


class LockstepError(Exception):
    """Something failed; `hint` says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(LockstepError):
    """The command, flag or declaration itself is wrong: nothing was started."""

    exit_code = 2
