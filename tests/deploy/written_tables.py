"""Tables that the job's own engine, outbox, writers and roll-ups wrote, in a night and a day of a small shop."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.clock import wall_ms
from pipeline.settings.model import EngineSettings
from pipeline.stream.collect import Collector
from pipeline.stream.job_tables import WRITTEN_BY_THE_JOB
from pipeline.stream.usage_columns import CollectedBatch
from pipeline.tables.address import table_uri
from pipeline.tables.reading import read_table
from pipeline.tables.upkeep import clean, compact
from tests.pipeline.dashboard.lived_tables import LivedTables, Sender
from tests.pipeline.dashboard.shop import quota
from tests.pipeline.stream.messages import RULES, raw_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]

SCHEMA: Final = "kquota_views"
DAY_MS: Final = 86_400_000
STEP_MS: Final = 5_000

# All eight levels hold for somebody. To an empty client-id the levels that name a default one do not apply.
QUOTAS: Final = (
    quota("alice", "etl", producer_byte_rate=100_000.0, owner="data-platform", note="nightly loads"),
    quota("alice", "", producer_byte_rate=900_000.0, consumer_byte_rate=50_000.0, owner="alice's team"),
    quota("search", "<default>", consumer_byte_rate=100_000.0, request_percentage=20.0, owner="search"),
    quota("vip", "", mode="exempt", owner="board"),
    quota("ml", "", consumer_byte_rate=50_000.0, mode="shadow", owner="ml"),
    quota("", "shared", request_percentage=30.0),
    quota("<default>", "legacy", producer_byte_rate=40_000.0),
    quota("<default>", "<default>", consumer_byte_rate=1e9),
    quota("gone", "", producer_byte_rate=1.0, note="until May"),
    quota("<default>", "", producer_byte_rate=120_000.0, owner="platform"),
    quota("", "<default>", request_percentage=50.0),
)


def _steady(**rates: float) -> Any:
    return lambda _second: rates


def _by_day(second: float) -> Mapping[str, float]:
    """Quiet in the night; from the second half on far beyond any quota."""
    return {"produced_bytes": 1_000 if second < _NIGHT_SECONDS + 20 else 60_000_000}


_NIGHT_SECONDS: Final = 150
_DAY_SECONDS: Final = 150

SENDERS: Final = (
    Sender("alice", "etl", _steady(produced_bytes=300_000)),
    Sender("alice", "notebook", _steady(produced_bytes=10_000, fetched_bytes=80_000)),
    Sender("alice", "", _steady(fetched_bytes=5_000), broker_id="2"),
    Sender("search", "indexer", _steady(fetched_bytes=60_000, io_time_ns=40_000_000, network_time_ns=30_000_000)),
    Sender("search", "", _steady(fetched_bytes=2_000)),
    Sender("vip", "etl", _steady(produced_bytes=900_000)),
    Sender("ml", "train", _steady(fetched_bytes=90_000)),
    Sender("bob", "shared", _steady(produced_bytes=30_000)),
    Sender("carol", "legacy", _steady(produced_bytes=30_000), broker_id="2"),
    Sender("hog", "bulk", _by_day),
)


class WrittenTables(LivedTables):
    """Such tables; messages that are no usage are read by the job's own reading in Spark, and so get its causes.

    Throttles have no cap, so that one of them still runs when the tables are read.

    Args:
        folder: For the tables.
        spark: Reads the refused messages.
    """

    def __init__(self, folder: Path, spark: "SparkSession") -> None:
        self._spark = spark
        today_ms = wall_ms() // 60_000 * 60_000 - _DAY_SECONDS * 1_000
        caps = EngineSettings(producer_byte_rate_cap="none")
        super().__init__(folder, QUOTAS, SENDERS, today_ms - DAY_MS, caps, at_once=True)
        self._collect = self.job._collect
        self.job.micro_batch._collect = self._collected  # type: ignore[assignment]
        self._collector = Collector(RULES)
        self.live(20, STEP_MS)
        self.send_garbage()
        self.job.send(b"\xff\xfe is no text")
        self.live(60, STEP_MS)
        self.edit([quota("alice", "etl", producer_byte_rate=250_000.0, owner="data-platform")], "month end")
        self.live(_NIGHT_SECONDS - 80, STEP_MS)
        self.roll_up()
        self.job.clock.advance(today_ms - self.now_ms)
        self.live(_DAY_SECONDS - 20, STEP_MS)
        self.edit([quota("bob", "", producer_byte_rate=500_000.0)], "new team", without=[("gone", "")])
        self.live(20, STEP_MS)
        self.roll_up()
        for name in WRITTEN_BY_THE_JOB:
            compact(table_uri(self.root, name), many_files=1)
            clean(table_uri(self.root, name))

    def _collected(self, frame: Any, count: int | None) -> CollectedBatch:
        messages = self.job.messages[self.job.spark.span(frame.batch_id)]
        if all(message.value and message.value.startswith(b"[") for message in messages):
            return self._collect(frame, count)
        values = [message.value for message in messages]
        return self._collector(raw_frame(self._spark, values, messages[0].appended_at_ms), len(values))


@dataclass
class Written:
    """The tables, and the views over them."""

    spark: "SparkSession"
    tables: WrittenTables
    _answers: dict[str, list[Row]] = field(default_factory=dict)

    def sql(self, query: str) -> list[Row]:
        """What Spark answers; names without a schema are those of the views."""
        self.spark.sql(f"USE {SCHEMA}")
        try:
            return [row.asDict() for row in self.spark.sql(query).collect()]
        finally:
            self.spark.sql("USE default")

    def answer(self, query: str) -> list[Row]:
        """The same, asked once: for what does not depend on the time."""
        if query not in self._answers:
            self._answers[query] = self.sql(query)
        return self._answers[query]

    def view(self, name: str) -> list[Row]:
        """All rows of a view, read once."""
        return self.answer(f"SELECT * FROM {name}")  # noqa: S608

    def rows(self, name: str) -> list[Row]:
        """All rows of a table, without Spark."""
        found: list[Row] = read_table(table_uri(self.tables.root, name)).to_pylist()
        return found
