"""Messages that nobody should send: each is read as the model reads it, and as the executors read it."""

from collections.abc import Callable
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.stream import fuzz
from tests.pipeline.stream.fuzz_corpus import append_times, beyond, comparable, large_messages, messages
from tests.pipeline.stream.messages import APPENDED_AT_MS, RULES, array, collect_twice, event, raw_frame, read

pytestmark = pytest.mark.long

KINDS = pytest.mark.parametrize("kind", [comparable, beyond])
Kind = Callable[[Random], bytes | None]


def test_measures_far_below_zero_do_not_overflow_a_sum() -> None:
    batch = read(array(*[event(produced_bytes=-(2**63), io_time_ns=-(2**63))] * 3, event()))
    assert (batch.good_count, batch.dead_count) == (1, 3)


@KINDS
def test_any_messages_are_read_as_the_model_reads_them(kind: Kind) -> None:
    tally = fuzz.Tally()
    fuzz.run_chunk(messages(11, 10_000, kind), append_times(11, 10_000), kind.__name__, tally)
    assert tally.faults == []
    assert min(tally.outcomes[name] for name in ("good", "dead")) > 500


def test_large_messages_are_read_as_the_model_reads_them() -> None:
    tally, values = fuzz.Tally(), large_messages(13, size_bytes=131_072)
    fuzz.run_chunk(values, [APPENDED_AT_MS] * len(values), "large", tally)
    assert tally.faults == []


@pytest.mark.spark
@KINDS
def test_any_messages_are_read_on_the_driver_as_on_the_executors(spark: SparkSession, kind: Kind) -> None:
    collect_twice(raw_frame(spark, messages(14, 1_500, kind), append_times(14, 1_500)), RULES)
