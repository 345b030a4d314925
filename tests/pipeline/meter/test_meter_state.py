"""The state file: it survives a power loss, is refused when it is damaged, and names a full disk."""

import os
from pathlib import Path

import pytest

from pipeline.meter.errors import MeterStateDamaged, MeterStateNotWritten
from pipeline.meter.log_follower import ResumePoint
from pipeline.meter.meter_state import make_folder, read_state, write_state
from tests.pipeline.cli.running import kquota

POINT = ResumePoint(inode=7, offset_bytes=1_000, head_bytes=256, head_sha256="ab")
WHOLE = '{"version": 1, "inode": 7, "offset_bytes": 1000, "head_bytes": 256, "head_sha256": "ab"}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meter 1.json"


def test_what_was_written_is_read(path: Path) -> None:
    write_state(path, POINT)
    assert read_state(path) == POINT
    assert list(path.parent.iterdir()) == [path]


def test_a_state_of_an_earlier_release_is_read(path: Path) -> None:
    path.write_text(WHOLE)
    assert read_state(path) == POINT


def test_a_meter_without_a_state_file_has_no_place_yet(path: Path) -> None:
    assert read_state(path) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Invalid JSON: EOF"),
        ("\0" * 80, "Invalid JSON: expected value"),
        (WHOLE[:40], "Invalid JSON: EOF"),
        ("{}", "version: Field required"),
        ("[]", "Input should be an object"),
        (WHOLE.replace("1,", "99,", 1), "version: Input should be 1"),
        (WHOLE.replace("7", '"7"'), "inode: Input should be a valid integer"),
        (WHOLE.replace("1000", "-1"), "offset_bytes: Input should be greater than or equal to 0"),
        (WHOLE.replace("}", ', "more": 1}'), "more: Extra inputs are not permitted"),
        ('{"version": 1, "inode": 1}', "offset_bytes: Field required"),
    ],
)
def test_a_damaged_state_is_refused_and_not_taken_for_none(path: Path, text: str, reason: str) -> None:
    path.write_text(text)
    with pytest.raises(MeterStateDamaged) as refused:
        read_state(path)
    assert f"'--state-file' must name a state that a meter has written; got {path}: {reason}" in str(refused.value)
    assert f"rm '{path}'" in refused.value.remedy
    assert path.read_text() == text


def test_a_state_that_can_not_be_read_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(MeterStateDamaged, match="Is a directory"):
        read_state(path)


def test_the_command_refuses_a_damaged_state_before_it_connects(path: Path) -> None:
    path.write_text("")
    answer = kquota(
        "meter", "request-log", "kafka-request.log", "--broker-id", "1", "--state-file", str(path),
        "--bootstrap-server", "127.0.0.1:1",
    )  # fmt: skip
    assert answer.exit_code == 5
    assert answer.stderr.startswith(f"kquota: '--state-file' must name a state that a meter has written; got {path}: ")


def test_the_file_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        calls.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def recorded_replace(source: Path, target: Path) -> None:
        calls.append(f"replace {source.name} {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    write_state(path, POINT)
    assert calls == [
        "fsync meter 1.json.new", "replace meter 1.json.new meter 1.json", f"fsync {path.parent.name}",
    ]  # fmt: skip


def fill_the_disk(path: Path) -> Path:
    """Make every write of the state fail as on a full disk; returns what to remove to end that."""
    new = path.with_name(f"{path.name}.new")
    new.symlink_to("/dev/full")
    return new


def test_a_full_disk_is_named_and_leaves_the_old_state(path: Path) -> None:
    write_state(path, POINT)
    fill_the_disk(path)
    with pytest.raises(
        MeterStateNotWritten, match=r"must be writable; got .*: a full disk\. To mend it: free some space"
    ):
        write_state(path, ResumePoint(7, 2_000, 256, "ab"))
    assert read_state(path) == POINT


def test_another_failure_is_named_too(path: Path) -> None:
    path.with_name(f"{path.name}.new").mkdir()
    with pytest.raises(MeterStateNotWritten, match=r"Is a directory\. To mend it: see who may write there: ls -ld"):
        write_state(path, POINT)
    path.write_text("")
    with pytest.raises(MeterStateNotWritten, match=r"File exists|Not a directory"):
        make_folder(path / "state.json")
