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
    """When a record was written: its end counts from it. By the driver's first clock, as if it had never been set."""
    return int(row["throttled_until_ms"] - row["throttle_time_ms"] - row.get("moved_ms", 0))


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
        taken_up_until_ms: When it ends since a driver has taken it up whose clock had been set; None without one.
        starts_seen: How many starts of a driver are taken account of.
    """

    row: Row
    may_end: bool = False
    nearest_ms: float = inf
    nearest_at: str = "at no instant"
    freed_by_edit: int = 0
    taken_up_until_ms: int | None = None
    starts_seen: int = 0

    @property
    def end_ms(self) -> int:
        """When it ends, by the same clock as `written_ms`."""
        own_ms = self.begin_ms + int(self.row["throttle_time_ms"])
        return own_ms if self.taken_up_until_ms is None else self.taken_up_until_ms

    def take_up(self, start_ms: int, moved_ms: int, first_seq: int) -> None:
        """A driver whose clock was moved by this much in all takes it up: it knows the wall-clock end alone."""
        if self.row["publish_seq"] >= first_seq or moved_ms == self.row.get("moved_ms", 0):
            return
        left_ms = int(self.row["throttled_until_ms"]) - (start_ms + moved_ms)
        self.taken_up_until_ms = start_ms + max(min(left_ms, int(self.row["throttle_time_ms"])), 0)

    @property
    def begin_ms(self) -> int:
        """When its last record was written."""
        return written_ms(self.row)
