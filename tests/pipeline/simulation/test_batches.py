import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay.simulation import batches_of_events
from schemas.usage import UsageEvent

T0_MS = 1_700_000_000_000


def event(at_ms: int, user: str = "alice", **fields: int | bool | str | None) -> UsageEvent:
    return UsageEvent.model_validate({"event_time_ms": T0_MS + at_ms, "user": user, "client_id": "etl", **fields})


@pytest.mark.parametrize(("at_ms", "trigger_ms"), [(0, 250), (1, 250), (249, 250), (250, 500), (999, 1_000)])
def test_an_event_waits_for_the_first_trigger_after_it(at_ms: int, trigger_ms: int) -> None:
    (batch,) = batches_of_events([event(at_ms)], 250, 1_000)
    assert (batch.trigger_ms - T0_MS, batch.newest_event_ms - T0_MS) == (trigger_ms, at_ms)


def test_an_event_at_the_instant_of_a_trigger_belongs_to_the_batch_after_it() -> None:
    batches = batches_of_events([event(100), event(249), event(250)], 250, 1_000)
    assert [(batch.trigger_ms - T0_MS, batch.newest_event_ms - T0_MS) for batch in batches] == [(250, 249), (500, 250)]


def test_events_of_a_client_and_window_are_one_row_and_null_is_not_zero() -> None:
    events = [event(10, produced_bytes=3), event(990, produced_bytes=4, fetched_bytes=0), event(1_010, io_time_ns=5)]
    (batch,) = batches_of_events(events, 5_000, 1_000)
    rows = [
        (row["sample_start_ms"] - T0_MS, row["produced_bytes"], row["fetched_bytes"], row["io_time_ns"])
        for row in batch.usage.to_pylist()
    ]
    assert rows == [(0, 7, 0, None), (1_000, None, None, 5)]


def test_the_time_of_exempt_requests_is_left_out_and_their_bytes_are_not() -> None:
    (batch,) = batches_of_events([event(0, produced_bytes=3, io_time_ns=5, throttle_exempt=True)], 250, 1_000)
    (row,) = batch.usage.to_pylist()
    assert (row["produced_bytes"], row["io_time_ns"]) == (3, None)


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9))), st.integers(1, 3_000))
def test_nothing_is_lost_and_no_batch_sees_what_comes_after_its_trigger(
    used: list[tuple[int, int]], trigger_ms: int
) -> None:
    batches = list(
        batches_of_events([event(at_ms, produced_bytes=amount) for at_ms, amount in used], trigger_ms, 1_000)
    )
    sums = [sum(filter(None, batch.usage["produced_bytes"].to_pylist())) for batch in batches]
    assert sum(sums) == sum(amount for _, amount in used)
    for batch in batches:
        assert batch.trigger_ms - trigger_ms <= batch.newest_event_ms < batch.trigger_ms
        assert batch.trigger_ms % trigger_ms == 0
    assert len({batch.trigger_ms for batch in batches}) == len(batches)
