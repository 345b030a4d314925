import json
import logging

import pytest

from pipeline.errors import Refused
from pipeline.stream.checkpoint import OffsetRange, Span, begin_of, gaps, refuse_gaps, starting_offsets
from pipeline.stream.query import BatchSize
from tests.log_messages import messages_of

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


def test_a_batch_of_all_there_may_be_does_not_grow() -> None:
    size = BatchSize(NEWEST, 20_000)
    size.note(0, 20_000, 1)
    assert not size.grow_if_behind(lambda _: 1_000_000)


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
