import pytest

from pipeline.stream.checkpoint import OffsetRange


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        ("", '{"usage":{"0":5}}', None),
        ('{"usage":{"0":5,"1":7}}', '{"usage":{"0":5,"1":7}}', 0),
        ('{"usage":{"0":5,"1":7}}', '{"usage":{"0":6,"1":17}}', 11),
        ('{"usage":{"0":5}}', '{"usage":{"0":6,"1":3}}', 4),  # a partition was added
    ],
)
def test_a_batch_has_as_many_messages_as_it_covers_offsets(start: str, end: str, count: int | None) -> None:
    assert OffsetRange(start, end).message_count == count


@pytest.mark.parametrize(("likely", "count"), [('{"usage":{"0":3}}', 2), ('{"usage":{"0":9}}', None)])
def test_a_first_batch_that_cannot_begin_where_it_is_thought_to_has_an_unknown_size(
    likely: str, count: int | None
) -> None:
    assert OffsetRange("", '{"usage":{"0":5}}', likely).message_count == count
