"""The streaming query over the usage topic: its source, its start, its watch, and its stop between two batches."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from threading import Event
from typing import Final
from weakref import WeakMethod

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery as SparkQuery

from pipeline.errors import QueryFailed, first_line

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
    reader = reader.option("kafka.max.poll.records", RECORDS_OF_A_POLL)
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
