"""The errors of the pipeline: each prints as one line that says what happened, the facts, and how to fix it.

An error has a class of its own only where a caller catches it by name. All others are raised as one of the classes
here, which differ in the exit code that the command ends with: 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5
refused by validation, 6 an outside service does not answer.
"""


class PipelineError(Exception):
    """Root of all errors of the pipeline: something an operator can correct.

    Attributes:
        message: what is wrong and where, without a full stop.
        fix: what to do about it, one clause or command.
        exit_code: exit code of the process.
    """

    exit_code: int = 1

    def __init__(self, message: str, fix: str, exit_code: int | None = None) -> None:
        self.message = message
        self.fix = fix
        if exit_code is not None:
            self.exit_code = exit_code
        super().__init__(message, fix)

    def __str__(self) -> str:
        """One printable line: the message, then the fix."""
        return printable(" ".join(f"{self.message}. Fix: {self.fix}".split()))


class UsageError(PipelineError):
    """What was given on the command line or in settings cannot be used so."""

    exit_code = 2


class NotFound(PipelineError):
    """What was asked for does not exist."""

    exit_code = 3


class Conflict(PipelineError):
    """Another process has it, or has changed it."""

    exit_code = 4


class Refused(PipelineError):
    """Validation refuses it."""

    exit_code = 5


class Unreachable(PipelineError):
    """A cluster, a store or another service does not answer."""

    exit_code = 6


def first_line(failure: BaseException) -> str:
    """The first line of an exception's text, without a full stop; the name of its class if it has no text.

    py4j begins the text of a Java exception with a line about the call, which says nothing about the cause. The
    exception itself is on the next line, after a colon.
    """
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    first = lines[1].lstrip(": ") if lines[1:] and lines[1].startswith(":") else "".join(lines[:1])
    return printable(first).rstrip(".") or type(failure).__name__


def printable(text: str) -> str:
    r"""The text with every character escaped that a terminal or a log would not show as it is.

    Names of users and client-ids come from clients. A line end, an escape sequence or a mark that reverses the text
    could forge a line or hide one. Only what people read is escaped; JSON and YAML have the names as they are.

    >>> print(printable("etl\n\x1b[2J"))
    etl\n\x1b[2J
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)
