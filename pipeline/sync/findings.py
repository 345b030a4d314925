"""What `kquota doctor` says about the brokers' quotas."""

from collections.abc import Iterator
from typing import Literal

from pipeline.command_line import command_text
from pipeline.settings.model import Settings
from pipeline.sync.inspection import inspect
from pipeline.sync.lock import running_sync
from pipeline.sync.words import drift_line
from pipeline.tables.address import table_uri
from pipeline.tables.brokers.rows import NAME
from pipeline.tables.reader import DeltaRsReader
from quota.units import age_text

Finding = tuple[Literal["ok", "warning"], str]

_SHOWN = 5


def sync_findings(settings: Settings, now_ms: int) -> Iterator[Finding]:
    """Whether a sync runs, what it owns, and what others changed.

    Args:
        settings: The whole tree; it names the cluster.
        now_ms: The instant, by wall clock.

    Raises:
        PipelineError: A table or the cluster can not be read.
    """
    root = settings.tables.root
    newest_ms = DeltaRsReader(table_uri(root, NAME)).newest_value("at_ms")
    process = running_sync(root)
    if newest_ms is None and process is None:
        yield "ok", f"not used: the brokers enforce what others set ({command_text('quotas', 'sync', '--help')})"
        return
    plan = inspect(settings)
    last = "no change yet" if newest_ms is None else f"last change {age_text(max(now_ms - newest_ms, 0))} ago"
    runs = "does not run on this machine" if process is None else f"runs as process {process}"
    severity: Literal["ok", "warning"] = "warning" if plan.owned and process is None else "ok"
    yield severity, f"{runs}, {last}; values that are kquota's on the brokers of {plan.cluster}: {len(plan.owned)}"
    see = command_text("quotas", "diff", "--brokers")
    if plan.changes and process is None:
        yield "warning", f"values that the brokers must get: {len(plan.changes)}. To mend it: start it again; see {see}"
    for drift in plan.drifts[:_SHOWN]:
        yield "warning", f"{drift_line(drift)}. To mend it: remove it there, or start the sync with --adopt"
    if len(plan.drifts) > _SHOWN:
        yield "warning", f"and {len(plan.drifts) - _SHOWN} more such values: see {see}"
