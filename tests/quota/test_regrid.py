"""Usage on other sample windows: what must hold for any usage and any two spans."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.engine import QuotaEngine
from quota.rates import is_on_windows, on_windows
from tests.quota.factories import table

Event = tuple[int, str, int | None]
events = st.lists(
    st.tuples(st.integers(0, 20_000), st.sampled_from("ab"), st.none() | st.integers(0, 1_000)), max_size=30
)
spans = st.sampled_from([100, 250, 300, 500, 700, 1_000, 1_500, 3_000])


def summed(sent: Sequence[Event], window_ms: int) -> pa.Table:
    """Events as rows of usage, one per sample window and user."""
    groups: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in sent:
        groups[event[0] - event[0] % window_ms, event[1]].append(event)
    return table([row_of(start_ms, user, of_group) for (start_ms, user), of_group in sorted(groups.items())])


def row_of(start_ms: int, user: str, of_group: Sequence[Event]) -> dict[str, Any]:
    amounts = [amount for _, _, amount in of_group if amount is not None]
    return {
        "sample_start_ms": start_ms,
        "user": user,
        "client_id": "c",
        "broker_id": "",
        "produced_bytes": sum(amounts) if amounts else None,
        "last_event_ms": max(time_ms for time_ms, _, _ in of_group),
    }


def added_up(usage: pa.Table) -> list[dict[str, Any]]:
    """Rows of the same window and user as one."""
    rows = usage.to_pylist()
    groups: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for row in rows:
        groups[row["sample_start_ms"], row["user"]].append((row["last_event_ms"], row["user"], row["produced_bytes"]))
    found: list[dict[str, Any]] = table(
        [row_of(*key, of_group) for key, of_group in sorted(groups.items())]
    ).to_pylist()
    return found


@given(events, spans, spans)
def test_no_usage_is_lost_and_the_engine_takes_the_rows(sent: list[Event], old_ms: int, new_ms: int) -> None:
    before = summed(sent, old_ms)
    after = on_windows(before, new_ms)
    unchanged = [name for name in before.schema.names if name != "sample_start_ms"]
    assert after.select(unchanged).equals(before.select(unchanged))
    assert after.schema == before.schema
    assert is_on_windows(after, new_ms)
    QuotaEngine(4, new_ms).record(after, 20_000)


@given(events, spans, st.integers(1, 7))
def test_wider_windows_hold_what_they_would_have_held_from_the_start(
    sent: list[Event], old_ms: int, factor: int
) -> None:
    new_ms = old_ms * factor
    assert added_up(on_windows(summed(sent, old_ms), new_ms)) == summed(sent, new_ms).to_pylist()


@given(events, spans, st.integers(1, 7))
def test_in_narrower_windows_usage_is_late_by_less_than_an_old_window_never_early(
    sent: list[Event], new_ms: int, factor: int
) -> None:
    old_ms = new_ms * factor
    before = summed(sent, old_ms)
    for old, new in zip(before.to_pylist(), on_windows(before, new_ms).to_pylist(), strict=True):
        times_ms = [
            time_ms
            for time_ms, user, _ in sent
            if user == old["user"] and time_ms // old_ms == old["sample_start_ms"] // old_ms
        ]
        assert max(times_ms) - max(times_ms) % new_ms == new["sample_start_ms"]
        assert all(new["sample_start_ms"] + new_ms - time_ms <= old_ms + new_ms - 1 for time_ms in times_ms)
        assert all(new["sample_start_ms"] + new_ms > time_ms for time_ms in times_ms)


@given(events, spans)
def test_rows_on_their_windows_stay_there(sent: list[Event], window_ms: int) -> None:
    usage = summed(sent, window_ms)
    assert is_on_windows(usage, window_ms)
    assert on_windows(usage, window_ms).equals(usage)


@pytest.mark.parametrize(
    ("start_ms", "last_ms", "window_ms", "fits"),
    [(0, 0, 500, True), (0, 499, 500, True), (0, 500, 500, False), (500, 500, 1_000, False), (500, 999, 250, False)],
)
def test_a_row_is_on_its_window_if_it_starts_with_it_and_ends_in_it(
    start_ms: int, last_ms: int, window_ms: int, fits: bool
) -> None:
    row = {"sample_start_ms": start_ms, "last_event_ms": last_ms, "user": "a", "client_id": "c"}
    assert is_on_windows(table([row]), window_ms) is fits
