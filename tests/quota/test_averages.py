from typing import Any

import pyarrow as pa
import pytest

from quota.current_rates import SENSOR, exempt_request_percentage, throttle_times

NOW_MS = 1_700_000_000_000
SECOND_NS = 1_000_000_000


def decisions(*rows: tuple[str, int, int]) -> pa.Table:
    """Rows of (user, throttle_time_ms, age_ms)."""
    columns = {name: ["" for _ in rows] for name in SENSOR}
    columns["sensor_user"] = [user for user, _, _ in rows]
    times: dict[str, Any] = {
        "throttle_time_ms": pa.array([time_ms for _, time_ms, _ in rows], pa.int64()),
        "evaluated_at_ms": pa.array([NOW_MS - age_ms for _, _, age_ms in rows], pa.int64()),
    }
    return pa.table({**{name: pa.array(values, pa.string()) for name, values in columns.items()}, **times})


def shown(*rows: tuple[str, int, int]) -> list[tuple[str, float, int, int]]:
    found = throttle_times(decisions(*rows), NOW_MS).to_pylist()
    wanted = ("sensor_user", "throttle_time_avg_ms", "throttle_time_max_ms", "throttles")
    return [tuple(row[name] for name in wanted) for row in found]


def test_the_mean_is_of_throttles_above_zero_per_sensor_longest_first() -> None:
    rows = (("a", 100, 0), ("a", 200, 30_000), ("a", 0, 1), ("b", 1_000, 5), ("quiet", 0, 5))
    assert shown(*rows) == [("b", 1_000.0, 1_000, 1), ("a", 150.0, 200, 2)]


@pytest.mark.parametrize(
    ("age_ms", "is_in"), [(-1, False), (0, True), (59_999, True), (60_000, False), (60_001, False)]
)
def test_a_decision_counts_for_a_minute(age_ms: int, is_in: bool) -> None:
    assert bool(shown(("a", 5, age_ms))) == is_in


def test_no_decision_is_no_row() -> None:
    assert shown() == []


@pytest.mark.parametrize(
    ("spent", "percentage"),
    [
        ([], 0.0),
        ([(None, 0)], 0.0),
        ([(30 * SECOND_NS, 0)], 50.0),
        ([(60 * SECOND_NS, 0), (60 * SECOND_NS, 59_999)], 200.0),
        ([(60 * SECOND_NS, 60_000), (60 * SECOND_NS, -1)], 0.0),
    ],
)
def test_exempt_time_is_a_share_of_one_thread_over_a_minute(
    spent: list[tuple[int | None, int]], percentage: float
) -> None:
    usage = pa.table(
        {
            "exempt_time_ns": pa.array([time_ns for time_ns, _ in spent], pa.int64()),
            "last_event_ms": pa.array([NOW_MS - age_ms for _, age_ms in spent], pa.int64()),
        }
    )
    assert exempt_request_percentage(usage, NOW_MS) == percentage
