"""A checkpoint: its files, the tables that it fits, and where a query begins."""

import json
import logging
import re
import shutil
from pathlib import Path

import pytest

from pipeline.errors import Refused
from pipeline.stream.checkpoint import Checkpoint, CheckpointFiles, OffsetLog, Span, refuse_gaps, starting_offsets
from pipeline.stream.query import most_messages
from tests.log_messages import messages_of


def write_checkpoint(folder: Path, planned: int, committed: int) -> Checkpoint:
    """Write a checkpoint as Spark does: batch n ends at offset 10 · (n + 1)."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    (folder / "metadata").write_text('{"id":"q"}')
    for batch_id in range(planned + 1):
        offsets = json.dumps({"usage": {"0": 10 * (batch_id + 1)}})
        (folder / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{offsets}")
        (folder / "offsets" / f".{batch_id}.crc").write_text("")
    for batch_id in range(committed + 1):
        (folder / "commits" / str(batch_id)).write_text("v1\n{}")
    found = Checkpoint.read(CheckpointFiles(str(folder)))
    assert found is not None
    return found


def write_source(folder: Path, source: str, begin: dict[str, int]) -> None:
    """Write where the query began, as Spark does once it has asked the brokers."""
    (folder / "sources" / source).mkdir(parents=True)
    (folder / "sources" / source / "0").write_text(f"\0v1\n{json.dumps({'usage': begin})}")


FOREIGN = "belongs to a query that has not written them"


@pytest.mark.parametrize(
    ("planned", "committed", "recorded", "newest_query_id", "complaint"),
    [
        (-1, -1, None, None, None),
        (0, -1, None, None, None),
        (0, -1, None, "other", None),
        (3, 3, 3, "q", None),
        (4, 3, 3, "q", None),
        (4, 3, 4, "q", None),
        (0, 0, None, None, FOREIGN),
        (5, 4, None, "other", FOREIGN),
        (5, 5, 5, "other", "belongs to an earlier query"),
        (4, 4, 5, "q", "it ends at batch 4, the tables at 5"),
        (5, 5, 4, "q", "it has committed batch 5, the tables end at 4"),
    ],
)
def test_a_checkpoint_of_another_job_or_day_is_refused(
    tmp_path: Path, planned: int, committed: int, recorded: int | None, newest_query_id: str, complaint: str | None
) -> None:
    checkpoint = write_checkpoint(tmp_path, planned, committed)
    if complaint is None:
        checkpoint.check({"q": recorded}.get, newest_query_id)
        return
    with pytest.raises(Refused, match=complaint) as refused:
        checkpoint.check({"q": recorded}.get, newest_query_id)
    assert "delete this one" in refused.value.fix
    assert refused.value.exit_code == 5


@pytest.mark.parametrize(
    ("committed", "source", "begin", "is_first"),
    [
        (-1, None, {}, True),
        (-1, "usage", {"0": 3, "1": 0}, True),
        (-1, "0", {"0": 2}, True),
        (-1, "usage", {"0": 4}, False),
        (0, "usage", {"0": 3, "1": 0}, False),
    ],
)
def test_a_query_without_a_whole_batch_is_known_by_where_it_began(
    tmp_path: Path, committed: int, source: str | None, begin: dict[str, int], is_first: bool
) -> None:
    checkpoint = write_checkpoint(tmp_path, planned=0, committed=committed)
    if source is not None:
        write_source(tmp_path, source, begin)
    assert checkpoint.begins_at_first("usage", {"0": Span(3, 9), "1": Span(0, 5)}) is is_first


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "with space"
    made.mkdir()
    return made


@pytest.fixture(params=["local", "uri", "short uri"])
def files(request: pytest.FixtureRequest, folder: Path) -> CheckpointFiles:
    short = folder.as_uri().replace("file:///", "file:/")
    return CheckpointFiles({"local": str(folder), "uri": folder.as_uri(), "short uri": short}[request.param])


def test_a_checkpoint_is_read_whole(files: CheckpointFiles, folder: Path) -> None:
    write_checkpoint(folder, planned=11, committed=10)
    (folder / "offsets" / "12.tmp").write_text("")
    checkpoint = Checkpoint.read(files)
    assert checkpoint is not None
    assert (checkpoint.query_id, checkpoint.planned, checkpoint.committed) == ("q", 11, 10)
    assert checkpoint.next_offsets() == {"usage": {"0": 110}}
    offsets = OffsetLog(files).range_of(11)
    assert (offsets.message_count, offsets.end) == (10, '{"usage": {"0": 120}}')


def test_a_checkpoint_that_was_cut_is_refused_with_the_way_on(files: CheckpointFiles, folder: Path) -> None:
    write_checkpoint(folder, planned=11, committed=10)
    write_source(folder, "usage", {"0": 0})
    assert Checkpoint.read(files) is not None
    for name in ("metadata", "offsets/11", "offsets/10", "commits/10", "sources/usage/0"):
        file = folder / name
        whole = file.read_text()
        for left in ("", "\0\0", "v1", "v1\n{", '{"id":'):
            file.write_text(left)
            with pytest.raises(Refused, match=rf"checkpoint .* is damaged: {name} is empty or cut") as refused:
                Checkpoint.read(files)
            assert re.search(r": (mv ('[^']+') \2\.damaged|move file:\S+ away)$", refused.value.fix)
        file.write_text(whole)


def test_an_empty_or_missing_folder_is_no_checkpoint(files: CheckpointFiles, folder: Path) -> None:
    assert Checkpoint.read(files) is None
    (folder / "metadata").write_text("日本語", encoding="utf-8")
    assert (files.text("metadata"), files.text("offsets/0")) == ("日本語", None)
    shutil.rmtree(folder)
    assert Checkpoint.read(files) is None
    assert files.names("offsets") == []


SPANS = {"0": Span(10, 20), "1": Span(0, 5)}


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        ({"0": 10, "1": 0}, None),
        ({"0": 20, "1": 5}, None),
        ({"0": 9}, "partition 0: offsets 9 to 9 are deleted"),
        ({"0": 21}, "partition 0 ends at 20, before 21: it was deleted and created again"),
        ({"2": 0}, "partition 2 is gone"),
        ({}, None),
    ],
)
def test_a_gap_behind_a_checkpoint_is_refused(wanted: dict[str, int], missing: str | None) -> None:
    if missing is None:
        refuse_gaps("usage", "/ck", wanted, SPANS)
        return
    with pytest.raises(Refused, match=rf"{missing}.*delete the checkpoint /ck") as refused:
        refuse_gaps("usage", "/ck", wanted, SPANS)
    assert refused.value.exit_code == 5


@pytest.mark.parametrize(
    ("sizes", "most", "messages"),
    [
        ([], 320_001, 320_000),
        ([], 319_999, 319_999),
        ([200, 600], 500_000, 160_000),
        ([200, 200, 1_000_000], 500_000, 320_000),
        ([0], 50_000, 50_000),
        ([64_000_001], 50_000, 1),
    ],
)
def test_a_batch_has_about_64_mb_of_messages(sizes: list[int], most: int, messages: int) -> None:
    assert most_messages([b"x" * size for size in sizes], most) == messages


@pytest.mark.parametrize(
    ("stored", "begin", "errors"),
    [
        ({"0": 15, "1": 5}, {"0": 15, "1": 5}, 0),
        ({"0": 15}, {"0": 15, "1": 0}, 0),
        ({"0": 3, "1": 2}, {"0": 10, "1": 2}, 1),
        ({"0": 99, "1": 2}, {"0": 10, "1": 2}, 1),
        ({"0": 15, "1": 2, "2": 7}, {"0": 15, "1": 2}, 1),
    ],
)
def test_a_new_checkpoint_begins_at_the_stored_end_or_at_what_is_left(
    stored: dict[str, int], begin: dict[str, int], errors: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert json.loads(starting_offsets("usage", json.dumps({"usage": stored}), SPANS)) == {"usage": begin}
    assert len(messages_of(caplog, "pipeline.stream.checkpoint")) == errors


@pytest.mark.parametrize("source", ["usage", "0"])
def test_the_size_of_a_first_batch_is_known_once_the_query_has_begun(tmp_path: Path, source: str) -> None:
    write_checkpoint(tmp_path, planned=0, committed=-1)
    offsets = OffsetLog(CheckpointFiles(str(tmp_path)))
    assert offsets.range_of(0).message_count is None
    write_source(tmp_path, source, {"0": 4})
    assert (offsets.range_of(0).message_count, offsets.range_of(0).start) == (6, "")
