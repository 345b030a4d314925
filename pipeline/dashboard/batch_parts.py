"""In which parts of time the job worked: read once from `batches`, then only what is new."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Final

from pipeline.dashboard.watched_table import WatchedTable

_SETTLED_MS: Final = 60_000
"""Nothing is added so long before the newest batch: within a time epoch the time of batches does not go back."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Parts [first, last), and which of them have a batch."""

    first: int
    last: int
    parts: frozenset[int]


class BatchParts:
    """Remembers, for each length of a part that was asked for, one stretch of time. For several threads.

    A week has a million batches: to read their instants takes as long as all else that the view of a client reads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: Mapping[int, _Known] = MappingProxyType({})
        self._time_epoch = 0

    def in_span(
        self, batches: WatchedTable, part_ms: int, since_ms: int, until_ms: int, newest_at_ms: Sequence[int] = ()
    ) -> list[int]:
        """The starts of the parts in which a batch was evaluated, in epoch ms and in order.

        Args:
            batches: The table.
            part_ms: Length of a part; parts begin at its multiples.
            since_ms: Begin of the span; a part that it cuts belongs to it.
            until_ms: End of the span, likewise.
            newest_at_ms: The instants of all batches of the newest time epoch from the first of them on, oldest first:
                these are not read.

        Raises:
            TableMissing, TableUnreadable: As of `WatchedTable.query`.
        """
        first, last = since_ms // part_ms, -(-until_ms // part_ms)
        newest = batches.newest_instant()
        settled = 0 if newest is None else (newest.evaluated_at_ms - _SETTLED_MS) // part_ms
        self._forget_before(0 if newest is None else newest.time_epoch)
        in_memory = frozenset(at_ms // part_ms for at_ms in newest_at_ms if first <= at_ms // part_ms < last)
        # The part in which they begin may have had others before them.
        read_until = min(last, newest_at_ms[0] // part_ms + 1) if newest_at_ms else last
        known = self._known.get(part_ms)
        if known is None or last < known.first or known.last < first:
            known = _Known(first, first, frozenset())
        before = _read(batches, part_ms, first, known.first)
        after = _read(batches, part_ms, known.last, read_until)
        found = known.parts | before | after | in_memory
        end = max(known.last, min(last, settled))
        while end < last and end in found:
            end += 1
        now_known = _Known(min(first, known.first), end, frozenset(part for part in found if part < end))
        with self._lock:
            self._known = MappingProxyType({**self._known, part_ms: now_known})
        return [part * part_ms for part in sorted(found) if first <= part < last]

    def _forget_before(self, time_epoch: int) -> None:
        """When a clock was set back, batches are added where there were none so far."""
        with self._lock:
            if time_epoch != self._time_epoch:
                self._time_epoch, self._known = time_epoch, MappingProxyType({})


def _read(batches: WatchedTable, part_ms: int, first: int, last: int) -> frozenset[int]:
    if first >= last:
        return frozenset()
    rows = batches.query(
        f"SELECT DISTINCT evaluated_at_ms / {part_ms} AS part FROM source "  # noqa: S608 - numbers of ours
        f"WHERE evaluated_at_ms >= {first * part_ms} AND evaluated_at_ms < {last * part_ms}"
    )
    return frozenset(rows["part"].to_pylist())
