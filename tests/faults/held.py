"""A client that is held, as the records published so far tell."""

from dataclasses import dataclass
from math import inf

from tests.faults.evidence import Row

Client = tuple[str, str, str]
"""Broker, user, client-id."""


def client_of(row: Row) -> Client:
    """Whom a row is about."""
    return row["broker_id"], row["user"], row["client_id"]


def written_ms(row: Row) -> int:
    """The driver's wall clock when a record was written: its end counts from it."""
    return int(row["throttled_until_ms"] - row["throttle_time_ms"])


@dataclass
class Held:
    """A running throttle.

    Attributes:
        row: The record published last.
        may_end: At some instant at which its look may have been taken, no more was owed than was left of it. Until
            then the look must have renewed it.
        nearest_ms: How much more was owed than was left, at the one of these instants at which that was least.
        nearest_at: Which instant that was.
        freed_by_edit: Batches in a row after which an edit should have let it go.
    """

    row: Row
    may_end: bool = False
    nearest_ms: float = inf
    nearest_at: str = "at no instant"
    freed_by_edit: int = 0

    @property
    def end_ms(self) -> int:
        """When it ends, by the driver's wall clock."""
        return int(self.row["throttled_until_ms"])

    @property
    def begin_ms(self) -> int:
        """When its last record was written."""
        return written_ms(self.row)
