"""A checkpoint fits the tables it was written with, and no others."""

import json
from pathlib import Path

import pytest

from pipeline.errors import Refused
from pipeline.stream.checkpoint import Checkpoint, LocalFiles, Span


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
