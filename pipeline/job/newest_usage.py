"""The usage behind the rates at the newest stored micro-batch: what a job that starts now would compute them from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stream.batch_facts import BatchFacts
from pipeline.tables.address import table_uri
from pipeline.tables.reader import DeltaRsReader
from pipeline.tables.reading.newest_batch import newest_batch_under
from pipeline.throttle.assembly import new_engine
from quota.engine import QuotaEngine, Scope
from quota.regrid import is_on_windows, on_windows
from quota.replay import USAGE_COLUMNS, with_time_epoch
from quota.snapshot import QuotaSnapshot

Question = tuple[QuotaSnapshot, pa.Table, int, Callable[[], QuotaEngine]]
"""The arguments of the functions in `quota.current_rates`."""


@dataclass(frozen=True, slots=True)
class NewestUsage:
    """What was used in the windows of the rates, up to the newest batch.

    Attributes:
        facts: The batch at whose instant the rates are, with the engine settings it was decided with.
        usage: The rows, on its sample windows.
    """

    facts: BatchFacts
    usage: pa.Table

    def under(self, snapshot: QuotaSnapshot, scope: Scope) -> Question:
        """What `quota.current_rates` is to compute: the rates under these quotas at the instant of the batch."""
        engine = self.facts.settings
        return snapshot, self.usage, self.facts.evaluation.evaluated_at_ms, lambda: new_engine(engine, scope)


def newest_usage(root: str) -> NewestUsage | None:
    """Read it from the tables under a root; None if no batch is stored.

    Raises:
        TableMissing, TableUnreadable: A table is not there, or can not be read.
    """
    newest = newest_batch_under(root)
    return None if newest is None else usage_until(root, newest)


def usage_until(root: str, batch: Mapping[str, Any]) -> NewestUsage:
    """Read the usage up to a batch.

    Args:
        root: Of the tables.
        batch: Its row of `batches`.

    Raises:
        TableMissing, TableUnreadable: The table is not there, or can not be read.
    """
    facts = BatchFacts.from_row(batch)
    engine, at_ms = facts.settings, facts.evaluation.evaluated_at_ms
    span = [("evaluated_at_ms", ">=", at_ms - engine.rate_span_ms), ("evaluated_at_ms", "<=", at_ms)]
    usage = with_time_epoch(DeltaRsReader(table_uri(root, "usage")).read(USAGE_COLUMNS, span))
    usage = usage.filter(pc.equal(usage["time_epoch"], facts.evaluation.time_epoch))
    if not is_on_windows(usage, engine.sample_window_ms):  # the job had other settings a moment ago
        usage = on_windows(usage, engine.sample_window_ms)
    return NewestUsage(facts, usage)
