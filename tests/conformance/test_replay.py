"""All sessions that were recorded from Kafka are played; and what is printed when an answer differs."""

import gzip
import json
from pathlib import Path

import pytest

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
