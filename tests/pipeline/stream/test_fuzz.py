"""Twenty thousand messages that nobody should send: none ends the stream, each is accounted for."""

import json
from collections.abc import Callable
from random import Random

import pytest
from pyspark.sql import SparkSession

from pipeline.stream.reading.collect import collect
from tests.pipeline.stream import fuzz
from tests.pipeline.stream.fuzz_corpus import append_times, beyond, comparable, large_messages, messages
from tests.pipeline.stream.messages import RULES, event, raw_frame

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_measures_far_below_zero_do_not_overflow_a_sum(spark: SparkSession) -> None:
    elements = [event(produced_bytes=-(2**63), io_time_ns=-(2**63))] * 3
    batch = collect(raw_frame(spark, [json.dumps([*elements, event()]).encode()]), RULES)
    assert (batch.good_count, batch.dead_count) == (1, 3)


def test_messages_that_python_can_read_are_read_as_python_reads_them(spark: SparkSession) -> None:
    tally = fuzz.Tally()
    fuzz.run_comparable(spark, seed=11, count=10_000, tally=tally)
    assert tally.faults == []
    assert min(tally.outcomes[name] for name in ("good", "dead", "ignored")) > 500


def test_all_others_are_accounted_for(spark: SparkSession) -> None:
    tally = fuzz.Tally()
    fuzz.run_beyond(spark, messages(12, 10_000, beyond), "seed 12", tally)
    assert tally.faults == []
    assert min(tally.outcomes[name] for name in ("good", "dead")) > 500


def test_large_messages_are_accounted_for(spark: SparkSession) -> None:
    tally = fuzz.Tally()
    fuzz.run_beyond(spark, large_messages(13, size_bytes=131_072), "large", tally)
    assert tally.faults == []


@pytest.mark.parametrize("kind", [comparable, beyond])
def test_refused_messages_are_the_same_on_the_driver_as_in_spark(
    spark: SparkSession, kind: Callable[[Random], bytes | None]
) -> None:
    tally, count = fuzz.Tally(), fuzz.ON_DRIVER_MESSAGES
    fuzz.compare_paths(spark, messages(14, count, kind), append_times(14, count), kind.__name__, tally)
    assert tally.faults == []
