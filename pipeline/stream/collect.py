"""Collects one micro-batch after the other with the one reader of usage, `usage_reader`.

For some thousand events a plan of Spark costs more than the events. So of a small batch the driver fetches the messages
as they are, and reads them itself. The messages of a large one are read where Spark has them: by the same function, on
all cores of the executors. Only sums, counts and dead letters come back.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pipeline.errors import Unreachable
from pipeline.stream.query import RAW_COLUMNS
from pipeline.stream.usage_columns import CollectedBatch, ReadingRules, merge_batches
from pipeline.stream.usage_reader import (
    MESSAGE_SCHEMA,
    PART,
    from_partitions,
    from_records,
    read_partition,
    read_usage,
    without_large,
)

EVENTS_OF_DRIVER: Final = 300_000
"""Up to here one core of the driver reads a batch quicker than two of executors: it starts at once."""

# Most messages of a batch, and the largest message that is then fetched. Few sizes: each is a plan that Spark compiles.
_LARGEST_BYTES: Final = (
    (1_000, 131_072),
    (3_000, 43_690),
    (8_000, 16_384),
    (30_000, 4_369),
    (100_000, 1_310),
    (EVENTS_OF_DRIVER, 436),
)
# Of a topic that was empty at the start. If its first messages are larger, the driver leaves them to the executors.
_EVENTS_PER_MESSAGE: Final = 1.0
_BYTES_PER_EVENT: Final = 200.0
# Messages are not all as large as their mean.
_LARGER: Final = 1.25

# Python on an executor is given batches of Arrow: of at most so many bytes, and of at most so many messages.
_ARROW_BYTES: Final = 16_777_216
_ARROW_ROWS: Final = 20_000
_NO_LIMIT: Final = 2_147_483_647  # at this one value Spark does not look at the size

NEEDED_TO_READ: Final = ("msgspec", "numpy", "pyarrow", "pydantic")
"""What the Python of executors must have to read usage. It is machine code, which cannot be imported from a zip."""

_SIZE: Final = "octet_length(value)"
_UNFIT: Final = re.compile(r"No module named '[^']+'|[^\n]*different (minor )?version[^\n]*|Cannot run program [^\n]*")


class Collector:
    """Collects one micro-batch after the other: a small one on the driver, any other on the executors.

    It estimates the next batch from the messages of the last one: how many events they have, and how large they are.
    The first one is estimated from a sample, values of messages.
    """

    def __init__(self, rules: ReadingRules, sample: Sequence[bytes] = ()) -> None:
        self._rules = rules
        self._events_per_message = _EVENTS_PER_MESSAGE
        self._bytes_per_event = _BYTES_PER_EVENT
        if sample:
            places = [{"value": value, "partition": 0, "offset": 0, "appended_at_ms": 0} for value in sample]
            self._learn(read_usage(pa.Table.from_pylist(places, MESSAGE_SCHEMA), rules), len(sample))

    def __call__(self, frame: DataFrame, message_count: int | None) -> CollectedBatch:
        """Collect one batch of so many offsets; None if that is not known."""
        if message_count is not None and self.is_small(message_count):
            batch = collect_on_driver(frame, self._rules, message_count)
        else:
            batch = collect_on_executors(frame, self._rules, self._bytes_per_message)
        if message_count:
            self._learn(batch, message_count)
        return batch

    def _learn(self, batch: CollectedBatch, message_count: int) -> None:
        event_count = batch.good_count + batch.dead_count
        self._events_per_message = event_count / message_count
        self._bytes_per_event = batch.size_bytes / max(event_count, message_count)

    def is_small(self, message_count: int) -> bool:
        """Whether the driver reads a batch of so many messages: not if they hold much, or are large."""
        if message_count * max(self._events_per_message, 1.0) > EVENTS_OF_DRIVER:
            return False
        return self._bytes_per_message * _LARGER <= largest_bytes(message_count)

    @property
    def _bytes_per_message(self) -> float:
        return max(self._events_per_message, 1.0) * self._bytes_per_event


def collect_on_driver(raw: DataFrame, rules: ReadingRules, message_count: int) -> CollectedBatch:
    """Fetch the messages of a batch, `EVENTS_OF_DRIVER` at most, and read them here.

    This is one small Spark job. A second one reads messages that are too large to fetch where they are.

    * `raw`: a static frame with the columns `query.RAW_COLUMNS`, as `foreachBatch` hands it over. It must give the
      same rows each time. A Kafka micro-batch does, or it fails because its offsets are gone.
    """
    most_bytes = largest_bytes(message_count)
    _generate_code(raw, False)
    cut = _task_per_core(raw).selectExpr(*_cut(most_bytes))
    messages, large_count = without_large(from_records(cut.toArrow()), most_bytes)
    small = read_usage(messages, rules)
    return merge_batches([small, _collect_large(raw, rules, most_bytes)]) if large_count else small


def largest_bytes(message_count: int) -> int:
    """The largest message that is fetched with so many others, 300 000 at most. A batch is at most 131 MB."""
    return next(size_bytes for most, size_bytes in _LARGEST_BYTES if message_count <= most)


def collect_on_executors(raw: DataFrame, rules: ReadingRules, usual_bytes: float) -> CollectedBatch:
    """Do what `collect_on_driver` does, with the same result, on all cores; Unreachable if their Python is unfit.

    * `usual_bytes`: the mean size of a message, estimated. A second Spark job reads those of more than 4 to 8 times it.
    """
    most_bytes = 1 << (max(int(usual_bytes), 128).bit_length() + 2)
    # With a limit of bytes Spark adds up the size of the whole batch of Arrow before each row: a tenth of its time.
    _batches_of_arrow(raw, min(_ARROW_ROWS, max(_ARROW_BYTES // most_bytes, 1)), _NO_LIMIT)
    small, large_count = _read_where_they_are(raw.selectExpr(*_cut(most_bytes)), rules, most_bytes)
    return merge_batches([small, _collect_large(raw, rules, most_bytes)]) if large_count else small


def _collect_large(raw: DataFrame, rules: ReadingRules, above_bytes: int) -> CollectedBatch:
    """Read the messages of more than so many bytes on the executors."""
    _batches_of_arrow(raw, _ARROW_ROWS, _ARROW_BYTES // 4)
    return _read_where_they_are(raw.filter(f"{_SIZE} > {above_bytes}"), rules, _NO_LIMIT)[0]


def _cut(most_bytes: int) -> Sequence[str]:
    """The columns of a message; of a large value one byte more than is wanted, which shows that it is large."""
    # substring() copies also what is short enough.
    return f"if({_SIZE} > {most_bytes}, substring(value, 1, {most_bytes + 1}), value) AS value", *RAW_COLUMNS[1:]


def _task_per_core(raw: DataFrame) -> DataFrame:
    """The same messages, in as many tasks as there are cores, and no more.

    A task of a small batch waits for the broker most of its time. Of a large one, a client of several partitions is
    then in fewer of the sums that the driver merges.
    """
    return raw.coalesce(raw.sparkSession.sparkContext.defaultParallelism)


def _generate_code(raw: DataFrame, is_wanted: bool) -> None:
    """Whether Spark writes Java code for the plan and for each partition: half of what the tasks of a small batch take.

    The first time that takes 0.3 s: a start is quicker without.
    """
    raw.sparkSession.conf.set("spark.sql.codegen.wholeStage", is_wanted)
    raw.sparkSession.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if is_wanted else "NO_CODEGEN")


def _batches_of_arrow(raw: DataFrame, most_rows: int, most_bytes: int) -> None:
    raw.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", most_rows)
    raw.sparkSession.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", most_bytes)


def _read_where_they_are(raw: DataFrame, rules: ReadingRules, most_bytes: int) -> tuple[CollectedBatch, int]:
    """Read the messages of at most so many bytes, and count the others."""
    _generate_code(raw, True)
    try:
        read = partial(read_partition, rules=rules, most_bytes=most_bytes)
        rows = _task_per_core(raw).mapInArrow(read, PART).toArrow()
    except (Py4JJavaError, PySparkException) as exc:
        if unfit := _executor_python_unfit(raw.sparkSession.sparkContext, exc):
            raise unfit from exc
        raise
    return from_partitions(rows)


def _executor_python_unfit(context: Any, failure: Exception) -> Unreachable | None:
    """The error of executors whose Python lacks a package, has another version, or is not there; None if it fits."""
    found = _UNFIT.search(str(failure))
    if found is None:
        return None
    return Unreachable(
        f"the executors of {context.master} cannot run this job's Python, '{context.pythonExec}': {found[0]}",
        f"give every worker that Python in the driver's version, with {', '.join(NEEDED_TO_READ)} (the easiest is to "
        "install kafka-quota-pipeline for it), and name it in PYSPARK_PYTHON",
    )
