"""The judge lets a correct job pass, and none of these."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.check_outbox import check_sequence
from tests.faults.evidence import Evidence, Message
from tests.faults.handmade import T_MS, evidence
from tests.faults.rules import Rules
from tests.faults.verdict import Verdict
from tests.faults.verifier import verify

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
        (look(4, 28_500, tokens=-500.0, owed_ms=500), "release expired: 500 ms are owed"),
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
