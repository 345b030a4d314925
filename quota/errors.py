"""The errors of this package.

QuotaError
├── InvalidQuotas              rows that cannot be quotas; names every mistake at once
├── InvalidBound               a bound, as somebody typed it, that cannot be read or is out of its range
└── InvalidArgument
    ├── InvalidUsage           usage, entities or times that the engine cannot take; nothing was changed
    └── InvalidEngineSetting   a constructor argument out of its range
"""

from collections.abc import Sequence
from typing import Final, Self

_SHOWN_PROBLEMS: Final = 10


class QuotaError(Exception):
    """Root of the errors of this package."""


class InvalidQuotas(QuotaError):
    """Rows of a quota table that cannot be quotas.

    Attributes:
        version: the version of the table that was read.
        problems: one line per mistake, in the order of the rows. All of them; the message shows the first ten.
    """

    def __init__(self, version: int, problems: Sequence[str]) -> None:
        self.version = version
        self.problems = tuple(problems)
        shown = "; ".join(self.problems[:_SHOWN_PROBLEMS])
        more = len(self.problems) - _SHOWN_PROBLEMS
        super().__init__(f"quotas v{version}: {shown}" + (f"; and {more} more" if more > 0 else ""))


class InvalidBound(QuotaError):
    """A bound that cannot be read, or that no quota can have.

    Attributes:
        quota_type: whose bound.
        given: what was typed.
        mistake: what is wrong with it, without a full stop. Kafka's words where Kafka refuses it too.
    """

    def __init__(self, quota_type: str, given: object, mistake: str) -> None:
        self.quota_type = quota_type
        self.given = given
        self.mistake = mistake
        super().__init__(mistake)


class InvalidArgument(QuotaError):
    """The engine was given something that breaks its rules.

    Attributes:
        name: the column, argument or setting.
        requirement: what it must be.
        got: what it was, as text.
    """

    def __init__(self, name: str, requirement: str, got: object) -> None:
        self.name = name
        self.requirement = requirement
        self.got = str(got)
        super().__init__(f"'{name}' must {requirement}; got {self.got}")

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str]]:
        """Pickle the parts, not the message, because the error may come from another process."""
        return type(self), (self.name, self.requirement, self.got)


class InvalidUsage(InvalidArgument):
    """A table or an instant that was given to the engine breaks its contract. No sensor was changed."""


class InvalidEngineSetting(InvalidArgument):
    """A setting of the engine is out of its range."""
