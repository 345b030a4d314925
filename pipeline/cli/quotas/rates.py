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
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from quota.current_rates import QuotaKey, SensorRate, bounds_of, current_rates
from quota.units import age_text, bound_text, rate_text

_COLUMNS: Final = (
    *("user", "client_id", "quota_type", "bound", "rate", "used"),
    *("sensor_user", "sensor_client_id", "sensors", "mode"),
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
    if found is None:
        sys.stderr.write("no rates: no micro-batch is stored\n")
        return
    evaluated, age_ms = found.facts.evaluation, wall_ms() - found.facts.processed_at_ms
    at = f"{as_iso(found.at_ms)} UTC"
    sys.stderr.write(f"rates at {at}, batch {evaluated.batch_id}, {age_text(age_ms)} ago\n")


def _lines(row: Mapping[str, Any], rates: Mapping[QuotaKey, list[SensorRate]]) -> list[tuple[float, dict[str, Any]]]:
    """The used share of the bound, and the line; a line for each bound."""
    about = {name: row[name] for name in ("user", "client_id", "mode", "owner", "note")}
    found = []
    for key, bound in bounds_of(row).items():
        sensors = rates.get(key, [])
        nearest = sensors[0] if sensors else None
        used = nearest.used if nearest else 0.0
        line = {
            "quota_type": key.quota_type,
            "bound": bound_text(key.quota_type, bound),
            "rate": rate_text(key.quota_type, nearest.observed if nearest else 0.0),
            "used": f"{math.floor(used * 1000) / 10:.1f} %",  # cut off, so that 100.0 % is not below the bound
            **{name: getattr(nearest, name, "") for name in ("sensor_user", "sensor_client_id", "broker_id")},
            "sensors": len(sensors),
        }
        found.append((used, about | line))
    rest = dict.fromkeys(name for name in (*_COLUMNS, "broker_id") if name not in row)
    return found or [(0.0, about | rest)]
