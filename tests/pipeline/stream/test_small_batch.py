"""What of a small batch the driver reads, and what it leaves to Spark."""

import pyarrow as pa
import pytest

from pipeline.stream.reading import small_batch
from pipeline.stream.reading.decode import PACKED_BEGIN
from pipeline.stream.reading.small_batch import read_small_batch
from tests.pipeline.stream.messages import APPENDED_AT_MS, DAY_MS, PARTITION, RULES, array, event, message

UNREADABLE = message(user="NAME").replace(b'"NAME"', b"1e400")


def fetched(values: list[bytes | None]) -> pa.Table:
    sizes = [None if value is None else len(value) for value in values]
    return pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "size_bytes": pa.array(sizes, pa.int32()),
            "is_packed": pa.array([(value or b"").startswith(PACKED_BEGIN) for value in values], pa.bool_()),
            "topic": ["usage"] * len(values),
            "partition": pa.array([PARTITION] * len(values), pa.int32()),
            "offset": pa.array(range(len(values)), pa.int64()),
            "appended_at_ms": pa.array([APPENDED_AT_MS] * len(values), pa.int64()),
        }
    )


def test_each_message_is_read_in_one_of_the_ways() -> None:
    old = event(event_time_ms=APPENDED_AT_MS - DAY_MS - 1)
    values = [message(), None, b"[]", b"no JSON", message(client_id=7), array(event(), old), UNREADABLE]
    read = read_small_batch(fetched(values), RULES)
    assert [one.offset for one in read.left] == [6]
    places = (read.part.dead_letters[name].to_pylist() for name in ("offset", "element_index"))
    assert sorted(zip(*places, strict=True)) == [(3, None), (5, 1)]
    assert read.part.ignored_count == 2
    assert {row["client_id"]: row["event_count"] for row in read.part.usage.to_pylist()} == {"etl": 2, "7": 1}


def test_a_batch_that_is_read_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    old = event(event_time_ms=APPENDED_AT_MS - DAY_MS - 1)
    some = [message(), None, b"[]", b"no JSON", message(client_id=7), array(event(), old), UNREADABLE]
    values = [*some, message(user="bob"), *some, array(event(), event(user="bob")), None]
    whole = read_small_batch(fetched(values), RULES)
    for size_bytes in (1, 50, 200):
        monkeypatch.setattr(small_batch, "BYTES_AT_ONCE", size_bytes)
        read = read_small_batch(fetched(values), RULES)
        order = [("user", "ascending"), ("client_id", "ascending")]
        assert read.part.usage.sort_by(order).equals(whole.part.usage.sort_by(order))
        assert read.part.dead_letters.equals(whole.part.dead_letters)
        assert (read.part.ignored_count, list(read.left)) == (whole.part.ignored_count, list(whole.left))


def test_an_empty_batch_has_empty_tables() -> None:
    read = read_small_batch(fetched([]), RULES)
    part = read.part
    assert (part.usage.num_rows, part.dead_letters.num_rows, part.ignored_count, list(read.left)) == (0, 0, 0, [])


def array_of(commas: int) -> bytes:
    return b"[" + b"," * commas + b"]"


@pytest.mark.parametrize(
    ("values", "is_read"),
    [
        ([array_of(250_000)] * 2, True),
        ([array_of(250_000), array_of(250_001)], False),
        ([b"{" + b"," * 500_001 + b"}"], True),  # an object is one element
        ([b" " * 33_554_431 + b"7"] * 2, True),
        ([b" " * 33_554_431 + b"7", b" " * 33_554_432 + b"7"], False),
        ([b"x" * 67_108_864, b"x"], True),  # no JSON at first sight
    ],
)
def test_more_than_the_driver_reads_quickly_is_left_to_spark_all_together(
    values: list[bytes | None], is_read: bool
) -> None:
    read = read_small_batch(fetched([message(), *values]), RULES)
    assert len(read.left) == (0 if is_read else len(values))
    assert read.part.dead_letters.num_rows == (len(values) if is_read else 0)
    assert read.part.usage.num_rows == 1
