"""A share of the users is collected alike by Spark and on the driver, and the shares together are the whole."""

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from pipeline.stream.reading.collector import Collector
from quota.shares import Share
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    RULES,
    array,
    collect_twice,
    event,
    message,
    packed,
    raw_frame,
    usage,
)

pytestmark = pytest.mark.spark

NAMES = ["alice", "bob", "carol", "dave", "\u00e9", "\U0001f600", "\\", "7"]
VALUES = [
    *[message(user=user) for user in NAMES],
    array(*[event(user=user, throttle_exempt=True, io_time_ns=5) for user in NAMES]),
    array(event(), 7, event(user="bob", client_id=5), event(user="")),
    packed(*[event(user=user) for user in NAMES], event(user="")),
    b'{"event_time_ms": 1700000000500, "user": "\\ud800", "client_id": "x"}',
    message(user=True),
    message(event_time_ms=APPENDED_AT_MS + 7, user="dave"),
    b"no JSON",
    b"[]",
    None,
]


def test_the_shares_of_a_batch_are_the_whole_of_it(spark: SparkSession) -> None:
    raw = raw_frame(spark, VALUES)
    whole = collect_twice(raw, RULES)
    parts = [collect_twice(raw, replace(RULES, share=Share(number, 3))) for number in range(3)]
    together = {key: row for part in parts for key, row in usage(part).items()}
    assert together == usage(whole)
    assert sum(len(usage(part)) for part in parts) == len(together)
    for part in parts:
        assert part.good_count + part.others_count == whole.good_count
        assert part.newest_event_ms == whole.newest_event_ms == APPENDED_AT_MS
        assert part.dead_letters.equals(whole.dead_letters)
    assert all(part.good_count for part in parts)


def test_the_first_share_writes_the_dead_letters_and_no_other(spark: SparkSession) -> None:
    raw = raw_frame(spark, VALUES)
    for number in range(2):
        collector = Collector(replace(RULES, share=Share(number, 2)), 100)
        for message_count in (None, len(VALUES)):
            batch = collector(raw, message_count)
            found = (batch.dead_letters.num_rows, batch.dead_count, batch.ignored_count)
            assert found == ((0, 0, 0) if number else (4, 4, 2))
        # Estimated from the events of all users.
        assert collector._events_per_message > 1.5
