"""What to replay: a range of stored usage, the quotas of each replay, and the slices of time the range is cut into."""

from dataclasses import dataclass, replace
from typing import Final

from pipeline.replay.errors import SampleTooFine
from pipeline.replay.quotas import Timeline
from pipeline.replay.recorded_batches import Scope
from pipeline.replay.usage_batches import Source, UsageReader
from pipeline.settings.model import EngineSettings

_SLICE_ROWS: Final = 1_200_000
"""Rows that a process holds in memory at a time, about 100 MB."""
_SHORTEST_MS: Final = 60_000
_LONGEST_MS: Final = 3_600_000
_FEWEST: Final = 8
"""Slices of a short range, so that all cores finish at about the same time."""
_SECOND_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to replay. Plain values, so that it can be sent to other processes and machines.

    Attributes:
        root: Of the tables.
        source: Which table.
        scope: The engine's.
        settings: The engine's.
        since_ms: Begin of the range, inclusive.
        until_ms: End of the range, exclusive.
        quotas: Of each replay: one snapshot throughout, or those that were in force.
        version: Of the table with the usage; None = the newest.
    """

    root: str
    source: Source
    scope: Scope
    settings: EngineSettings
    since_ms: int
    until_ms: int
    quotas: tuple[Timeline, ...]
    version: int | None = None

    @property
    def begin_ms(self) -> int:
        """The first instant whose usage is read: the rates of the first evaluations reach back this far."""
        return self.since_ms - self.settings.rate_span_ms


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
    """What is replayed, and in which slices. Each slice can be decided on its own, in any order.

    Attributes:
        request: With the version of the table that all slices are read from.
        slices: In order; the first one begins with the warm-up before the range.
        uri: The table with the usage.
    """

    request: ReplayRequest
    slices: tuple[Slice, ...]
    uri: str

    @classmethod
    def of(cls, request: ReplayRequest, slice_ms: int | None = None) -> "Plan":
        """Cut a range into slices.

        Args:
            request: What is to be replayed.
            slice_ms: How long a slice is, about; None = `slice_length_ms`.

        Raises:
            SampleTooFine: The source has one row per second, and the sample windows are no whole seconds.
            TableMissing: The root has no such table.
        """
        w = request.settings.sample_window_ms
        if request.source == "usage_by_second" and w % _SECOND_MS:
            raise SampleTooFine(w)
        table = UsageReader(request.root, request.source, request.scope == "broker", w, request.version).table
        if slice_ms is None:
            rows = table.estimated_rows(request.begin_ms, request.until_ms)
            slice_ms = slice_length_ms(request.until_ms - request.begin_ms, rows)
        return cls(replace(request, version=table.version), tuple(_cut(request, slice_ms)), table.uri)


def _cut(request: ReplayRequest, slice_ms: int) -> list[Slice]:
    """Slices end at multiples of the sample window, so that no window is counted twice."""
    w = request.settings.sample_window_ms
    slices, start_ms = [], request.begin_ms
    while start_ms < request.until_ms:
        end_ms = min(-(-(start_ms + slice_ms) // w) * w, request.until_ms)
        slices.append(Slice(start_ms, end_ms))
        start_ms = end_ms
    return slices


def slice_length_ms(whole_ms: int, rows: int) -> int:
    """How long the slices of a range are: about 1.2 million rows, at most an hour.

    A range of at least eight minutes gets at least eight slices; no slice is shorter than a minute.

    Args:
        whole_ms: Length of the range.
        rows: How many rows it has, about.
    """
    by_rows_ms = whole_ms * _SLICE_ROWS // max(rows, 1)
    return max(min(by_rows_ms, whole_ms // _FEWEST, _LONGEST_MS), _SHORTEST_MS)
