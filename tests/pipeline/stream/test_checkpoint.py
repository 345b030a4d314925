"""A checkpoint: its files, the tables that it fits, and where a query begins."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import Refused, Unreachable
from pipeline.stream.checkpoint import (
    Checkpoint,
    CheckpointFiles,
    LocalFiles,
    OffsetLog,
    OffsetRange,
    Span,
    begin_of,
    gaps,
    open_checkpoint,
    open_without_spark,
    refuse_gaps,
    starting_offsets,
)
from pipeline.stream.query import BatchSize
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
    found = Checkpoint.read(LocalFiles(str(folder), folder))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("planned", "committed", "recorded", "newest_query_id"),
    [(-1, -1, None, None), (0, -1, None, None), (0, -1, None, "other"), (3, 3, 3, "q"), (4, 3, 3, "q"), (4, 3, 4, "q")],
)
def test_a_checkpoint_that_fits(
    tmp_path: Path, planned: int, committed: int, recorded: int | None, newest_query_id: str | None
) -> None:
    write_checkpoint(tmp_path, planned, committed).check({"q": recorded}.get, newest_query_id)


@pytest.mark.parametrize(
    ("planned", "committed", "recorded", "newest_query_id", "complaint"),
    [
        (0, 0, None, None, "belongs to a query that has not written them"),
        (5, 4, None, "other", "belongs to a query that has not written them"),
        (5, 5, 5, "other", "belongs to an earlier query"),
        (4, 4, 5, "q", "it ends at batch 4, the tables at 5"),
        (5, 5, 4, "q", "it has committed batch 5, the tables end at 4"),
    ],
)
def test_a_checkpoint_of_another_job_or_day_is_refused_with_the_way_out(
    tmp_path: Path, planned: int, committed: int, recorded: int | None, newest_query_id: str | None, complaint: str
) -> None:
    with pytest.raises(Refused, match=complaint) as refused:
        write_checkpoint(tmp_path, planned, committed).check({"q": recorded}.get, newest_query_id)
    assert "delete this one" in refused.value.fix
    assert refused.value.exit_code == 5


@pytest.mark.parametrize(("planned", "committed", "offset"), [(2, 2, 30), (3, 2, 30), (0, -1, None)])
def test_the_next_batch_begins_where_the_last_committed_one_ended(
    tmp_path: Path, planned: int, committed: int, offset: int | None
) -> None:
    wanted = {} if offset is None else {"usage": {"0": offset}}
    assert write_checkpoint(tmp_path, planned, committed).next_offsets() == wanted


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
        (tmp_path / "sources" / source).mkdir(parents=True)
        (tmp_path / "sources" / source / "0").write_text(f"\0v1\n{json.dumps({'usage': begin})}")
    assert checkpoint.begins_at_first("usage", {"0": Span(3, 9), "1": Span(0, 5)}) is is_first


@pytest.fixture(
    params=[pytest.param("local"), *[pytest.param(kind, marks=pytest.mark.spark) for kind in ("uri", "short uri")]]
)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointFiles:
    if request.param == "local":
        return LocalFiles(str(tmp_path), tmp_path)
    spark = request.getfixturevalue("spark")
    return open_checkpoint(tmp_path.as_uri() if request.param == "uri" else f"file:{tmp_path}/", spark)


def test_a_checkpoint_is_read_whole(files: CheckpointFiles, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, planned=11, committed=10)
    (tmp_path / "offsets" / "12.tmp").write_text("")
    checkpoint = Checkpoint.read(files)
    assert checkpoint is not None
    assert (checkpoint.query_id, checkpoint.planned, checkpoint.committed) == ("q", 11, 10)
    assert checkpoint.next_offsets() == {"usage": {"0": 110}}
    with pytest.raises(Refused, match="belongs to a query that has not written them"):
        checkpoint.check(lambda _: None, None)
    offsets = OffsetLog(files).range_of(11)
    assert (offsets.message_count, offsets.end) == (10, '{"usage": {"0": 120}}')


def test_a_checkpoint_that_a_power_loss_has_cut_is_refused_with_the_way_on(
    files: CheckpointFiles, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, planned=11, committed=10)
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('\0v1\n{"usage":{"0":0}}')
    assert Checkpoint.read(files) is not None
    for name in ("metadata", "offsets/11", "offsets/10", "commits/10", "sources/0/0"):
        file = tmp_path / name
        whole = file.read_text()
        for left in ("", "\0\0", "v1", "v1\n{", '{"id":'):
            file.write_text(left)
            with pytest.raises(Refused, match=rf"checkpoint .* is damaged: {name} is empty or cut") as refused:
                Checkpoint.read(files)
            assert re.search(r": (mv (\S+) \2\.damaged|move file:\S+ away)$", refused.value.fix)
        file.write_text(whole)


def test_an_empty_folder_and_a_missing_one_are_no_checkpoint(files: CheckpointFiles, tmp_path: Path) -> None:
    assert Checkpoint.read(files) is None
    tmp_path.rmdir()
    assert Checkpoint.read(files) is None
    assert files.names("offsets") == []


def test_a_text_that_is_not_ascii_comes_through(files: CheckpointFiles, tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("日本語", encoding="utf-8")
    assert files.text("metadata") == "日本語"
    assert files.text("offsets/0") is None


def test_without_spark_a_local_disk_can_be_read_and_no_other_store(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    write_checkpoint(folder, planned=1, committed=1)
    for checkpoint in (str(folder), folder.as_uri(), folder.as_uri().replace("file:///", "file:/")):
        files = open_without_spark(checkpoint)
        assert files is not None
        assert Checkpoint.read(files) is not None
    assert open_without_spark("hdfs://namenode/checkpoint") is None


@pytest.mark.spark
def test_a_file_system_that_does_not_answer_is_named(spark: Any) -> None:
    with pytest.raises(Unreachable, match=r"checkpoint nowhere://bucket/checkpoint cannot be read: "):
        Checkpoint.read(open_checkpoint("nowhere://bucket/checkpoint", spark))


@pytest.mark.parametrize(("likely", "count"), [('{"usage":{"0":3}}', 2), ('{"usage":{"0":9}}', None)])
def test_a_first_batch_that_cannot_begin_where_it_is_thought_to_has_an_unknown_size(
    likely: str, count: int | None
) -> None:
    assert OffsetRange("", '{"usage":{"0":5}}', likely).message_count == count


SPANS = {"0": Span(10, 20), "1": Span(0, 5)}


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        ({"0": 10, "1": 0}, []),
        ({"0": 20, "1": 5}, []),
        ({"0": 9}, ["partition 0: offsets 9 to 9 are deleted"]),
        ({"0": 21}, ["partition 0 ends at 20, before 21: it was deleted and created again"]),
        ({"2": 0}, ["partition 2 is gone"]),
        ({}, []),
    ],
)
def test_gaps_are_named_by_partition(wanted: dict[str, int], missing: list[str]) -> None:
    assert gaps(wanted, SPANS) == missing


def test_a_gap_behind_a_checkpoint_is_refused_with_the_way_out() -> None:
    refuse_gaps("usage", "/ck", {"0": 10}, SPANS)
    with pytest.raises(Refused, match=r"offsets 3 to 9 are deleted.*delete the checkpoint /ck") as refused:
        refuse_gaps("usage", "/ck", {"0": 3}, SPANS)
    assert refused.value.exit_code == 5


@pytest.mark.parametrize(
    ("sizes", "most", "usual"),
    [
        ([], 500_000, 20_000),
        ([], 20_001, 20_000),
        ([], 19_999, 19_999),
        ([200, 600], 500_000, 10_000),
        ([200, 200, 1_000_000], 500_000, 20_000),
        ([0], 50_000, 50_000),
        ([4_000_000], 50_000, 1),
        ([4_000_001], 50_000, 1),
    ],
)
def test_a_usual_batch_has_about_4_mb_of_messages(sizes: list[int], most: int, usual: int) -> None:
    assert BatchSize([b"x" * size for size in sizes], most).messages == usual


NEWEST = [b"x" * 200]  # 20 000 messages are 4 MB


@pytest.mark.parametrize(
    ("usual", "newest", "most"),
    [
        (20_000, NEWEST, 1_000_000),
        (20_000, NEWEST, 300_000),
        (20_000, NEWEST, 20_001),
        (1, [b"x" * 4_000_000], 1_000_000),
    ],
)
@pytest.mark.parametrize(
    ("usage_rows", "times"),
    [(0, 32), (1, 32), (10_000, 32), (10_001, 31), (19_999, 16), (20_000, 16), (20_001, 16), (1_000_000, 16)],
)
def test_a_larger_batch_has_up_to_128_mb_of_messages_as_its_usage_allows(
    usage_rows: int, times: int, usual: int, newest: list[bytes], most: int
) -> None:
    size = BatchSize(newest, most)
    size.note(7, usual, usage_rows)
    assert size.grow_if_behind(lambda batch_id: {7: 2_000_000}[batch_id])
    assert size.messages == min(times * usual, most)
    size.note(8, size.messages, usage_rows)
    assert not size.grow_if_behind(lambda _: 2_000_000)


@pytest.mark.parametrize(
    ("waiting", "in_a_row", "grows"),
    [(320_000, 1, False), (320_001, 1, True), (0, 32, False), (0, 33, True), (None, 33, False)],
)
def test_larger_batches_are_for_a_large_backlog_and_for_one_that_lasts(
    waiting: int | None, in_a_row: int, grows: bool
) -> None:
    size = BatchSize(NEWEST, 1_000_000)
    for batch_id in range(in_a_row):
        size.note(batch_id, 20_000, 1)
    assert size.grow_if_behind(lambda _: waiting) is grows
    assert size.messages == (640_000 if grows else 20_000)


@pytest.mark.parametrize(("messages", "is_full"), [(17_999, False), (18_000, True), (20_000, True), (None, True)])
def test_only_behind_a_full_batch_a_backlog_is_looked_for_and_once(messages: int | None, is_full: bool) -> None:
    size, asked = BatchSize(NEWEST, 1_000_000), list[int]()

    def waiting_after(batch_id: int) -> int:
        asked.append(batch_id)
        return 0

    size.note(6, 20_000, 1)
    size.note(7, messages, 1)
    assert not size.grow_if_behind(waiting_after)
    assert not size.grow_if_behind(waiting_after)
    assert asked == ([7] if is_full else [])


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


@pytest.mark.parametrize(
    ("starting_at", "end", "count"),
    [
        ("earliest", {"0": 12, "1": 5}, 12 - SPANS["0"].begin + 5 - SPANS["1"].begin),
        ("latest", {"0": SPANS["0"].end + 3, "1": SPANS["1"].end}, 3),
        ("latest", {"0": 0, "1": 0}, None),
        ('{"usage":{"0":4,"1":2}}', {"0": 12, "1": 5}, 11),
        ("", {"0": 12, "1": 5}, None),
    ],
)
def test_the_size_of_a_first_batch_follows_from_where_the_query_begins(
    starting_at: str, end: dict[str, int], count: int | None
) -> None:
    begin = begin_of("usage", starting_at, SPANS)
    assert OffsetRange("", json.dumps({"usage": end}), begin).message_count == count
