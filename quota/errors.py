"""What the decisions refuse.

QuotaError
├── InvalidQuotas          rows that can not be quotas; names every mistake at once
├── InvalidUsage           usage, entities or times the engine can not take; nothing was changed
└── InvalidEngineSetting   a constructor argument out of its range
"""

from collections.abc import Sequence
from typing import Final

_SHOWN_PROBLEMS: Final = 10


class QuotaError(Exception):
    """Root of the errors of this package."""


class InvalidQuotas(QuotaError):
    """Rows of a quota table that can not be quotas.

    Attributes:
        version: the version of the table that was read.
        problems: one line a mistake, in row order; all of them, while the message shows the first ten.
    """

    def __init__(self, version: int, problems: Sequence[str]) -> None:
        self.version = version
        self.problems = tuple(problems)
        shown = "; ".join(self.problems[:_SHOWN_PROBLEMS])
        more = len(self.problems) - _SHOWN_PROBLEMS
        super().__init__(f"quotas v{version}: {shown}" + (f"; and {more} more" if more > 0 else ""))


class InvalidUsage(QuotaError):
    """A table or an instant handed to the engine does not fit its contract; no sensor was changed.

    Attributes:
        name: the column or argument.
        requirement: what it must be.
        got: what it was, as text.
    """

    def __init__(self, name: str, requirement: str, got: object) -> None:
        self.name = name
        self.requirement = requirement
        self.got = str(got)
        super().__init__(f"'{name}' must {requirement}; got {self.got}")


class InvalidEngineSetting(QuotaError):
    """A setting of the engine is out of its range.

    Attributes:
        name: the setting.
        requirement: what it must be.
        got: what it was, as text.
    """

    def __init__(self, name: str, requirement: str, got: object) -> None:
        self.name = name
        self.requirement = requirement
        self.got = str(got)
        super().__init__(f"'{name}' must {requirement}; got {self.got}")
