"""What an edit of quotas would do to the clients that were seen lately: whom it moves, and what to be warned of."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pipeline.errors import TableMissing
from pipeline.settings.model import Settings
from pipeline.tables.address import table_uri
from pipeline.tables.queries import StoredTable
from pipeline.tables.quotas.table import QuotaEdit
from pipeline.tables.reading import live_clients, recent_usage
from pipeline.throttle.assembly import new_engine
from quota.effective import bound_warnings, name_warnings, standing_changes
from quota.rates import is_on_windows
from quota.replay import USAGE_COLUMNS
from quota.snapshot import QuotaSnapshot


def impact_of(edit: QuotaEdit, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """The live clients that an edit moves, as of `standing_changes`, and a sentence for each thing to be warned of."""
    root = settings.tables.root
    clients = live_clients(table_uri(root, "usage"))
    if not clients.num_rows:
        return [], []
    before, after = (
        QuotaSnapshot.from_rows(rows, version, mode="shadow" if edit.before.mode == "shadow" else "enforce")
        for version, rows in enumerate((edit.before.rows, edit.rows))
    )
    moved = standing_changes(clients, before, after)
    old = {(quota.user, quota.client_id) for quota in before.quotas}
    new = [(quota.user, quota.client_id) for quota in after.quotas if (quota.user, quota.client_id) not in old]
    seen = _seen(root, clients) if new else []
    warnings = [text for entity in new for text in name_warnings(entity, seen)]
    return moved, warnings + _stopped(moved, after, edit, settings)


def _seen(root: str, live: Any) -> list[tuple[str, str]]:
    """Every client that the tables still know."""
    tables = [live]
    with suppress(TableMissing):
        minutes = StoredTable(table_uri(root, "usage_by_minute"))
        tables.append(minutes.answer('SELECT DISTINCT "user", client_id FROM source'))
    return [(row["user"], row["client_id"]) for table in tables for row in table.to_pylist()]


def _stopped(moved: Sequence[dict[str, Any]], after: QuotaSnapshot, edit: QuotaEdit, settings: Settings) -> list[str]:
    """The clients that new bounds would stop, by what they used in the last minutes."""
    usage = recent_usage(table_uri(settings.tables.root, "usage"), (*USAGE_COLUMNS, "request_count")) if moved else None
    if usage is None or not is_on_windows(usage, settings.engine.sample_window_ms):
        return []  # the job had other sample windows a moment ago
    scope: Any = edit.before.scope
    engine = new_engine(settings.engine, settings.scope or scope)
    engine.load_quotas(after)
    return bound_warnings(moved, usage.combine_chunks(), engine)
