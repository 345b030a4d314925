"""Who is throttled, kept up to date by the records alone.

0 s      1 s      2 s      3 s      4 s
throttle renew    ·        release            one throttle, since 0 s
throttle ·        (lapses) ·        throttle  two throttles
"""

from itertools import count
from typing import Any

from pipeline.dashboard.live_rates import RunningThrottles
from schemas.decisions import decision_id
from schemas.throttle_record import verb, written_ms

SEQ = count()


def record(at_ms: int, for_ms: int, cause: str = "violation", client_id: str = "c", **columns: Any) -> dict[str, Any]:
    of_decision: dict[str, Any] = {"cluster": "k", "query_id": "q", "batch_id": 1, "broker_id": "", "user": "u"}
    of_decision |= {"client_id": client_id, "quota_type": "producer_byte_rate"}
    return {
        **of_decision,
        "publish_seq": next(SEQ),
        "action": "throttle" if for_ms else "release",
        "cause": cause,
        "observed": 3.0,
        "bound": 2.0,
        "throttle_time_ms": for_ms,
        "throttled_until_ms": at_ms + for_ms,
        "decision_id": decision_id(**of_decision),
        **columns,
    }


def running(at_ms: int, *rows: dict[str, Any]) -> list[tuple[str, int, int]]:
    kept = RunningThrottles()
    kept.apply(rows)
    return [(one.row["client_id"], one.since_ms, one.records) for one in kept.running(at_ms)]


def test_a_throttle_runs_until_its_end_exclusive() -> None:
    row = record(0, 2_000)
    assert running(1_999, row) == [("c", 0, 1)]
    assert running(2_000, row) == []


def test_a_renewal_keeps_the_begin() -> None:
    assert running(2_500, record(0, 2_000), record(1_800, 2_000, "renewed")) == [("c", 0, 2)]


def test_a_throttle_keeps_the_most_that_its_client_was_over_its_bound() -> None:
    kept = RunningThrottles()
    kept.apply([record(0, 2_000, observed=10.0), record(1_800, 2_000, "renewed", observed=0.5)])
    assert [one.most_used for one in kept.running(2_500)] == [5.0]


def test_a_renewal_at_the_very_end_keeps_it_too() -> None:
    assert running(2_500, record(0, 2_000), record(2_000, 2_000, "renewed")) == [("c", 0, 2)]


def test_what_lapsed_before_the_next_record_is_another_throttle() -> None:
    assert running(4_500, record(0, 2_000), record(2_001, 4_000)) == [("c", 2_001, 1)]


def test_a_release_ends_it() -> None:
    assert running(500, record(0, 2_000), record(400, 0, "quota_changed")) == []


def test_clients_are_apart_and_the_longest_held_is_first() -> None:
    rows = [record(100, 9_000, client_id="b"), record(0, 9_000, client_id="a")]
    assert [client for client, *_ in running(500, *rows)] == ["a", "b"]


def test_rows_in_any_order_and_twice_say_the_same() -> None:
    rows = [record(0, 2_000), record(1_800, 2_000, "renewed"), record(3_000, 0, "expired")]
    kept = RunningThrottles()
    kept.apply([rows[2], rows[0], rows[1], rows[0]])
    kept.apply(rows)
    assert kept.running(3_100) == []
    assert [row["publish_seq"] for row in kept.recent()] == [row["publish_seq"] for row in reversed(rows)]


def test_each_record_has_its_verb() -> None:
    rows = [record(0, 9), record(0, 9, decision_id="earlier"), record(0, 9, "renewed"), record(0, 0, "expired")]
    assert [verb(row) for row in rows] == ["throttle", "extend", "renew", "release"]


def test_a_record_was_written_its_time_before_its_end() -> None:
    assert written_ms(record(1_234, 5_000)) == 1_234
