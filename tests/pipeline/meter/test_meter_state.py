"""The state file of an earlier release: taken over once, and refused when it is damaged."""

import logging
from pathlib import Path

import pytest

from pipeline.errors import Refused
from pipeline.meter.log_follower import LogPlace
from pipeline.meter.request_meter import read_state, retire_state
from tests.log_messages import messages_of
from tests.pipeline.cli.running import kquota

WHOLE = '{"version": 1, "inode": 7, "offset_bytes": 1000, "head_bytes": 256, "head_sha256": "ab"}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meter 1.json"


def test_a_state_of_an_earlier_release_is_read(path: Path) -> None:
    path.write_text(WHOLE)
    assert read_state(path) == LogPlace(inode=7, offset_bytes=1_000, head_bytes=256, head_sha256="ab")


def test_a_meter_without_a_state_file_has_no_place_yet(path: Path) -> None:
    assert read_state(path) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Invalid JSON: Expecting value"),
        ("\0" * 80, "Invalid JSON: Expecting value"),
        (WHOLE[:40], "Invalid JSON: Unterminated string"),
        ("{}", "its version is not 1"),
        ("[]", "it is not a JSON object"),
        (WHOLE.replace("1,", "99,", 1), "its version is not 1"),
        (WHOLE.replace("7", '"7"'), "inode: Input should be a valid integer"),
        (WHOLE.replace("1000", "-1"), "offset_bytes: Input should be greater than or equal to 0"),
        (WHOLE.replace("256", "1025"), "head_bytes: Input should be less than or equal to 1024"),
        (WHOLE.replace("}", ', "more": 1}'), "more: Extra inputs are not permitted"),
        ('{"version": 1, "inode": 1}', "offset_bytes: Field required"),
    ],
)
def test_a_damaged_state_is_refused_and_not_taken_for_none(path: Path, text: str, reason: str) -> None:
    path.write_text(text)
    with pytest.raises(Refused) as refused:
        read_state(path)
    assert f"cannot read the meter's state {path}: {reason}" in str(refused.value)
    assert f"rm '{path}'" in refused.value.fix
    assert path.read_text() == text


def test_a_state_that_can_not_be_read_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(Refused, match="Is a directory"):
        read_state(path)


def test_the_command_refuses_a_damaged_state_before_it_connects(path: Path) -> None:
    path.write_text("")
    answer = kquota(
        "meter", "request-log", "kafka-request.log", "--broker-id", "1", "--state-file", str(path),
        "--bootstrap-server", "127.0.0.1:1",
    )  # fmt: skip
    assert answer.exit_code == 5
    assert answer.stderr.startswith(f"kquota: cannot read the meter's state {path}: ")


def test_a_state_whose_place_is_on_the_cluster_is_put_aside_and_that_is_told(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(WHOLE)

    with caplog.at_level(logging.INFO):
        retire_state(path)
        retire_state(path)

    assert [each.name for each in path.parent.iterdir()] == ["meter 1.json.moved"]
    (told,) = messages_of(caplog, "pipeline.meter.request_meter")
    assert told.startswith("the place in the log is on the cluster now; the unused state file is now ")
