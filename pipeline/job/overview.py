"""The newest usage that is stored, as the rates of `quotas show` need it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.stream.batch_facts import BatchFacts
from pipeline.tables.address import table_uri
from pipeline.tables.port import of_newest_epoch
from pipeline.tables.queries import newest_batch_under
from pipeline.tables.reading import DeltaRsReader
from pipeline.throttle.assembly import new_engine
from quota.engine import QuotaEngine, Scope
from quota.rates import is_on_windows, on_windows
from quota.replay import USAGE_COLUMNS
from quota.snapshot import QuotaSnapshot

Question = tuple[QuotaSnapshot, pa.Table, int, Callable[[], QuotaEngine]]
"""The arguments of the functions in `quota.current_rates`."""


@dataclass(frozen=True, slots=True)
class NewestUsage:
    """What was used in the windows of the rates, up to the newest stored usage: a job that starts now begins with it.

    Attributes:
        facts: Of the newest batch that is recorded. A job that was killed may have stored usage of a later one.
        at_ms: The instant of the rates: when the newest usage was evaluated.
    """

    facts: BatchFacts
    usage: pa.Table
    at_ms: int

    def under(self, snapshot: QuotaSnapshot, scope: Scope) -> Question:
        """What `quota.current_rates` is to compute: the rates under these quotas at the instant of the batch."""
        engine = self.facts.settings
        return snapshot, self.usage, self.at_ms, lambda: new_engine(engine, scope)


def newest_usage(root: str) -> NewestUsage | None:
    """Read it from the tables under a root; None if no batch is stored."""
    newest = newest_batch_under(root)
    return None if newest is None else usage_until(root, newest)


def usage_until(root: str, batch: Mapping[str, Any]) -> NewestUsage:
    """Read the newest usage, after a row of `batches` of the newest time epoch."""
    facts, table = BatchFacts.from_row(batch), DeltaRsReader(table_uri(root, "usage"))
    engine, at_ms, time_epoch = facts.settings, facts.evaluation.evaluated_at_ms, facts.evaluation.time_epoch
    newest = table.newest_instant()
    if newest is not None:
        time_epoch, at_ms = max((time_epoch, at_ms), (newest.time_epoch, newest.evaluated_at_ms))
    span = [("evaluated_at_ms", ">=", at_ms - engine.rate_span_ms), ("evaluated_at_ms", "<=", at_ms)]
    usage = table.read(USAGE_COLUMNS, [*of_newest_epoch(time_epoch), *span])
    if not is_on_windows(usage, engine.sample_window_ms):  # the job had other settings a moment ago
        usage = on_windows(usage, engine.sample_window_ms)
    return NewestUsage(facts, usage, at_ms)
