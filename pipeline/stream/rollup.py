"""The roll-up of `usage` to one row a second and client, as a stream of its own beside the decisions.

A second is written when the watermark has passed it: `LATENESS_MS` after the newest usage that the batch before had
read, so two to three intervals after it happened. Usage that comes later than `LATENESS_MS` is in `usage`, in rate or
bucket, and not in the roll-up; the log says how many rows that were. Each second is written once, whatever is killed:
state, offsets and the number of the last commit are Spark's.
"""

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery as SparkQuery

from pipeline.stream.query import stop_between_batches
from pipeline.tables.layout import TABLES, table_uri
from pipeline.tables.maintenance import clean, compact, trim
from pipeline.tables.newest import newest_value

log = logging.getLogger(__name__)

LATENESS_MS: Final = 60_000
KEPT_MS: Final = 7 * 86_400_000

_SECOND: Final = "usage_by_second"
_POOL: Final = "roll-up"
_CLIENT: Final = ("cluster", "broker_id", "user", "client_id")
_SUMS: Final = (
    "produced_bytes",
    "fetched_bytes",
    "io_time_ns",
    "network_time_ns",
    "exempt_time_ns",
    "request_count",
)
_POLL_SECONDS: Final = 5.0
_FIRST_CLEANING_SECONDS: Final = 600.0
_CLEANING_SECONDS: Final = 21_600.0


@dataclass(frozen=True, slots=True)
class RollUpPlan:
    """What the stream needs to know.

    Attributes:
        root: Of the tables.
        job: Names the query, `<job>-rollup-second`.
        checkpoint: The job's; the roll-up's is `<checkpoint>-rollup-second`.
        interval_ms: It reads what is new this often.
    """

    root: str
    job: str
    checkpoint: str
    interval_ms: int


def by_second(usage: DataFrame) -> DataFrame:
    """Rows of `usage` as rows of `usage_by_second`; a stream needs a watermark on `sample_start` before.

    A sum is null where all of its values are.
    """
    second_ms = F.unix_millis(F.col("second.start"))
    sums = [F.sum(name).alias(name) for name in _SUMS]
    return (
        usage.groupBy(F.window("sample_start", "1 second").alias("second"), *_CLIENT)
        .agg(*sums, F.max("last_event_ms").alias("last_event_ms"))
        .withColumns(
            {
                "second_start_ms": second_ms,
                "second_start": F.col("second.start"),
                "date": F.to_date(F.col("second.start")),
            }
        )
        .select(*TABLES[_SECOND].model.model_fields)
    )


class UsageBySecond:
    """The stream, started again when it fails: it must never end the decisions, nor slow them down.

    Its tasks run in a scheduler pool of their own, so that those of a micro-batch need not queue up behind them.

    Args:
        spark: The job's session.
        plan: Tables, names and interval.
        delay_seconds: How long it leaves the machine to the start of the job.
    """

    def __init__(self, spark: SparkSession, plan: RollUpPlan, delay_seconds: float = 0.0) -> None:
        self._spark = spark
        self._plan = plan
        self._query: SparkQuery | None = None
        self._last_batch = -1
        self._read_until_ms = 0
        self._begin_at = time.monotonic() + delay_seconds
        self._clean_at = time.monotonic() + _FIRST_CLEANING_SECONDS

    def usage_read_until_ms(self) -> int:
        """Usage evaluated before this instant has been read, and is in the table or in the stream's own state.

        0 until the first batch of this process: nothing is known then.
        """
        return self._read_until_ms

    def step(self) -> float:
        """Start it, watch it, start it again; returns the seconds to rest. Raises nothing."""
        waits_seconds = self._begin_at - time.monotonic()
        if waits_seconds > 0:
            return min(waits_seconds, _POLL_SECONDS)
        try:
            if self._query is None:
                self._query = self._started()
            failure = self._query.exception() if not self._query.isActive else None
            self._observe(self._query)
            if failure is not None or not self._query.isActive:
                self._query = None
                log.warning("the roll-up by second ended and is started again: %s", _first_line(failure))
                return self._plan.interval_ms / 1000
            if time.monotonic() >= self._clean_at:
                self._clean_at = time.monotonic() + _CLEANING_SECONDS
                self.clean(time.time_ns() // 1_000_000)
        except Exception as exc:  # whatever it is: a roll-up that fails is no reason to stop throttling
            self._abandon()
            log.warning("the roll-up by second failed and is tried again: %s", _first_line(exc))
            return self._plan.interval_ms / 1000
        return _POLL_SECONDS

    def stop(self) -> None:
        """Stop it between two of its batches."""
        if self._query is not None:
            stop_between_batches(self._query, timeout_seconds=10)

    def _abandon(self) -> None:
        """Give the stream up, running or not: a second one of its name would be refused."""
        query, self._query = self._query, None
        if query is not None:
            with suppress(Exception):
                query.stop()

    def clean(self, now_ms: int) -> None:
        """Delete seconds that are too old, put small files together, remove what nothing refers to.

        The stream stands still meanwhile: on a local disk Spark and delta-rs do not see each other's commits in time.
        """
        self.stop()
        self._query = None
        uri = table_uri(self._plan.root, _SECOND)
        trim(uri, "second_start_ms", now_ms - KEPT_MS)
        compact(uri)
        clean(uri)

    def _started(self) -> SparkQuery:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", _POOL)
        try:
            return (
                by_second(self._watched())
                .repartition(1)
                .writeStream.format("delta")
                .outputMode("append")
                .queryName(f"{self._plan.job}-rollup-second")
                .option("checkpointLocation", f"{self._plan.checkpoint}-rollup-second")
                .trigger(processingTime=f"{self._plan.interval_ms} milliseconds")
                .start(table_uri(self._plan.root, _SECOND))
            )
        finally:
            context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]

    def _watched(self) -> DataFrame:
        """New rows of `usage`, with the watermark, and with a note of how far they go."""
        return (
            self._spark.readStream.format("delta")
            .name("usage")
            # Trimming rewrites files; their rows were read when they came.
            .option("skipChangeCommits", True)
            # In one batch, however long it was away: a second batch would find most of the rest too late.
            .option("maxFilesPerTrigger", 1_000_000)
            .option("failOnDataLoss", False)
            .load(table_uri(self._plan.root, "usage"))
            # Seconds up to the newest written one are over. Under this checkpoint the watermark drops them all the
            # same; a new checkpoint, whose first batch is the whole table, would count them a second time.
            .where(F.col("sample_start_ms") >= self._next_second_ms())
            .observe("read", F.max("evaluated_at_ms").alias("newest_ms"))
            .withWatermark("sample_start", f"{LATENESS_MS} milliseconds")
        )

    def _next_second_ms(self) -> int:
        newest_ms = newest_value(table_uri(self._plan.root, _SECOND), "second_start_ms")
        return 0 if newest_ms is None else newest_ms + 1_000

    def _observe(self, query: SparkQuery) -> None:
        progress = query.lastProgress
        if progress is None or progress["batchId"] == self._last_batch:
            return
        self._last_batch = progress["batchId"]
        newest_ms = _newest_ms(progress)
        if newest_ms is not None:
            self._read_until_ms = max(self._read_until_ms, newest_ms)
        dropped = sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"])
        if dropped:
            log.warning("%d sums came more than %d s late and are not in the roll-up", dropped, LATENESS_MS // 1000)


def _newest_ms(progress: Any) -> int | None:
    noted = progress["observedMetrics"].get("read") if progress["observedMetrics"] else None
    newest_ms = None if noted is None else noted["newest_ms"]
    return None if newest_ms is None else int(newest_ms)


def _first_line(error: BaseException | None) -> str:
    return "it was stopped" if error is None else str(error).strip().partition("\n")[0]
