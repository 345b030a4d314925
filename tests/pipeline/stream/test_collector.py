import json

import pytest
from pyspark.sql import SparkSession

from pipeline.stream.reading.collect import Collector
from tests.pipeline.stream.messages import RULES, message, raw_frame

pytestmark = pytest.mark.spark


def test_a_batch_is_for_one_task_while_its_messages_hold_few_events(spark: SparkSession) -> None:
    collector = Collector(RULES, 100)
    assert not collector.is_small(1), "nothing is known of the first batch"
    collector(raw_frame(spark, [message(), message()]), 2)
    assert [collector.is_small(count) for count in (None, 0, 10_000, 10_001)] == [False, True, True, False]
    array = json.dumps([json.loads(message())] * 100).encode()
    collector(raw_frame(spark, [array, array]), 2)
    assert [collector.is_small(count) for count in (100, 101)] == [True, False]


def test_one_task_and_many_collect_the_same(spark: SparkSession) -> None:
    frame = raw_frame(spark, [message(user=f"u{number % 7}") for number in range(50)] + [b"broken", None])
    collector = Collector(RULES, 100)
    wide, narrow = collector(frame, None), collector(frame, 52)
    assert not collector.is_small(None)
    order = [("user", "ascending")]
    assert wide.usage.sort_by(order).equals(narrow.usage.sort_by(order))
    assert wide.dead_letters.equals(narrow.dead_letters)
    assert (wide.good_count, wide.dead_count, wide.ignored_count) == (50, 1, 1)


def test_a_message_of_junk_is_counted_whole_and_leaves_a_few_dead_letters(spark: SparkSession) -> None:
    junk = json.dumps([7] * 5_000 + [json.loads(message())]).encode()
    batch = Collector(RULES, 3)(raw_frame(spark, [junk, b"broken"]), 2)
    assert (batch.good_count, batch.dead_count) == (1, 5_001)
    assert batch.dead_letters["element_index"].to_pylist() == [0, 1, 2, None]
    assert batch.dead_letters["cause"].to_pylist()[2].endswith("; 4997 more refused elements, up to element 4999")
