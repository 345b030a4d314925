import json

import pytest
from pyspark.sql import SparkSession

from pipeline.stream.reading.collect import collect_on_driver, largest_bytes
from pipeline.stream.reading.collector import Collector
from pipeline.stream.reading.small_batch import fetch, read_small_batch
from tests.pipeline.stream.messages import RULES, message, raw_frame

pytestmark = pytest.mark.spark


def test_the_driver_reads_a_batch_while_its_messages_hold_few_events(spark: SparkSession) -> None:
    collector = Collector(RULES, 100)
    assert [collector.is_small(count) for count in (None, 0, 3_000, 3_001)] == [False, True, True, False], (
        "nothing seen yet"
    )
    collector(raw_frame(spark, [message(), message()]), 2)
    assert [collector.is_small(count) for count in (None, 0, 300_000, 300_001)] == [False, True, True, False]
    array = json.dumps([json.loads(message())] * 100).encode()
    collector(raw_frame(spark, [array, array]), 2)
    assert [collector.is_small(count) for count in (3_000, 3_001)] == [True, False]


@pytest.mark.parametrize(
    ("message_count", "size_bytes"),
    [
        (0, 131_072),
        (1_000, 131_072),
        (1_001, 43_690),
        (3_000, 43_690),
        (3_001, 16_384),
        (8_000, 16_384),
        (30_000, 4_369),
        (100_000, 1_310),
        (100_001, 436),
        (300_000, 436),
    ],
)
def test_of_many_messages_only_smaller_ones_are_fetched(message_count: int, size_bytes: int) -> None:
    assert largest_bytes(message_count) == size_bytes


def test_messages_that_the_driver_would_not_fetch_are_read_by_spark_at_once(spark: SparkSession) -> None:
    collector = Collector(RULES, 100)
    fits = message() + b" " * (13_107 - len(message()))  # 16 384 bytes, less what some are larger than their mean
    collector(raw_frame(spark, [fits] * 2), 2)
    assert [collector.is_small(count) for count in (3_000, 3_001, 8_000, 8_001)] == [True, True, True, False]
    collector(raw_frame(spark, [fits, fits + b" "]), 2)
    assert [collector.is_small(count) for count in (3_000, 3_001)] == [True, False]


def test_a_message_too_large_to_fetch_is_read_by_spark(spark: SparkSession) -> None:
    fits = message() + b" " * (largest_bytes(0) - len(message()))
    frame = raw_frame(spark, [fits, fits + b" ", message(), fits + b"x"])
    fetched = fetch(frame, len(fits))
    assert [value is None for value in fetched["value"].to_pylist()] == [False, True, False, True]
    assert [one.offset for one in read_small_batch(fetched, RULES).left] == [1, 3]
    batch = collect_on_driver(frame, RULES, 4)
    assert (batch.good_count, batch.dead_count) == (3, 1)


def test_a_message_of_junk_is_counted_whole_and_leaves_a_few_dead_letters(spark: SparkSession) -> None:
    junk = json.dumps([7] * 5_000 + [json.loads(message())]).encode()
    batch = Collector(RULES, 3)(raw_frame(spark, [junk, b"broken"]), 2)
    assert (batch.good_count, batch.dead_count) == (1, 5_001)
    assert batch.dead_letters["element_index"].to_pylist() == [0, 1, 2, None]
    assert batch.dead_letters["cause"].to_pylist()[2].endswith("; 4997 more refused elements, up to element 4999")
