"""The second reading reads only marked messages."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.stream.reading.second_reading import decode_again
from tests.pipeline.stream.messages import PARTITION, raw_frame

pytestmark = pytest.mark.spark


def test_messages_that_are_not_marked_are_not_parsed(spark: SparkSession) -> None:
    marked = pa.table({"partition": pa.array([PARTITION], pa.int32()), "offset": [0], "unread": [True]})
    # Cached, or the optimizer would evaluate a filter on the messages at once, and it could not be seen.
    raw = raw_frame(spark, [b"no JSON", b"{}"]).cache()
    read_again: Any = decode_again(raw, spark.createDataFrame(marked), 86_400_000)
    plan = read_again._jdf.queryExecution().optimizedPlan().toString()
    raw.unpersist()
    above, join, below = plan.partition("Join Inner")
    assert join
    assert "from_json" in above
    assert "from_json" not in below
