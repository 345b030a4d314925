import json

import pytest

from pipeline.replay.simulation import holds_events, read_events

GOOD = {"event_time_ms": 5, "user": "alice", "client_id": "etl"}


def test_objects_arrays_and_blank_lines_are_read_as_on_the_topic() -> None:
    text = "\n".join([json.dumps(GOOD), "", json.dumps([GOOD, {**GOOD, "user": "bob"}]), "null", "[]"])
    events, refused = read_events(text)
    assert ([event.user for event in events], refused) == (["alice", "alice", "bob"], [])


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("{", "line 1: not JSON"),
        (json.dumps({**GOOD, "user": ""}), "line 1: 'user': "),
        (json.dumps({**GOOD, "produced_bytes": -1}), "line 1: 'produced_bytes': "),
        (json.dumps([GOOD, {**GOOD, "event_time_ms": "x"}]), "line 1, element 1: 'event_time_ms': "),
        ("7", "line 1: "),
    ],
)
def test_what_is_no_event_is_refused_by_itself_with_its_place(line: str, refusal: str) -> None:
    events, refused = read_events(f"{line}\n{json.dumps(GOOD)}")
    assert [sentence.startswith(refusal) for sentence in refused] == [True]
    assert events[-1].user == "alice"


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
