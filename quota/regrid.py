"""Stored usage put on other sample windows: for an engine whose sample windows are longer or shorter than before.

Sample windows start at multiples of their span w. If the new span is a multiple of the old one, every old window lies
in one new window, and nothing is lost: the sums are those of usage that was always measured with the new windows. If
the old span is a multiple of the new one, the usage of an old window may belong to several new ones. Then all of it
counts in the window of its last event: the total is the same, and part of it is dated less than an old window late.

    old windows of 500 ms      |a b  |  c  |    d|            each row: the start of its window, and its last event
    new windows of 1000 ms     |a b     c  |    d     |       a row moves to the new window that holds its last event
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_START = "sample_start_ms"


def windows_divide(one_ms: int, other_ms: int) -> bool:
    """Whether one span of sample windows is a multiple of the other, so that usage can be put from one to the other.

    Args:
        one_ms: > 0.
        other_ms: > 0.
    """
    return one_ms % other_ms == 0 or other_ms % one_ms == 0


def is_on_windows(usage: pa.Table, sample_window_ms: int) -> bool:
    """Whether every row is in a sample window of this span, as the engine demands it. True without rows.

    Args:
        usage: columns sample_start_ms and last_event_ms, INT64 without nulls.
        sample_window_ms: span of the windows, > 0.
    """
    return bool(np.array_equal(usage[_START].to_numpy(), _starts(usage, sample_window_ms)))


def on_windows(usage: pa.Table, sample_window_ms: int) -> pa.Table:
    """Put every row into the sample window that holds its last event.

    Rows that are on such windows already do not change. Rows that come together in one window are not summed: the
    engine does that.

    Args:
        usage: columns sample_start_ms and last_event_ms, INT64 without nulls, and any others.
        sample_window_ms: span of the windows, > 0.

    Returns:
        The same rows and columns, with another sample_start_ms.
    """
    at = usage.schema.get_field_index(_START)
    return usage.set_column(at, usage.schema.field(at), pa.array(_starts(usage, sample_window_ms)))


def _starts(usage: pa.Table, sample_window_ms: int) -> NDArray[np.int64]:
    last_event_ms: NDArray[np.int64] = usage["last_event_ms"].to_numpy()
    return last_event_ms - last_event_ms % sample_window_ms
