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
