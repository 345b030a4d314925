"""What the view Client shows, as functions of rows: the rate over time, bounds, bands of throttles, marks of edits."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quota.entity import QUOTA_TYPES, REQUEST
from schemas.throttle_record import verb, written_ms

MOST_POINTS: Final = 360
_STEPS_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400)
_GAP_MS: Final = 10_000
_MINUTE_MS: Final = 60_000
_NS_PER_PERCENT_SECOND: Final = 1e7
"""One percent of one thread for one second."""
DECISION_COLUMNS: Final = (
    "evaluated_at_ms",
    "quota_type",
    "observed",
    "bound",
    "window_ms",
    "raw_throttle_time_ms",
    "throttle_time_ms",
    "level",
    "mode",
    "applied",
    "decision_id",
    "batch_id",
    "quota_version",
)
"""What `decision_row` shows."""
RECORD_COLUMNS: Final = (
    "publish_seq",
    "action",
    "cause",
    "cluster",
    "query_id",
    "batch_id",
    "broker_id",
    "user",
    "client_id",
    "quota_type",
    "observed",
    "bound",
    "throttle_time_ms",
    "throttled_until_ms",
    "owed_ms",
    "tokens",
    "decision_id",
)
"""What `bands` and `record_row` need."""

Floats = NDArray[np.float64]


def step_ms(span_ms: int, least_ms: int = 1_000) -> int:
    """The shortest of some round steps with which a span has at most `MOST_POINTS` points."""
    fits = (
        step * 1_000 for step in _STEPS_SECONDS if step * 1_000 >= least_ms and span_ms <= step * 1_000 * MOST_POINTS
    )
    return next(fits, _STEPS_SECONDS[-1] * 1_000)


def rates(
    sums: Mapping[int, float], since_ms: int, until_ms: int, bin_ms: int, window_ms: int, quota_type: str
) -> list[float]:
    """The rate at the end of each step, over the window before it, or over the step where that is longer.

    Args:
        sums: Start of a step -> what was used in it, in bytes or ns. May begin a window earlier.

    Returns:
        Bytes per second, or percent of one thread.
    """
    steps = max(window_ms // bin_ms, 1)
    starts = range(since_ms - (steps - 1) * bin_ms, until_ms, bin_ms)
    amounts = np.array([sums.get(start, 0.0) for start in starts], dtype=np.float64)
    summed = np.concatenate([[0.0], np.cumsum(amounts)])
    per_second = (summed[steps:] - summed[:-steps]) / (steps * bin_ms / 1_000)
    scale = _NS_PER_PERCENT_SECOND if quota_type == QUOTA_TYPES[REQUEST] else 1.0
    return [float(rate) for rate in per_second / scale]


def has_data(evaluated_at_ms: Sequence[int], since_ms: int, until_ms: int, bin_ms: int) -> list[bool]:
    """Of each step, whether the job worked then. Where it did not, nothing is known: that is a gap and not a zero."""
    ends = np.arange(since_ms + bin_ms, until_ms + bin_ms, bin_ms)
    if not len(evaluated_at_ms):
        return [False] * len(ends)
    at_ms = np.sort(np.asarray(evaluated_at_ms, dtype=np.int64))
    reach_ms = max(_GAP_MS, bin_ms)
    nearest = np.searchsorted(at_ms, ends - reach_ms)
    is_near = nearest < len(at_ms)
    found = np.zeros(len(ends), np.bool_)
    found[is_near] = at_ms[nearest[is_near]] <= ends[is_near] + reach_ms
    return [bool(one) for one in found]


def bands(events: Iterable[Mapping[str, Any]], since_ms: int) -> list[dict[str, Any]]:
    """The spans in which a client was held: its records, each until it ends or the next one replaces it.

    Records of one throttle that follow one another are one band.
    """
    found: list[dict[str, Any]] = []
    for row in sorted(events, key=lambda row: int(row["publish_seq"])):
        at_ms, until_ms = written_ms(row), int(row["throttled_until_ms"])
        last = found[-1] if found else None
        if row["action"] == "release":
            if last is not None:
                last["end_ms"] = min(last["end_ms"], at_ms)
                last["released"] = True
            continue
        if last is not None and last["end_ms"] >= at_ms and not last["released"]:
            last["end_ms"] = until_ms
            last["records"] += 1
            continue
        found.append(
            {
                "start_ms": at_ms,
                "end_ms": until_ms,
                "quota_type": row["quota_type"],
                "decision_id": row["decision_id"],
                "records": 1,
                "released": False,
            }
        )
    return [band for band in found if band["end_ms"] > since_ms]


def bands_of_minutes(minutes: Iterable[tuple[int, str, int, int]], step_ms: int) -> list[dict[str, Any]]:
    """The spans in which a client was held, from its minutes: where it was held in each of some steps, it is one band.

    Args:
        minutes: (start, quota type, milliseconds held, records), in no order, each start and type once.
        step_ms: Of the chart, at least a minute. Gaps shorter than that cannot be seen.
    """
    found: list[dict[str, Any]] = []
    open_bands: dict[str, dict[str, Any]] = {}
    for start_ms, quota_type, held_ms, records in sorted(minutes):
        if held_ms <= 0:
            continue
        last = open_bands.get(quota_type)
        if last is not None and start_ms - last["end_ms"] < step_ms:
            last["end_ms"] = start_ms + _MINUTE_MS
            last["records"] += records
            continue
        open_bands[quota_type] = {
            "start_ms": start_ms,
            "end_ms": start_ms + _MINUTE_MS,
            "quota_type": quota_type,
            "decision_id": None,
            "records": records,
            "released": True,
        }
        found.append(open_bands[quota_type])
    return found


def decision_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A decision, in short."""
    return {name: row[name] for name in DECISION_COLUMNS}


def record_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record that was published for the client, in short."""
    return {
        "at_ms": written_ms(row),
        "verb": verb(row),
        "cause": row["cause"],
        "quota_type": row["quota_type"],
        "observed": row["observed"],
        "bound": row["bound"],
        "throttle_time_ms": row["throttle_time_ms"],
        "throttled_until_ms": row["throttled_until_ms"],
        "owed_ms": row["owed_ms"],
        "tokens": row["tokens"],
        "decision_id": row["decision_id"],
    }
