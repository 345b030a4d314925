"""A simulation: events of a file, batches cut at triggers, and the life of throttles on them."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.replay.simulation import SimulatedBatch, Simulation, batches_of_usage, holds_events, read_events
from pipeline.settings.model import Settings
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey
from tests.quota.factories import quota_row

T0_MS = 1_700_000_000_000


def event(at_ms: int, user: str = "alice", **fields: int | bool | str | None) -> dict[str, Any]:
    return {"event_time_ms": T0_MS + at_ms, "user": user, "client_id": "etl", **fields}


def batches_of(
    events: list[dict[str, Any]], trigger_ms: int = 250, sample_window_ms: int = 1_000
) -> list[SimulatedBatch]:
    usage = read_events(json.dumps(events), math.gcd(trigger_ms, sample_window_ms)).usage
    return [*batches_of_usage(usage, trigger_ms, sample_window_ms)]


def test_rows_have_their_sample_windows_and_null_is_not_zero() -> None:
    (batch,) = batches_of([event(990, produced_bytes=4, fetched_bytes=0), event(1_010, io_time_ns=5)], 5_000)
    names = ("sample_start_ms", "produced_bytes", "fetched_bytes", "io_time_ns")
    assert [tuple(row[name] for name in names) for row in batch.usage.to_pylist()] == [
        (T0_MS, 4, 0, None),
        (T0_MS + 1_000, None, None, 5),
    ]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9)), min_size=1), st.integers(1, 3_000))
def test_nothing_is_lost_and_no_batch_sees_past_its_trigger(used: list[tuple[int, int]], trigger_ms: int) -> None:
    batches = batches_of([event(at_ms, produced_bytes=amount) for at_ms, amount in used], trigger_ms)
    sums = [sum(filter(None, batch.usage["produced_bytes"].to_pylist())) for batch in batches]
    assert sum(sums) == sum(amount for _, amount in used)
    for batch in batches:
        assert batch.trigger_ms - trigger_ms <= batch.newest_event_ms < batch.trigger_ms
        assert batch.trigger_ms % trigger_ms == 0
    assert len({batch.trigger_ms for batch in batches}) == len(batches)


GOOD = {"event_time_ms": 5, "user": "alice", "client_id": "etl"}


def test_lines_are_read_as_messages_of_the_topic_and_what_is_refused_has_its_place() -> None:
    lines = [GOOD, "", [GOOD, {**GOOD, "event_time_ms": "x"}], None, [], 7, {**GOOD, "user": ""}]
    found = read_events("\n".join(one if one == "" else json.dumps(one) for one in lines), 1_000)
    places = [(row["offset"], row["element_index"]) for row in found.dead_letters.to_pylist()]
    assert (found.good_count, places) == (2, [(3, 1), (4, None), (6, None), (7, None)])


@pytest.mark.parametrize(
    ("text", "is_events"),
    [
        (json.dumps(GOOD), True),
        ("\n" + json.dumps([GOOD]), True),
        (json.dumps({"quotas": []}), False),
        (json.dumps([{"user": "alice", "client_id": ""}]), False),
        ("quotas:\n- {user: alice}", False),
        ("", False),
    ],
)
def test_the_first_line_says_whether_a_file_holds_events(text: str, is_events: bool) -> None:
    assert holds_events(text) is is_events


def simulate(events: list[dict[str, Any]], **quota: Any) -> tuple[Simulation, list[tuple[int, str, str]]]:
    told: list[tuple[int, str, str]] = []

    def tell(now_ms: int, record: Mapping[str, Any]) -> None:
        told.append((now_ms - T0_MS, record["action"], record["cause"]))

    quotas = QuotaSnapshot.from_rows([quota_row("alice", **{"producer_byte_rate": 1_000.0, **quota})], 1)
    simulation = Simulation(Settings(), 500, quotas, "cluster", tell)
    simulation.run(batches_of(events, 500))
    return simulation, told


@pytest.mark.parametrize(
    ("used_bytes", "shortest_ms", "longest_ms"),
    [
        (15_000, 10_500, 15_500),  # the sample leaves the window of the rate 11 s after its own began
        (60_000, 48_000, 51_000),  # at 1 000 a second, less the burst of 11 000 in the bucket
    ],
)
def test_a_throttle_is_begun_by_a_batch_renewed_and_released_when_its_debt_is_paid(
    used_bytes: int, shortest_ms: int, longest_ms: int
) -> None:
    simulation, told = simulate([event(100, produced_bytes=used_bytes)])
    assert told[0] == (500, "throttle", "violation")
    assert told[-1][1:] == ("release", "expired")
    story = simulation.clients[ClientKey("", "alice", "etl")]
    assert (story.violations, story.renewals, story.releases) == (1, len(told) - 2, 1)
    assert story.throttle_ms == told[-1][0] - 500
    assert shortest_ms <= story.throttle_ms <= longest_ms


def test_a_shadow_quota_tells_nothing_and_is_counted() -> None:
    used = [event(at_ms, produced_bytes=amount) for at_ms, amount in ((0, 15_000), (600, 0), (30_000, 0))]
    simulation, told = simulate(used, mode="shadow")
    assert (told, simulation.clients[ClientKey("", "alice", "etl")].shadowed) == ([], 2)
