"""The streaming query over the usage topic: its source, start and watch, its batches, and its stop between two of them.

**A batch** is collected with the one reader of usage, `usage_reader`. For some thousand events a plan of Spark costs
more than the events. So of a small batch the driver fetches the messages as they are, and reads them itself. The
messages of a large one are read where Spark has them: by the same function, on all cores of the executors. Only sums,
counts and dead letters come back.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from threading import Event
from typing import Any, Final
from weakref import WeakMethod

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery as SparkQuery

from pipeline.errors import QueryFailed, Unreachable, first_line
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

log = logging.getLogger(__name__)

RAW_COLUMNS: Final = ("value", "partition", "offset", "timestamp")
"""The fields of a Kafka record that are read: BINARY, INT, BIGINT, TIMESTAMP. Each takes time for every record."""

# A consumer at the end of the log asks for more at once, and the broker keeps that fetch for 500 ms by default. The
# next batch uses the same consumer and would have to wait for that answer first.
# A micro-batch only asks for what is there already, so nothing is gained by waiting.
_FETCH_WAIT_MS = 1
# The system's choice, which grows with what comes. Kafka's own, 64 KB, takes more CPU time for a large backlog, and
# limits what a distant broker can send.
_RECEIVE_BUFFER_BYTES: Final = -1
# After each poll of its consumer, Spark asks the broker where the partition begins and ends: by default two requests
# for 500 records. So a poll takes all that was fetched, 1 MB of a partition.
RECORDS_OF_A_POLL: Final = 1_000_000
# A broker that is cut off never answers, and its successor is asked only then: after 30 s by default, and 10 s for a
# connection that is never made.
_PATIENCE: Final = {"kafka.request.timeout.ms": 5_000, "kafka.socket.connection.setup.timeout.ms": 2_000}
# A busy partition is read by several tasks of a large batch. Those of a small batch are coalesced.
_MOST_MESSAGES_OF_A_TASK: Final = 100_000
# Its ids are new in each life of the query, so the same failure would look like another one.
_NAMES_OF_QUERY: Final = re.compile(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")
_BATCH_BYTES: Final = 64_000_000
_BYTES_PER_MESSAGE: Final = 200.0  # of a topic that is empty
_POLL_SECONDS = 0.02
_AGAIN_SECONDS = 0.5


def most_messages(newest: Sequence[bytes], most: int) -> int:
    """How many messages a micro-batch takes at most: about 64 MB, and at least one.

    The default heap holds their usage even if each event is of another client.

    * `newest`: The values of some messages; without one, a message counts as 200 bytes.
    * `most`: The most messages of any batch, > 0.
    """
    size_bytes = median(map(len, newest)) if newest else _BYTES_PER_MESSAGE
    return min(max(int(_BATCH_BYTES / max(size_bytes, 1)), 1), most)


def read_usage_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    *,
    client_options: Mapping[str, str],
    starting_offsets: str,
    max_offsets_per_trigger: int,
) -> DataFrame:
    """Subscribe to the usage topic: a streaming frame of `RAW_COLUMNS`, without messages of aborted transactions.

    From Spark 4.2 on the source has a name, so that a checkpoint stays valid when the query's sources change.
    `timestamp` is the broker's append time if the topic has `message.timestamp.type=LogAppendTime`.

    * `client_options`: entries of client.properties (`security.protocol`, …), without Spark's `kafka.` prefix.
    * `starting_offsets`: `earliest`, `latest`, or JSON `{"topic": {"partition": offset}}`; used only while there is no
      checkpoint.
    * `max_offsets_per_trigger`: largest number of messages of one micro-batch, all partitions together, > 0.
    """
    reader = spark.readStream.format("kafka").option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
    reader = reader.option("kafka.receive.buffer.bytes", _RECEIVE_BUFFER_BYTES)
    reader = reader.option("kafka.max.poll.records", RECORDS_OF_A_POLL).options(**_PATIENCE)
    if hasattr(reader, "name"):  # since Spark 4.2
        reader = reader.name("usage")
    for key, value in client_options.items():
        reader = reader.option(f"kafka.{key}", value)
    return (
        reader.option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", starting_offsets)
        .option("maxOffsetsPerTrigger", max_offsets_per_trigger)
        .option("maxRecordsPerPartition", _MOST_MESSAGES_OF_A_TASK)
        # If usage were deleted before it was read, the decisions could not be reproduced.
        .option("failOnDataLoss", True)
        .load()
        .select(*RAW_COLUMNS)
    )


RunBatch = Callable[[DataFrame, int], None]


class _QueryEnds(Exception):
    """Raised to end the query. It carries no message: the cause, if a batch has failed, is `UsageQuery.failure`."""


class UsageQuery:
    """One run of the query over the usage topic.

    Args:
        run_batch: Called with each micro-batch. An exception that it raises ends the query.
        trigger_ms: A micro-batch starts at most this often.
    """

    def __init__(
        self,
        source: DataFrame,
        run_batch: Callable[[DataFrame, int], None],
        name: str,
        checkpoint: str,
        trigger_ms: int,
    ) -> None:
        self._source = source
        self._run_batch = run_batch
        self._name, self._checkpoint, self._trigger_ms = name, checkpoint, trigger_ms
        self._stopping = Event()
        self._giving_up = Event()
        self._failure: BaseException | None = None
        self._query: SparkQuery | None = None

    def start(self) -> None:
        """Start the query. Batches run on one of Spark's threads."""
        self._query = (
            self._source.writeStream.queryName(self._name)
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime=f"{self._trigger_ms} milliseconds")
            .foreachBatch(self._held_weakly())
            .start()
        )

    def is_waiting(self) -> bool:
        """Whether the query rests between two triggers: it has asked for new messages and done what there was."""
        if self._query is None:
            return False
        with suppress(Py4JError, OSError):  # the JVM has ended
            return bool(self._query.isActive and not self._query.status["isTriggerActive"])
        return False

    def failure(self) -> BaseException | None:
        """What ended the query: a batch's exception or Spark's own error. None while it runs or if it was stopped."""
        if self._failure is not None:
            return self._failure
        if self._query is None or self._query.isActive or self._stopping.is_set():
            return None
        error = self._query.exception()
        if error is None:
            return QueryFailed("it ended without an error")
        failed = QueryFailed(_NAMES_OF_QUERY.sub("", first_line(error)))
        failed.__cause__ = error
        return failed

    def stop(self, patience_seconds: float = 2, timeout_seconds: float = 20) -> None:
        """Stop between two batches. A batch that has begun is finished; a batch that begins now does nothing.

        If the batch under way takes longer than `patience_seconds` (with a backlog it does), its Spark jobs are
        cancelled and the next start repeats the batch. This is safe: those jobs only read, and nothing of a batch is
        written before all of it is read. Only if this does not end the batch within `timeout_seconds` either is the
        stream's thread interrupted, wherever it is. No usage is lost by that.
        """
        self._stopping.set()
        if self._query is not None:
            # If the JVM has ended, so has the query.
            with suppress(Py4JError, OSError):
                self._end(self._query, patience_seconds, timeout_seconds)

    def _end(self, query: SparkQuery, patience_seconds: float, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        is_idle = _is_idle_within(query, patience_seconds)
        if not is_idle:
            log.info("the batch under way is cancelled; the next start repeats it")
        while not is_idle and time.monotonic() < deadline:
            self._giving_up.set()
            # Repeated, because this cancels only the jobs that run now, and a batch may be between two jobs.
            self._source.sparkSession.sparkContext.cancelJobGroup(str(query.runId))
            is_idle = _is_idle_within(query, _AGAIN_SECONDS)
        if query.isActive:
            query.stop()

    def _held_weakly(self) -> RunBatch:
        """The function that Spark calls. It holds this object only weakly.

        The JVM keeps this function, and any exception it has raised with its stack frames, until the JVM happens to
        collect the ended query as garbage. That must not keep the whole job in memory.
        """
        run_guarded = WeakMethod(self._run_guarded)

        def call(frame: DataFrame, batch_id: int) -> None:
            run = run_guarded()
            is_done = run is not None and run(frame, batch_id)
            del run
            if not is_done:
                raise _QueryEnds

        return call

    def _run_guarded(self, frame: DataFrame, batch_id: int) -> bool:
        if self._stopping.is_set():
            return False
        try:
            self._run_batch(frame, batch_id)
        except Exception as exc:
            log.debug("batch %d failed", batch_id, exc_info=True)
            if not self._giving_up.is_set():
                self._failure = exc
            return False
        return True


def _is_idle_within(query: SparkQuery, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while query.isActive and query.status["isTriggerActive"]:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


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
    """Read the messages in as many tasks as there are cores, and no more.

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
