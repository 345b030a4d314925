"""Sessions that were recorded from Kafka are played; and what is printed when an answer differs.

`sessions.jsonl` has seven sessions with 341 requests. They were recorded from the quota classes of Kafka 4.3.1
(`ClientQuotaManager`, `ClientRequestQuotaManager`) on a clock that was set by hand.
"""

import gzip
import json
from pathlib import Path

import pytest

from tests.conformance.replay import main, percent_encoded

SESSIONS = Path(__file__).with_name("sessions.jsonl")


def test_the_engine_answers_recorded_sessions_as_kafka_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SESSIONS)]) == 0
    assert capsys.readouterr().out == "341 records, 0 mismatches\n"


def test_a_gzipped_file_is_read_and_mismatches_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = json.loads(SESSIONS.read_text(encoding="utf-8").splitlines()[0])
    first = next(step for step in session["steps"] if step["op"] == "record")
    first["throttle_time_ms"] += 1
    path = tmp_path / "altered.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(session).encode()))
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
