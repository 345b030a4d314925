"""The judge lets a correct job pass, and nothing that was tampered with.

The evidence is made by hand: one client, 40 000 bytes at once under a quota of 1 000 a second, until it is released.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from tests.faults.books import Books
from tests.faults.case import Case, Held, Reign
from tests.faults.check_tables import check_sequence
from tests.faults.check_throttles import is_end_of, may_be_left_to_end, was_taken_up, watch
from tests.faults.evidence import Batch, Evidence, Message, Quotas, Row
from tests.faults.verdict import Rules, Verdict
from tests.faults.verifier import verify

T_MS = 1_700_000_000_000
_SETTINGS = (
    '{"num_samples":11,"sample_window_ms":1000,"producer_byte_rate_cap":"window","consumer_byte_rate_cap":"window",'
    '"request_percentage_cap":"sample_window","carry_debt":true}'
)
_WHO = {"cluster": "test", "broker_id": "", "user": "alice", "client_id": "etl"}
_SENSOR = {"sensor_user": "alice", "sensor_client_id": ""}
_DECISION_ID = "95794a15ea602d60"


def evidence() -> Evidence:
    """A job that did everything right."""
    burst = f'{{"event_time_ms":{T_MS},"user":"alice","client_id":"etl","produced_bytes":40000}}'.encode()
    late = f'[{{"event_time_ms":{T_MS + 200},"user":"bob","client_id":"","fetched_bytes":5}},7]'.encode()
    events = _events()
    return Evidence(
        usage_topic="usage",
        messages=[
            Message(0, 0, T_MS + 5, b"1/0", burst),
            Message(0, 1, T_MS + 205, b"1/1", late),
            Message(0, 2, T_MS + 206, b"1/2", None),
        ],
        records=[_record(event) for event in events],
        tables={
            "usage": [
                _usage(0, T_MS, user="alice", client_id="etl", produced_bytes=40_000, last_event_ms=T_MS),
                _usage(1, T_MS + 200, user="bob", client_id="", fetched_bytes=5, last_event_ms=T_MS + 200),
            ],
            "batches": [
                _batch(0, T_MS, "", '{"usage":{"0":1}}', good_count=1),
                _batch(1, T_MS + 200, '{"usage":{"0":1}}', '{"usage":{"0":3}}', 1, ignored_count=1, dead_count=1),
            ],
            "decisions": [_decision()],
            "dead_letters": [_dead_letter()],
            "throttle_events": events,
            "sensor_state": [_bucket()],
        },
        starts=[T_MS - 5_000],
        quotas={
            1: Quotas(
                ({"user": "alice", "client_id": "", "producer_byte_rate": 1_000.0, "mode": "enforce"},), "enforce"
            )
        },
    )


def _of_batch(batch_id: int, evaluated_at_ms: int) -> Row:
    return {
        "query_id": "q",
        "batch_id": batch_id,
        "time_epoch": 0,
        "evaluated_at_ms": evaluated_at_ms,
        "quota_version": 1,
    }


def _usage(batch_id: int, evaluated_at_ms: int, **values: object) -> Row:
    nothing = dict.fromkeys(
        ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "exempt_time_ns", "broker_throttle_ms")
    )
    return {
        **_of_batch(batch_id, evaluated_at_ms),
        "sample_start_ms": T_MS,
        "broker_id": "",
        **nothing,
        "request_count": 1,
        **values,
    }


def _batch(batch_id: int, at_ms: int, start: str, end: str, good_count: int, **counts: int) -> Row:
    return {
        **_of_batch(batch_id, at_ms),
        "cluster": "test",
        "processed_at_ms": at_ms + 300,
        "start_offsets": start,
        "end_offsets": end,
        "engine_settings": _SETTINGS,
        "good_count": good_count,
        **{"late_count": 0, "clamped_count": 0, "ignored_count": 0, "dead_count": 0, **counts},
    }


def _decision() -> Row:
    """O = 40 000 / 10 s; X = (4 000 - 1 000) / 1 000 x 10 s, capped at the window."""
    return {
        **_of_batch(0, T_MS),
        **_WHO,
        **_SENSOR,
        "quota_type": "producer_byte_rate",
        "observed": 4_000.0,
        "bound": 1_000.0,
        "window_ms": 10_000,
        "raw_throttle_time_ms": 30_000,
        "max_throttle_time_ms": 10_000,
        "throttle_time_ms": 10_000,
        "level": 3,
        "mode": "enforce",
        "applied": True,
        "decision_id": _DECISION_ID,
    }


def _dead_letter() -> Row:
    place = {"topic": "usage", "partition": 0, "offset": 1, "element_index": 1, "appended_at_ms": T_MS + 205}
    return {"query_id": "q", "batch_id": 1, **place, "cause": "element must be a JSON object", "value": b"7"}


def _bucket() -> Row:
    """11 000 - 40 000, charged at the instant of the first batch."""
    sensor = {"broker_id": "", **_SENSOR, "quota_type": "producer_byte_rate"}
    return {**_of_batch(0, T_MS), **sensor, "tokens": -29_000.0, "refilled_at_ms": T_MS}


def _events() -> list[Row]:
    """Throttled for 10 s, renewed three times for what is left of a debt of 29 000, released when it is paid.

    Each look comes 1.1 s before the end. The last one finds 1.1 s owed, which is what is left, and leaves no record.
    """
    begun = _event(0, 0, 0, "throttle", "violation", 10_000, observed=4_000.0, tokens=-29_000.0, owed_ms=30_000)
    renewals = [
        _event(1, 1, 9_000, "throttle", "renewed", 10_000, observed=4_000.0, tokens=-20_000.0, owed_ms=30_000),
        _event(2, 1, 17_900, "throttle", "renewed", 10_000, observed=0.0, tokens=-11_100.0, owed_ms=11_100),
        _event(3, 1, 26_800, "throttle", "renewed", 2_200, observed=0.0, tokens=-2_200.0, owed_ms=2_200),
    ]
    released = _event(4, 1, 29_000, "release", "expired", 0, observed=0.0, tokens=0.0, owed_ms=0)
    return [begun, *renewals, released]


def _event(
    publish_seq: int, batch_id: int, after_ms: int, action: str, cause: str, throttle_time_ms: int, **figures: object
) -> Row:
    """A record of so long after the first event; the batches are collected 0.3 s after their instants."""
    written_ms = T_MS + after_ms + 300 + (100 if cause == "violation" else 0)
    return {
        **_of_batch(batch_id, T_MS + after_ms),
        **_WHO,
        **_SENSOR,
        "publish_seq": publish_seq,
        "action": action,
        "cause": cause,
        "quota_type": "producer_byte_rate",
        "bound": 1_000.0,
        "window_ms": 10_000,
        "throttle_time_ms": throttle_time_ms,
        "throttled_until_ms": written_ms + throttle_time_ms,
        "due_ms": None if cause == "violation" else written_ms,
        "decision_id": _DECISION_ID,
        "schema_version": 1,
        **figures,
    }


def _record(event: Row) -> Row:
    dropped = {"query_id", "time_epoch", "evaluated_at_ms", "sensor_user", "sensor_client_id", "due_ms"}
    kept = {name: value for name, value in event.items() if name not in dropped}
    key = [event[name] for name in ("cluster", "broker_id", "user", "client_id")]
    return {**kept, "sensor": [event["sensor_user"], event["sensor_client_id"]], "key": key, "partition": 0}


Tamper = Callable[[Evidence], object]


def test_what_a_correct_job_leaves_is_equal() -> None:
    verdict = verify(evidence())
    assert verdict.differences == []
    assert verdict.compared == {
        "batches": 2,
        "messages": 3,
        "clamped_events": 0,
        "late_events": 0,
        "old_batches": 0,
        "usage": 2,
        "dead_letters": 1,
        "decisions": 1,
        "snapshots": 1,
        "buckets": 1,
        "full_buckets": 0,
        "applied": 1,
        "begins": 1,
        "looks": 4,
        "renewals": 3,
        "releases": 1,
        "publish_seq": 5,
        "topic": 5,
        "pairs": 6,
    }


def change(table: str, place: int, **values: object) -> Tamper:
    return lambda found: found.tables[table][place].update(values)


def drop(table: str, place: int) -> Tamper:
    return lambda found: found.tables[table].pop(place)


def repeat(table: str, place: int) -> Tamper:
    return lambda found: found.tables[table].append(dict(found.tables[table][place]))


def move(place: int, throttle_time_ms: int) -> Tamper:
    """Another length, written at the same time."""

    def tamper(found: Evidence) -> None:
        row = found.tables["throttle_events"][place]
        row["throttled_until_ms"] += throttle_time_ms - row["throttle_time_ms"]
        row["throttle_time_ms"] = throttle_time_ms

    return tamper


def look(place: int, after_ms: int, **figures: object) -> Tamper:
    """A record of another instant, so long after the first event, with the figures of then."""

    def tamper(found: Evidence) -> None:
        row = found.tables["throttle_events"][place]
        written_ms = T_MS + after_ms + 300
        times = {"throttled_until_ms": written_ms + row["throttle_time_ms"], "due_ms": written_ms}
        row.update(evaluated_at_ms=T_MS + after_ms, **times, **figures)

    return tamper


def send(value: bytes) -> Tamper:
    return lambda found: found.messages.append(Message(0, 3, T_MS + 300, b"1/3", value))


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (drop("usage", 0), "usage: lost"),
        (repeat("usage", 1), "usage: duplicated"),
        (change("usage", 0, produced_bytes=39_999), "produced_bytes must be 40000; got 39999"),
        (change("usage", 1, produced_bytes=0), "produced_bytes must be None; got 0"),
        (change("usage", 0, batch_id=1), "usage: lost"),
        (drop("dead_letters", 0), "dead_letters: lost"),
        (change("dead_letters", 0, value=b"8"), "dead_letters: different"),
        (drop("decisions", 0), "decisions: lost"),
        (change("sensor_state", 0, tokens=-28_999.0), "tokens must be -29000.0; got -28999.0"),
        (change("sensor_state", 0, refilled_at_ms=T_MS + 1), "buckets: different"),
        (change("sensor_state", 0, sensor_user="bob"), "buckets: duplicated"),
        (change("sensor_state", 0, sensor_user="bob"), "buckets: lost"),
        (change("sensor_state", 0, evaluated_at_ms=T_MS + 1), "buckets: different"),
        (change("sensor_state", 0, sensor_user=""), "buckets: lost: ('q', 0, 'producer_byte_rate'"),
        (drop("sensor_state", 0), "snapshots: lost: the snapshot after batch ('q', 0)"),
        (repeat("sensor_state", 0), "buckets: duplicated"),
        (change("decisions", 0, raw_throttle_time_ms=30_001), "raw_throttle_time_ms must be 30000; got 30001"),
        (change("decisions", 0, decision_id="0"), "decisions: different"),
        (change("batches", 1, ignored_count=0), "ignored_count must be 1; got 0"),
        (change("batches", 1, start_offsets='{"usage":{"0":2}}'), "batches: different"),
        (change("batches", 1, end_offsets='{"usage":{"0":2}}'), "messages: lost: (0, 2)"),
        (drop("batches", 0), "batches: lost: ('q', 0)"),
        (send(b'{"event_time_ms":1,"user":"u","client_id":"c"}'), "messages: lost: (0, 3)"),
        (change("batches", 1, clamped_count=1), "clamped_count must be 0; got 1"),
        (change("batches", 0, processed_at_ms=T_MS - 2_001), "evaluated_at_ms must be 1699999999999; got"),
        (change("batches", 0, processed_at_ms=T_MS + 501), "begins: different: publish_seq 0 throttle violation: writ"),
        (change("batches", 1, quota_version=0), "quotas v0 after v1"),
        (change("batches", 1, engine_settings="{}"), "has other engine settings"),
        (change("decisions", 0, applied=False), "applied must be True; got False"),
        (change("decisions", 0, quota_version=0), "quota_version must be 1; got 0"),
        (change("throttle_events", 1, publish_seq=0), "publish_seq: duplicated: 0"),
        (drop("throttle_events", 1), "publish_seq: lost: 1"),
        (drop("throttle_events", 4), "pairs: lost: the release of ('test', '', 'alice', 'etl')"),
        (drop("throttle_events", 0), "applied: lost: the throttle of ('', 'alice', 'etl') that batch ('q', 0)"),
        (drop("throttle_events", 1), "no look was taken before the end"),
        (drop("throttle_events", 3), "due at 1700000029300; must be"),
        (change("throttle_events", 1, owed_ms=29_999), "owed_ms must be 30000; got 29999"),
        (change("throttle_events", 1, evaluated_at_ms=T_MS + 9_001), "tokens must be -19999.0; got -20000.0"),
        (change("throttle_events", 1, sensor_client_id="etl"), "sensor must be one of [('alice', '')]"),
        (move(1, 30_001), "a slice of 30001 ms of 30000 ms owed; must be 10000 to 30000"),
        (move(3, 2_199), "a slice of 2199 ms of 2200 ms owed"),
        (change("throttle_events", 0, batch_id=1), "decided nothing about the client"),
        (change("throttle_events", 2, decision_id="0"), "pairs: different"),
        (change("throttle_events", 2, throttled_until_ms=T_MS + 19_000), "order: different"),
        (change("throttle_events", 2, due_ms=T_MS + 9_000), "due at 1700000009000; must be"),
        (change("throttle_events", 2, due_ms=T_MS + 18_500), "due at 1700000018500; must be"),
        (look(4, 28_500, tokens=-500.0, owed_ms=500), "release expired: 500 ms before its end"),
        (look(4, 27_999, tokens=-1_001.0, owed_ms=1_001), "release expired: 1001 ms are owed"),
        (look(4, 20_000, tokens=-9_000.0, owed_ms=9_000), "release expired: 9000 ms are owed"),
        (change("throttle_events", 4, cause="quota_changed"), "v1 and v1 are the same for this client"),
        (change("throttle_events", 1, cause="violation"), "decided nothing about the client"),
        (change("throttle_events", 4, quota_version=0), "quotas v0 after v1"),
        (lambda found: found.records.pop(1), "topic: lost: 1"),
        (lambda found: found.records.append(found.records[0]), "topic: duplicated: 0"),
        (lambda found: found.records.insert(0, found.records.pop(1)), "topic: different: publish_seq 0 comes after 1"),
        (lambda found: found.records[2].update(throttled_until_ms=1), "topic: different: 2"),
        (lambda found: found.records[2].update(key=["test", "", "bob", ""]), "topic: different: 2"),
    ],
)
def test_what_was_tampered_with_is_found(tamper: Tamper, told: str) -> None:
    found = evidence()
    tamper(found)
    assert [line for line in verify(found).as_json()["differences"] if told in line], verify(found).as_table()


def test_what_the_generator_has_sent_must_be_on_the_topic_as_it_was_sent() -> None:
    found = evidence()
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    found.messages = found.messages[2:]
    nothing = {"good": 0, "dead": 0, "ignored": 1, "sha256": empty}
    found.ledger = {
        "1/2": {**nothing, "acknowledged": True},
        "1/3": {**nothing, "acknowledged": True},
        "1/4": {**nothing, "acknowledged": False},
    }
    told = [(one.kind, one.text) for one in verify(found).differences if one.check == "ledger"]
    assert told == [("lost", "1/3")]
    found.ledger["1/2"]["good"] = 1
    assert "ledger: different: message 1/2" in verify(found).as_table()


def junk(kept: int, told: str) -> Evidence:
    """A message with 102 refused elements, of which so many are kept; the last says what is told of the others."""
    found = evidence()
    message = found.messages[1]
    found.messages[1] = replace(message, value=(message.value or b"").replace(b",7]", b",7" * 102 + b"]"))
    found.tables["batches"][1]["dead_count"] = 102
    (letter,) = found.tables["dead_letters"]
    letters = [{**letter, "element_index": index + 1} for index in range(kept)]
    letters[-1]["cause"] += told
    found.tables["dead_letters"] = letters
    return found


@pytest.mark.parametrize(
    ("kept", "told", "different"),
    [
        (100, "; 2 more refused elements, up to element 102", ""),
        (100, "; 3 more refused elements, up to element 102", "more must be 2; got 3"),
        (100, "", "more must be 2; got 0"),
        (99, "; 3 more refused elements, up to element 102", "dead_letters: lost"),
        (101, "; 1 more refused elements, up to element 102", "dead_letters: duplicated"),
    ],
)
def test_of_a_message_of_junk_a_hundred_elements_are_kept_and_the_others_told(
    kept: int, told: str, different: str
) -> None:
    verdict = verify(junk(kept, told))
    told_of = "\n".join(f"{found.check}: {found.kind} {found.text}" for found in verdict.differences)
    assert (different in told_of) if different else (told_of == "")


def test_a_verdict_that_has_compared_too_little_is_a_failure() -> None:
    found = evidence()
    found.tables = {name: [] for name in found.tables}
    found.messages, found.records = [], []
    assert verify(found).differences == []
    verdict = verify(found, at_least={"messages": 3, "renewals": 1, "topic": 0})
    assert verdict.told() == [
        "messages: too few: compared 0; this load must give at least 3",
        "renewals: too few: compared 0; this load must give at least 1",
    ]
    assert not verdict.as_json()["equal"]


def test_an_end_that_came_while_no_driver_was_there_counts_from_the_next_start() -> None:
    found = evidence()
    *_, last, released = found.tables["throttle_events"]
    started_ms = last["throttled_until_ms"] + 1_000
    look(4, 31_000, tokens=2_000.0)(found)
    found.records[-1].update(throttled_until_ms=released["throttled_until_ms"], tokens=2_000.0)
    released["due_ms"] = started_ms
    assert [line.partition(":")[0] for line in verify(found).told()] == ["looks"]
    found.starts = [started_ms]
    assert verify(found).told() == []


@pytest.mark.parametrize(("name_length", "told"), [(32_767, []), (100, ["lost"])])
def test_only_a_record_that_the_topic_can_not_take_may_be_missing_on_it(name_length: int, told: list[str]) -> None:
    found = evidence()
    name = "\x01" * name_length  # six bytes for each character in JSON
    names = {"user": name, "client_id": name, "sensor_user": name, "sensor_client_id": name}
    found.tables["throttle_events"][4].update(names)
    found.records.pop(4)
    verdict = Verdict()
    check_sequence(found, Rules(), verdict)
    assert [one.kind for one in verdict.differences] == told
    assert verdict.compared["passed_over"] == int(not told)


_BEGIN_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("slice_ms", "due_after_ms", "is_end"),
    [
        (60, 0, False),  # due at once: shorter than a lead, and shorter than the slack of 100 ms
        (60, 29, False),
        (60, 30, True),
        (60, 60, True),
        (60, 90, True),
        (3_000, 2_000, False),  # one lead of 1 s before its end
        (3_000, 2_899, False),
        (3_000, 2_900, True),
        (3_000, 3_100, True),
    ],
)
def test_a_look_belongs_to_the_instant_that_is_nearer_to_when_it_was_due(
    slice_ms: int, due_after_ms: int, is_end: bool
) -> None:
    held = Held({"throttled_until_ms": _BEGIN_MS + slice_ms, "throttle_time_ms": slice_ms})
    case = Case(cast(Books, None), Rules(), Verdict())
    assert is_end_of(case, "1", {"due_ms": _BEGIN_MS + due_after_ms}, held) is is_end


@pytest.mark.parametrize(
    ("due_after_end_ms", "start_after_due_ms", "is_taken_up"),
    [
        (-101, 0, False),  # one that was still running, and is looked at as any other
        (-100, 0, True),  # by the slack of the clocks it may have ended
        (0, 0, True),
        (5_000, 0, True),
        (0, -101, False),  # an end that has come after the start
        (0, 30_100, True),  # a driver says so when it has published what was left
        (0, 30_101, False),
    ],
)
def test_a_look_about_the_end_may_be_due_because_a_driver_took_over(
    due_after_end_ms: int, start_after_due_ms: int, is_taken_up: bool
) -> None:
    held = Held({"throttled_until_ms": _BEGIN_MS, "throttle_time_ms": 3_000})
    due_ms = _BEGIN_MS + due_after_end_ms
    case = Case(cast(Books, None), Rules(), Verdict(), starts=[due_ms + start_after_due_ms])
    assert was_taken_up(case, {"due_ms": due_ms}, held) is is_taken_up


@pytest.mark.parametrize(
    ("after_drop_ms", "may_end"), [(-50, True), (30, True), (99, True), (100, False), (300, False)]
)
def test_a_look_may_be_taken_before_a_window_that_held_little_drops_out_of_the_rate(
    after_drop_ms: int, may_end: bool
) -> None:
    """One byte at T, 11 040 two seconds before that window drops out. Until then X = 11 040 - W, and W is nearly 11 s.

    Then W is 10 s, and X is larger by a second.
    """
    given = evidence()
    books = Books(given, given.tables["batches"][0]["engine_settings"])
    client = {"broker_id": "", "user": "alice", "client_id": "etl"}
    for start_ms, size in ((T_MS, 1), (T_MS + 9_000, 11_040)):
        row = {**given.tables["usage"][0], **client, "sample_start_ms": start_ms, "last_event_ms": start_ms}
        books.record([row | {"produced_bytes": size}], start_ms, 1)
    drop_ms = T_MS + 11_000
    batch = Batch({**_of(T_MS + 9_000), "quota_version": 1}, ())
    begin_ms = drop_ms + after_drop_ms
    about = {**client, "quota_type": "producer_byte_rate", "quota_version": 1}
    held = Held({**about, "throttled_until_ms": begin_ms + 50, "throttle_time_ms": 50})
    case = Case(books, Rules(min_hold_ms=1), Verdict())
    assert may_be_left_to_end(case, Reign(batch, None), held, held.end_ms) is may_end
    assert (held.nearest_ms <= 101) is may_end


@pytest.mark.parametrize(
    ("next_batch_after_ms", "may_end"), [(1_000, False), (5_999, False), (6_000, True), (9_000, True)]
)
def test_a_look_ahead_of_the_end_may_wait_for_a_record_that_is_published_until_the_next_batch(
    next_batch_after_ms: int, may_end: bool
) -> None:
    """16 000 of T = 1 000 at once: 6 s are owed until that window drops out after 11 s; the throttle ends after 1 s.

    The next batch is decided up to 5 s after it is collected.
    """
    given = evidence()
    books = Books(given, given.tables["batches"][0]["engine_settings"])
    client = {"broker_id": "", "user": "alice", "client_id": "etl"}
    row = {**given.tables["usage"][0], **client, "sample_start_ms": T_MS, "last_event_ms": T_MS}
    books.record([row | {"produced_bytes": 16_000}], T_MS, 1)
    batch = Batch({**_of(T_MS), "quota_version": 1}, ())
    following = Batch({**_of(T_MS + next_batch_after_ms), "quota_version": 1}, ())
    about = {**client, "quota_type": "producer_byte_rate", "quota_version": 1}
    held = Held({**about, "throttled_until_ms": T_MS + 1_000, "throttle_time_ms": 1_000})
    case = Case(books, Rules(), Verdict())
    case.held[("", "alice", "etl")] = held
    watch(case, Reign(batch, following))
    assert held.may_end is may_end, held.nearest_ms


def _of(at_ms: int) -> dict[str, object]:
    return {"query_id": "q", "batch_id": 0, "evaluated_at_ms": at_ms, "processed_at_ms": at_ms}
