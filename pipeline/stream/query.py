"""The streaming query: started, watched, and stopped where no batch is cut in two."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from weakref import WeakMethod

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery as SparkQuery

from pipeline.stream.errors import QueryFailed

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_AGAIN_SECONDS = 0.5


class _QueryEnds(Exception):
    """Ends the query: it is to stop, or a batch has failed. Carries nothing: what failed is the query's `failure`."""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What Spark needs to know of the query.

    Attributes:
        name: Of the query, in Spark's metrics.
        checkpoint: Its checkpoint folder.
        trigger_ms: A micro-batch starts at most this often.
    """

    name: str
    checkpoint: str
    trigger_ms: int


class UsageQuery:
    """One run of the query over the usage topic.

    Args:
        source: The streaming frame.
        run_batch: What to do with each micro-batch. What it raises ends the query.
        plan: Name, checkpoint and trigger.
    """

    def __init__(self, source: DataFrame, run_batch: Callable[[DataFrame, int], None], plan: QueryPlan) -> None:
        self._source = source
        self._run_batch = run_batch
        self._plan = plan
        self._stopping = Event()
        self._giving_up = Event()
        self._failure: BaseException | None = None
        self._query: SparkQuery | None = None

    def start(self) -> None:
        """Start the query; batches run on a thread of Spark's."""
        self._query = (
            self._source.writeStream.queryName(self._plan.name)
            .option("checkpointLocation", self._plan.checkpoint)
            .trigger(processingTime=f"{self._plan.trigger_ms} milliseconds")
            .foreachBatch(self._held_weakly())
            .start()
        )

    def is_active(self) -> bool:
        """Whether Spark still runs it."""
        return self._query is not None and self._query.isActive

    def failure(self) -> BaseException | None:
        """What ended the query: what a batch raised, or Spark's own error; None if it runs or was stopped."""
        if self._failure is not None:
            return self._failure
        if self._query is None or self._query.isActive or self._stopping.is_set():
            return None
        error = self._query.exception()
        return QueryFailed(_first_line(error)) if error is not None else QueryFailed("it ended without an error")

    def stop(self, patience_seconds: float = 2, timeout_seconds: float = 20) -> None:
        """Stop between two batches. A batch that has begun is finished; one that begins now does nothing.

        One that takes longer, as those of a backlog do, has its Spark jobs cancelled: they read, and nothing of a batch
        is written before all is read (an append by Spark itself is cut short as by a kill). The next start repeats the
        batch. The stream's thread is not interrupted, whatever it waits for, unless even that does not end the batch.

        Args:
            patience_seconds: For a batch under way.
            timeout_seconds: For all of it; then the batch is cut short wherever it is. Nothing is lost by that.
        """
        self._stopping.set()
        if self._query is not None:
            # A JVM that is gone has stopped the query already.
            with suppress(Py4JError, OSError):
                self._end(self._query, patience_seconds, timeout_seconds)

    def _end(self, query: SparkQuery, patience_seconds: float, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        is_idle = _is_idle_within(query, patience_seconds)
        if not is_idle:
            log.info("the batch under way is given up; the next start repeats it")
        while not is_idle and time.monotonic() < deadline:
            self._giving_up.set()
            # Again and again: what is cancelled are the jobs there are, and a batch may be between two of them.
            self._source.sparkSession.sparkContext.cancelJobGroup(str(query.runId))
            is_idle = _is_idle_within(query, _AGAIN_SECONDS)
        if query.isActive:
            query.stop()

    def _held_weakly(self) -> Callable[[DataFrame, int], None]:
        """What Spark calls.

        Its JVM holds it, and what it raised with the frames that did, until it happens to collect the ended query: not
        the whole job as well.
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
        """Run the batch; False if the query ends with it."""
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
    """Wait for the batch under way, so long at most."""
    deadline = time.monotonic() + seconds
    while query.isActive and query.status["isTriggerActive"]:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _first_line(error: StreamingQueryException) -> str:
    return str(error).strip().splitlines()[0]
