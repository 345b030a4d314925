"""All sessions that were recorded from Kafka are played; and what is printed when an answer differs."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.jvm.jars import fetch
from pipeline.jvm.java import LOWEST_VERSION, find_jdk
from tests.conformance.kafka_judge import KafkaJudge, judge
from tests.conformance.random_sessions import DEFAULT, draw_session, is_aligned
from tests.conformance.replay import RECORDED_SESSIONS, main, percent_encoded, read_sessions


def test_the_engine_answers_all_recorded_sessions_as_kafka_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RECORDED_SESSIONS)]) == 0
    assert capsys.readouterr().out == "4338 records, 0 mismatches\n"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_mismatches_are_shown(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = next(read_sessions(RECORDED_SESSIONS))
    first = next(step for step in session["steps"] if step["op"] == "record")
    first["throttle_time_ms"] += 1
    path, line = tmp_path / f"altered{suffix}", json.dumps(session).encode()
    path.write_bytes(gzip.compress(line) if suffix.endswith(".gz") else line)
    assert main([str(path)]) == 1
    shown, last = capsys.readouterr().out.splitlines()
    assert shown.startswith(f"session {session['seed']}, step {session['steps'].index(first) + 1}: expected ")
    assert last.endswith(" records, 1 mismatches")


@pytest.mark.parametrize(
    ("user", "encoded"),
    [("a*b~c+d/é", "a%2Ab%7Ec%2Bd%2F%C3%A9"), ("bob doe", "bob%20doe"), ("<default>", "%3Cdefault%3E")],
)
def test_users_are_encoded_as_kafka_does(user: str, encoded: str) -> None:
    assert percent_encoded(user) == encoded


SESSIONS = 2000


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaJudge]:
    jdk = find_jdk()
    if jdk is None:
        pytest.skip(f"no judge: needs a JDK of version {LOWEST_VERSION} or newer in JAVA_HOME or on PATH")
    fetch()
    with KafkaJudge(jdk) as running:
        yield running


@pytest.mark.broker
def test_kafka_answers_the_recorded_sessions_as_it_did_when_they_were_recorded(kafka: KafkaJudge) -> None:
    recorded = list(read_sessions(RECORDED_SESSIONS))
    assert [kafka.answer(session) for session in recorded] == recorded


@pytest.mark.broker
@pytest.mark.parametrize("sessions", [SESSIONS // 50, pytest.param(SESSIONS, marks=pytest.mark.long)])
def test_the_engine_answers_random_sessions_as_kafka_does(kafka: KafkaJudge, sessions: int) -> None:
    verdict = judge(kafka, first_seed=0, sessions=sessions)
    assert verdict.minimal is None, f"{verdict.mismatches[0]}; cut down:\n{verdict.minimal}"
    assert verdict.sessions == sessions
    assert verdict.records > 10 * sessions


def test_a_seed_draws_its_session_again() -> None:
    assert json.dumps(draw_session(7)) == json.dumps(draw_session(7))
    assert draw_session(7)["steps"] != draw_session(8)["steps"]


def test_sessions_cover_types_samples_windows_levels_and_deletions() -> None:
    sessions = [draw_session(seed) for seed in range(SESSIONS)]
    for setting, values in (("quota_type", 3), ("num_samples", 11), ("sample_window_ms", 5)):
        seen = Counter(session[setting] for session in sessions)
        assert len(seen) == values
        assert min(seen.values()) > SESSIONS / values / 2
    edits = [step for session in sessions for step in session["steps"] if step["op"] == "quota"]
    levels = Counter((part(edit["user"]), part(edit["client_id"]), edit["bound"] is None) for edit in edits)
    assert len(levels) == 8 * 2
    assert min(levels.values()) > 20


def part(name: str | None) -> str:
    if name is None:
        return "none"
    return "default" if name == DEFAULT else "named"


@pytest.mark.parametrize(("second_ms", "aligned"), [(500, True), (1000, True), (1500, False)])
def test_a_session_is_aligned_when_every_sensor_begins_its_windows_on_time(second_ms: int, aligned: bool) -> None:
    steps = [{"op": "record", "t": at_ms, "sensor": ["alice", ""]} for at_ms in (0, second_ms)]
    assert is_aligned({"sample_window_ms": 1000, "steps": steps}) is aligned
