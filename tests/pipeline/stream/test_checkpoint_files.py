"""The files of a checkpoint, on a local disk and on Hadoop's file systems: the same answers."""

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
    open_checkpoint,
    open_without_spark,
)
from pipeline.tables.object_store import has_scheme
from tests.pipeline.stream.test_checkpoint import write_checkpoint


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


@pytest.mark.parametrize(
    ("checkpoint", "scheme"),
    [
        (".kquota/checkpoint", False),
        ("/var/lib/kquota", False),
        ("C", False),
        ("a:b", False),
        ("s3://bucket/checkpoint", True),
        ("s3a://bucket/checkpoint", True),
        ("abfss://container@account.dfs.core.windows.net/checkpoint", True),
        ("file:///var/lib/kquota", True),
        ("file:/var/lib/kquota", True),
    ],
)
def test_a_checkpoint_with_a_scheme_is_hadoops(checkpoint: str, scheme: bool) -> None:
    assert has_scheme(checkpoint) is scheme
