"""`kquota quotas describe -o wide`: each bound with the current rate under it, nearest to its bound first."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.cli.options import as_iso
from pipeline.cli.output import Layout, print_rows
from pipeline.clock import wall_ms
from pipeline.job.overview import newest_usage
from pipeline.settings.model import Settings
from pipeline.stream.batch_facts import BatchFacts
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from quota.current_rates import QuotaKey, SensorRate, bounds_of, current_rates
from quota.units import age_text, bound_text, rate_text

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


def print_with_rates(settings: Settings, table: QuotaTable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of the quota table with the rates at the newest batch, and on stderr how old they are.

    Args:
        rows: Those that are printed: a line for each bound, and one for a row without any.
    """
    quotas = QuotaSource(table)
    found = newest_usage(settings.tables.root)
    rates = {} if found is None else current_rates(*found.under(quotas.pin(), settings.scope or quotas.scope))
    lines = [line for row in rows for line in _lines(row, rates)]
    lines.sort(key=lambda line: -line[0])  # stable: equal ones stay in the order of the table
    print_rows([line for _, line in lines], "wide", Layout(_COLUMNS))
    sys.stderr.write(f"{_told(None if found is None else found.facts)}\n")


def _lines(row: Mapping[str, Any], rates: Mapping[QuotaKey, list[SensorRate]]) -> list[tuple[float, dict[str, Any]]]:
    """The used share of the bound, and the line; a line for each bound."""
    found = []
    for key, bound in bounds_of(row).items():
        sensors = rates.get(key, [])
        shown = {"quota_type": key.quota_type, "bound": bound_text(key.quota_type, bound), **_shown(key, sensors)}
        found.append((sensors[0].used if sensors else 0.0, shown))
    rest = dict.fromkeys(name for name in (*_COLUMNS, "broker_id") if name not in row)
    about = {name: row[name] for name in ("user", "client_id", "mode", "owner", "note")}
    return [(used, {**about, **shown}) for used, shown in found] or [(0.0, {**about, **rest})]


def _shown(key: QuotaKey, sensors: Sequence[SensorRate]) -> dict[str, Any]:
    nearest = sensors[0] if sensors else None
    used = nearest.used if nearest else 0.0
    return {
        "rate": rate_text(key.quota_type, nearest.observed if nearest else 0.0),
        "used": f"{math.floor(used * 1000) / 10:.1f} %",  # cut off, so that 100.0 % is not below the bound
        "sensor_user": nearest.sensor_user if nearest else "",
        "sensor_client_id": nearest.sensor_client_id if nearest else "",
        "sensors": len(sensors),
        "broker_id": nearest.broker_id if nearest else "",
    }


def _told(facts: BatchFacts | None) -> str:
    if facts is None:
        return "no rates: no micro-batch is stored"
    evaluated = facts.evaluation
    age_ms = wall_ms() - facts.processed_at_ms
    at = f"{as_iso(evaluated.evaluated_at_ms)} UTC"
    return f"rates at {at}, batch {evaluated.batch_id}, {age_text(age_ms)} ago"
