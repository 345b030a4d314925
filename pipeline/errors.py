"""What every error an operator meets has in common: one line that says what is wrong, where, and what to do.

Each room has an errors file of its own; all of them derive from `PipelineError`.

Exit codes: 1 failed, 2 wrong usage, 3 nothing matched, 4 conflict, 5 refused by validation, 6 an outside
service is unreachable.
"""

from itertools import islice


class PipelineError(Exception):
    """Head of the tree: something the operator can mend.

    Attributes:
        message: what is wrong and where, without a full stop.
        remedy: what to do about it, one clause or command.
        exit_code: what the process ends with.
    """

    exit_code: int = 1

    def __init__(self, message: str, remedy: str, exit_code: int | None = None) -> None:
        self.message = message
        self.remedy = remedy
        if exit_code is not None:
            self.exit_code = exit_code
        super().__init__(message, remedy)

    def __str__(self) -> str:
        """One line: the message, then the remedy."""
        return " ".join(f"{self.message}. To mend it: {self.remedy}".split())


def in_a_line(failure: BaseException) -> str:
    """What any failure says, its class if nothing; of one from the JVM the first two lines, without the stack."""
    lines = (line.strip() for line in str(failure).splitlines() if not line.startswith("\tat "))
    return " ".join(islice(filter(None, lines), 2)).rstrip(".") or type(failure).__name__
