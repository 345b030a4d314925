"""A range cut into slices that can be decided on their own, in any order."""

from dataclasses import dataclass, replace
from typing import Final

from pipeline.replay.errors import SampleTooFine
from pipeline.replay.pieces import Pieces
from pipeline.replay.replay_request import ReplayOrder

_SLICE_ROWS: Final = 1_200_000
"""What a process takes in at a time: some 100 MB."""
_SHORTEST_MS: Final = 60_000
_LONGEST_MS: Final = 3_600_000
_FEWEST: Final = 8
"""Slices of a short range: the cores then end together."""
_SECOND_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a range.

    Attributes:
        start_ms: Inclusive.
        end_ms: Exclusive.
    """

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is replayed, and in which slices.

    Attributes:
        order: With the version of the table that all slices are read from.
        slices: In order; the first begins with the warm-up before the range.
        uri: Where the usage is.
    """

    order: ReplayOrder
    slices: tuple[Slice, ...]
    uri: str

    @classmethod
    def of(cls, order: ReplayOrder, slice_ms: int | None = None) -> "Plan":
        """Cut a range.

        Args:
            order: What is to be replayed.
            slice_ms: How long a slice is, about; by default as `slice_length_ms` has it.

        Raises:
            SampleTooFine: Seconds are to fill sample windows that are no whole seconds.
            TableMissing: The root has no such table.
        """
        w = order.settings.sample_window_ms
        if order.source == "usage_by_second" and w % _SECOND_MS:
            raise SampleTooFine(w)
        table = Pieces(order.root, order.source, order.scope == "broker", w, order.version).table
        if slice_ms is None:
            rows = table.estimated_rows(order.begin_ms, order.until_ms)
            slice_ms = slice_length_ms(order.until_ms - order.begin_ms, rows)
        return cls(replace(order, version=table.version), tuple(_cut(order, slice_ms)), table.uri)


def _cut(order: ReplayOrder, slice_ms: int) -> list[Slice]:
    """At multiples of the sample window: no window is then counted twice."""
    w = order.settings.sample_window_ms
    slices, start_ms = [], order.begin_ms
    while start_ms < order.until_ms:
        end_ms = min(-(-(start_ms + slice_ms) // w) * w, order.until_ms)
        slices.append(Slice(start_ms, end_ms))
        start_ms = end_ms
    return slices


def slice_length_ms(whole_ms: int, rows: int) -> int:
    """How long the slices of a range are: some 1.2 M rows, at most an hour, and at least eight but for short ranges.

    Args:
        whole_ms: Of the range.
        rows: It has, about.
    """
    by_rows_ms = whole_ms * _SLICE_ROWS // max(rows, 1)
    return max(min(by_rows_ms, whole_ms // _FEWEST, _LONGEST_MS), _SHORTEST_MS)
