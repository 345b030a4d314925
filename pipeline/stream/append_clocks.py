"""The clocks of brokers, by the append times of messages: a partition's leader stamps them with its own clock.

No event is later than its message. So a clock that is behind makes the usage of its partitions older than it is, and
far enough behind, too old for the rates.
"""

import logging
from collections import deque
from collections.abc import Mapping
from threading import Lock
from typing import Final

log = logging.getLogger(__name__)

_SEEN: Final = 5
_KEPT_MS: Final = 300_000
_WARNING_INTERVAL_MS: Final = 60_000


class AppendClocks:
    """How far the clock behind each partition is behind this machine's, at least.

    What a batch has was appended after the batch before it began, if that one read all there was. Append times from
    before that instant are of a clock that is behind. The least of the last 5 batches counts: messages of a transaction
    that took long are readable late. For several threads.

    Args:
        tolerance_ms: What is behind by more is logged, once a minute.
    """

    def __init__(self, tolerance_ms: int) -> None:
        self._tolerance_ms = tolerance_ms
        self._behind_ms: dict[int, deque[int]] = {}
        self._noted_at_ms: dict[int, int] = {}
        self._began_ms: int | None = None
        self._logged_at_ms: int | None = None
        self._lock = Lock()

    def note(self, began_ms: int, newest_append_ms: Mapping[int, int], has_read_all: bool) -> None:
        """Note a batch.

        * `began_ms`: when it began, by this machine's wall clock.
        * `newest_append_ms`: the newest append time of each partition that it has messages of.
        * `has_read_all`: whether it had all the messages that there were.
        """
        with self._lock:
            before_ms, self._began_ms = self._began_ms, began_ms if has_read_all else None
            if before_ms is not None:
                for partition, append_ms in newest_append_ms.items():
                    seen = self._behind_ms.setdefault(partition, deque(maxlen=_SEEN))
                    seen.append(max(before_ms - append_ms, 0))
                    self._noted_at_ms[partition] = began_ms
            for partition in [one for one, noted_ms in self._noted_at_ms.items() if began_ms - noted_ms > _KEPT_MS]:
                del self._behind_ms[partition], self._noted_at_ms[partition]
        self._warn(began_ms)

    def behind_ms(self) -> dict[int, int]:
        """By partition, of those that had messages in the last 5 minutes and in 5 batches."""
        with self._lock:
            return {partition: min(seen) for partition, seen in self._behind_ms.items() if len(seen) == _SEEN}

    def _warn(self, now_ms: int) -> None:
        behind_ms = self.behind_ms()
        worst_ms = max(behind_ms.values(), default=0)
        if worst_ms <= self._tolerance_ms:
            return
        if self._logged_at_ms is not None and abs(now_ms - self._logged_at_ms) < _WARNING_INTERVAL_MS:
            return
        self._logged_at_ms = now_ms
        log.warning("%s", clocks_text(behind_ms, self._tolerance_ms))


def clocks_text(behind_ms: Mapping[int, int], tolerance_ms: int) -> str:
    """Which partitions have a clock that is behind by more than a tolerance, and what to do. At least one has."""
    late = sorted(partition for partition, ms in behind_ms.items() if ms > tolerance_ms)
    worst = f"up to {max(behind_ms.values()) / 1000:.1f} s behind this machine's clock"
    if len(late) == len(behind_ms):
        return f"the append times of all partitions are {worst}. Fix: set the clock of this machine, or of the brokers"
    return (
        f"the append times of partitions {', '.join(map(str, late))} are {worst}, those of the other "
        f"{len(behind_ms) - len(late)} are not. Their usage counts as so much older. "
        "Fix: set the clock of the brokers that lead these partitions"
    )
