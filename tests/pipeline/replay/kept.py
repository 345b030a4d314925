"""A job without Spark on real tables: its engine and its writers, on a clock set by hand."""

from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from pipeline.clock import Moment
from pipeline.settings.model import EngineSettings, Settings
from pipeline.stream.job_tables import BatchFacts, DriverEpoch, JobTables, RatesTable
from pipeline.stream.recovery import rebuild
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.throttle.assembly import new_engine
from pipeline.throttle.decider import Decider
from quota.decisions import Evaluation
from schemas.arrow import conform
from schemas.rows import DecisionRow
from schemas.usage import UsageBySecondRow, UsageRow
from tests.fakes.clock import ManualClock
from tests.quota.factories import table

AUDIT: Final = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="more for the nightly run")
QUERY: Final = "0000-query"
_BATCHES_A_COMMIT: Final = 50


class KeptJob:
    """Decides batches as they are given and keeps them; many batches share a commit, which changes no row."""

    def __init__(self, root: str, *quotas: QuotaChange) -> None:
        create_missing(root)
        self.root = root
        self.clock = ManualClock()
        self.quota_table = QuotaTable(root)
        self.quota_table.alter(quotas, AUDIT)
        self.quotas = QuotaSource(self.quota_table)
        self.batch_id = -1
        self.decided: list[dict[str, Any]] = []
        self.start(EngineSettings())

    def start(self, settings: EngineSettings) -> None:
        """A new process: what is not in the tables is gone."""
        self._settings = settings
        self._usage: list[pa.Table] = []
        self._decisions: list[pa.Table] = []
        self._facts: list[BatchFacts] = []
        self._tables = JobTables(lambda name: DeltaRsWriter(table_uri(self.root, name), "job"), "job", "test", 60_000)
        DriverEpoch().raise_in(self._tables.writers, "job")
        self._decider = Decider(new_engine(settings, "cluster"), "test")
        rebuild(self._tables, self.quotas, self._decider, self.clock, Settings(engine=settings))

    def edit(self, *changes: QuotaChange) -> None:
        """An operator edits the quotas; the next batch decides by them."""
        self.quota_table.alter(changes, AUDIT)
        self.quotas.poll()

    def batch(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One micro-batch of usage rows (`tests.quota.factories.usage_row`); its decisions."""
        self.batch_id += 1
        newest_ms = max((row["last_event_ms"] for row in rows), default=0)
        snapshot = self.quotas.pin()
        at_ms = max(newest_ms, self._decider.last.evaluated_at_ms)
        evaluation = Evaluation(QUERY, self.batch_id, at_ms, -1).under(*snapshot.versions)
        usage = table(rows)
        self._tables.sensor_state.write_if_due(self._decider, self.clock.now())
        decided = self._decider.decide(snapshot, usage, evaluation, Moment(at_ms, at_ms))
        identity: dict[str, Any] = {
            "cluster": "test",
            "query_id": QUERY,
            "batch_id": self.batch_id,
            "evaluated_at_ms": at_ms,
            "quota_version": snapshot.version,
            "tenants_version": snapshot.tenants_version,
        }
        self._usage.append(conform(usage, UsageRow, **identity, request_count=1))
        settings = self._settings.model_dump_json()
        self._facts.append(BatchFacts(evaluation, at_ms, "", "", settings, len(rows), 0, 0, 0, 0))
        self._decisions.append(conform(decided.decisions, DecisionRow, **identity))
        if len(self._facts) == _BATCHES_A_COMMIT:
            self.flush()
        decisions: list[dict[str, Any]] = decided.decisions.to_pylist()
        return decisions

    def show_rates(self) -> None:
        """Replace the table `rates`, as the job does each second."""
        no_names = {name: pa.array([], pa.string()) for name in ("broker_id", "user", "client_id", "quota_type")}
        free = pa.table({**no_names, "until_ms": pa.array([], pa.int64())})
        uri = table_uri(self.root, "rates")
        RatesTable(self._tables.writers["rates"], uri, "test", self._decider, lambda: free, self.clock).step()

    def flush(self) -> None:
        """Write what is not written yet."""
        if not self._facts:
            return
        versions, metadata = {QUERY: self.batch_id}, self._facts[-1].to_metadata()
        self._tables.usage.append(pa.concat_tables(self._usage), versions, metadata)
        self._tables.decisions.append(pa.concat_tables(self._decisions), versions, {})
        self._tables.batches.append(pa.concat_tables([one.to_row("test") for one in self._facts]), versions, metadata)
        self._usage, self._decisions, self._facts = [], [], []


def roll_up(root: str) -> None:
    """All usage by the second, as the job's roll-up writes it."""
    rows = DeltaTable(table_uri(root, "usage")).to_pyarrow_table()
    rows = rows.append_column("second_start_ms", rows["sample_start_ms"]).drop_columns(["date", "sample_start"])
    write_deltalake(table_uri(root, "usage_by_second"), conform(rows, UsageBySecondRow), mode="append")
