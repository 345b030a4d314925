"""Writes that a broker refused: when each is tried again.

>>> retries, key = WriteRetries(), EntryKey("alice", "", "producer_byte_rate")
>>> for now_ms in (0, 10_000, 30_000):
...     retries.refuse(key, 5.0, "not allowed", now_ms)
...     print(retries.refusals[0].retry_at_ms, retries.is_due(key, 5.0, now_ms + 9_999))
10000 False
30000 False
70000 False
>>> retries.is_due(key, 6.0, 30_000)
True
"""

from dataclasses import dataclass
from typing import Final

from quota.broker_entries import EntryKey
from quota.broker_writes import Refusal

FIRST_MS: Final = 10_000
LONGEST_MS: Final = 600_000
"""The time to the first retry. It doubles with every refusal, up to the longest."""


@dataclass(frozen=True, slots=True)
class _Tried:
    bound: float | None
    reason: str
    wait_ms: int
    retry_at_ms: int


class WriteRetries:
    """The keys whose last write was refused."""

    def __init__(self) -> None:
        self._tried: dict[EntryKey, _Tried] = {}

    def __len__(self) -> int:
        return len(self._tried)

    def refuse(self, key: EntryKey, bound: float | None, reason: str, now_ms: int) -> None:
        """A broker refused this.

        Args:
            key: the entity and the quota type.
            bound: T of what was refused. Another one is tried at once.
            reason: the broker's, as a part of a sentence.
            now_ms: the instant.
        """
        before = self._tried.get(key)
        is_again = before is not None and before.bound == bound
        wait_ms = min(2 * before.wait_ms, LONGEST_MS) if before is not None and is_again else FIRST_MS
        self._tried[key] = _Tried(bound, reason, wait_ms, now_ms + wait_ms)

    def is_due(self, key: EntryKey, bound: float | None, now_ms: int) -> bool:
        """Whether this may be tried now."""
        tried = self._tried.get(key)
        return tried is None or tried.bound != bound or now_ms >= tried.retry_at_ms

    def forget(self, key: EntryKey) -> None:
        """It was taken, or nobody wants it any more."""
        self._tried.pop(key, None)

    @property
    def refusals(self) -> list[Refusal]:
        """What is refused now."""
        return [Refusal(key, "broker", tried.reason, tried.retry_at_ms) for key, tried in self._tried.items()]
