"""The root of all errors: each prints as one line that says what is wrong, where, and what to do.

Each folder of `pipeline` has its own `errors` module; all errors derive from `PipelineError`.

Exit codes: 1 failed, 2 wrong usage, 3 nothing matched, 4 conflict, 5 refused by validation, 6 an outside
service is unreachable.
"""


class PipelineError(Exception):
    """Root of all errors of the pipeline: something an operator can correct.

    Attributes:
        message: what is wrong and where, without a full stop.
        remedy: what to do about it, one clause or command.
        exit_code: exit code of the process.
    """

    exit_code: int = 1

    def __init__(self, message: str, remedy: str, exit_code: int | None = None) -> None:
        self.message = message
        self.remedy = remedy
        if exit_code is not None:
            self.exit_code = exit_code
        super().__init__(message, remedy)

    def __str__(self) -> str:
        """One printable line: the message, then the remedy."""
        return printable(" ".join(f"{self.message}. To mend it: {self.remedy}".split()))


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
