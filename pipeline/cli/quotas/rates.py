"""`kquota quotas describe -o wide`: each bound beside the current rate under it, nearest to its bound first."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.cli.instants import as_iso
from pipeline.cli.output import print_rows
from pipeline.cli.table_layout import Layout
from pipeline.clock import wall_ms
from pipeline.settings.model import Settings
from pipeline.stream.batch_facts import BatchFacts
from pipeline.tables.address import table_uri
from pipeline.tables.newest_batch import newest_batch
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.reader import DeltaRsReader
from pipeline.throttle.assembly import new_engine
from quota.current_rates import CurrentRate, QuotaKey, bounds_of, current_rates
from quota.regrid import is_on_windows, on_windows
from quota.replay import USAGE_COLUMNS
from quota.units import age_text, bound_text, rate_text

if TYPE_CHECKING:
    from quota.engine import Scope
    from quota.snapshot import QuotaSnapshot

_COLUMNS: Final = (
    "user",
    "client_id",
    "quota_type",
    "bound",
    "rate",
    "used",
    "sensor_user",
    "sensor_client_id",
    "sensors",
    "mode",
)

_NONE: Final = CurrentRate(0.0, 0.0, "", "", "", 0)


class _Rates(NamedTuple):
    by_bound: Mapping[QuotaKey, CurrentRate]
    facts: BatchFacts | None
    """The batch at whose instant the rates are; None if no batch is stored."""


def print_with_rates(settings: Settings, table: QuotaTable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of the quota table with the rates at the newest batch, and on stderr how old they are.

    Args:
        settings: Of the job.
        table: The quota table.
        rows: Those that are printed: a line for each bound, and one for a row without any.
    """
    quotas = QuotaSource(table)
    found = _current(settings, quotas.pin(), settings.scope or quotas.scope)
    lines = [line for row in rows for line in _lines(row, found.by_bound)]
    lines.sort(key=lambda line: -line[0])  # stable: equal ones stay in the order of the table
    print_rows([line for _, line in lines], "wide", Layout(_COLUMNS))
    sys.stderr.write(f"{_told(found.facts)}\n")


def _current(settings: Settings, snapshot: "QuotaSnapshot", scope: "Scope") -> _Rates:
    """The rates at the newest stored batch, with the engine settings it was decided with."""
    root = settings.tables.root
    newest = newest_batch(DeltaRsReader(table_uri(root, "batches")))
    if newest is None:
        return _Rates({}, None)
    facts = BatchFacts.from_row(newest)
    engine, at_ms = facts.settings, facts.evaluation.evaluated_at_ms
    span = [("evaluated_at_ms", ">=", at_ms - engine.rate_span_ms), ("evaluated_at_ms", "<=", at_ms)]
    usage = DeltaRsReader(table_uri(root, "usage")).read(USAGE_COLUMNS, span)
    if not is_on_windows(usage, engine.sample_window_ms):  # the job had other settings a moment ago
        usage = on_windows(usage, engine.sample_window_ms)
    return _Rates(current_rates(snapshot, usage, at_ms, lambda: new_engine(engine, scope)), facts)


def _lines(row: Mapping[str, Any], rates: Mapping[QuotaKey, CurrentRate]) -> list[tuple[float, dict[str, Any]]]:
    """How much of the bound is used, and the line; a line for each bound."""
    found = []
    for key, bound in bounds_of(row).items():
        rate = rates.get(key)
        shown = {"quota_type": key.quota_type, "bound": bound_text(key.quota_type, bound), **_shown(key, rate)}
        found.append((rate.used if rate else 0.0, shown))
    rest = dict.fromkeys(name for name in (*_COLUMNS, "broker_id") if name not in row)
    about = {name: row[name] for name in ("user", "client_id", "mode", "owner", "note")}
    return [(used, {**about, **shown}) for used, shown in found] or [(0.0, {**about, **rest})]


def _shown(key: QuotaKey, rate: CurrentRate | None) -> dict[str, Any]:
    rate = rate or _NONE
    return {
        "rate": rate_text(key.quota_type, rate.observed),
        "used": f"{math.floor(rate.used * 1000) / 10:.1f} %",  # cut off, so that 100.0 % is not below the bound
        "sensor_user": rate.sensor_user,
        "sensor_client_id": rate.sensor_client_id,
        "sensors": rate.sensors,
        "broker_id": rate.broker_id,
    }


def _told(facts: BatchFacts | None) -> str:
    if facts is None:
        return "no rates: no micro-batch is stored"
    evaluated = facts.evaluation
    age_ms = wall_ms() - facts.processed_at_ms
    at = f"{as_iso(evaluated.evaluated_at_ms)} UTC"
    return f"rates at {at}, batch {evaluated.batch_id}, {age_text(age_ms)} ago"
