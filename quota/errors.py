"""The errors of this package: one class for each thing that a caller does something about.

QuotaError
├── InvalidQuotas     rows that cannot be quotas or tenants; has every mistake
├── InvalidBound      a typed bound that cannot be read or is out of its range
├── InvalidUsage      usage, entities or an instant that the engine cannot take; nothing was changed
└── InvalidArgument   a setting of the engine, or a demand of the brokers, that is out of its range
"""

from collections.abc import Sequence
from typing import Final

_SHOWN_PROBLEMS: Final = 10


class QuotaError(Exception):
    """Root of the errors of this package."""


class InvalidQuotas(QuotaError):
    """Rows of a quota table that cannot be quotas. `problems` has all mistakes; the message shows the first ten.

    `table`: `quotas` or `tenants`.
    """

    def __init__(self, version: int, problems: Sequence[str], table: str = "quotas") -> None:
        self.version = version
        self.problems = tuple(problems)
        shown = "; ".join(self.problems[:_SHOWN_PROBLEMS])
        more = len(self.problems) - _SHOWN_PROBLEMS
        super().__init__(f"{table} v{version}: {shown}" + (f"; and {more} more" if more > 0 else ""))


class InvalidBound(QuotaError):
    """A bound, as it was given, that cannot be read or be. `mistake` has Kafka's words where Kafka refuses it too."""

    def __init__(self, quota_type: str, given: object, mistake: str) -> None:
        self.quota_type = quota_type
        self.given = given
        self.mistake = mistake
        super().__init__(mistake)


class InvalidUsage(QuotaError):
    """A table or an instant that was given to the engine breaks its contract. No sensor was changed."""


class InvalidArgument(QuotaError, ValueError):
    """A setting of the engine, or a demand of the brokers, is out of its range."""
