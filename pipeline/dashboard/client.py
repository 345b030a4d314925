"""What the view Client shows of one `<user, client-id>`: its rates, decisions and throttles of the last 15 minutes.

Each box reads one table, by one query. `kquota throttles list --since` and the SQL views show what was before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import partial
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.dashboard.reader import TablesReader, client_of, names_table
from pipeline.dashboard.state import State, picked, throttled_row
from pipeline.replay.story import on_brokers_line, on_brokers_row
from pipeline.tables.broker_quotas import enforced_for
from pipeline.tables.port import Condition, table_uri
from pipeline.tables.queries import StoredTable, clients_seen, column_list, predicates
from pipeline.tables.rates import held_by_brokers, read_rates, tenant_levels
from pipeline.tables.throttles import large_requests_of, named
from quota.effective import OF_TENANT, Effective, effective
from quota.entity import QUOTA_TYPES, REQUEST
from schemas.throttle_record import Target, verb, written_ms

SEE: Final = "see docs/dashboard.md"
SPAN_MS: Final = 900_000
"""The length of time that the charts show; it ends now."""

# Rates of the client's sensors.

_MEASURES: Final = dict(
    zip(QUOTA_TYPES, ("produced_bytes", "fetched_bytes", "coalesce(io_time_ns, 0) + coalesce(network_time_ns, 0)"),
        strict=True)
)  # fmt: skip
_SHORTEST_STEP_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in whole steps: [since_ms, until_ms), both multiples of step_ms, the length of a step."""

    since_ms: int
    until_ms: int
    step_ms: int


def span_of(reader: TablesReader, now_ms: int) -> Span:
    """The steps of the time that is shown, which ends now."""
    step_ms = max(reader.engine_settings().sample_window_ms, _SHORTEST_STEP_MS)
    return Span((now_ms - SPAN_MS) // step_ms * step_ms, -(-now_ms // step_ms) * step_ms, step_ms)


def read_series(
    reader: TablesReader, found: Effective, client: tuple[str, str], span: Span, whole_until_ms: int
) -> dict[str, Any]:
    """The rate of each type's sensor, and of the client itself where it is not alone under it.

    Args:
        whole_until_ms: Usage is complete up to here: a step that ends later is not shown, or it would fall.
    """
    settings = reader.engine_settings()
    step_ms, window_ms = span.step_ms, (settings.num_samples - 1) * settings.sample_window_ms
    since_ms = span.since_ms - max(window_ms, step_ms) // step_ms * step_ms
    sums = _sums(reader, found, client, Span(since_ms, span.until_ms, step_ms))
    known = has_data(_batch_instants(reader, span), span)
    at_ms = list(range(span.since_ms + step_ms, span.until_ms + step_ms, step_ms))
    known = [is_known and at <= whole_until_ms for is_known, at in zip(known, at_ms, strict=True)]
    series = {}
    for number, one in enumerate(found.by_type):
        of_type = {}
        for name in ("sensor", "own"):
            values = rates(sums[f"{name}{number}"], span, window_ms, one.quota_type)
            of_type[name] = [value if is_known else None for value, is_known in zip(values, known, strict=True)]
        is_alone = of_type["own"] == of_type["sensor"]
        series[one.quota_type] = {"observed": of_type["sensor"], "own": None if is_alone else of_type["own"]}
    return {"at_ms": at_ms, "series": series, "window_ms": max(window_ms, step_ms)}


def _sums(reader: TablesReader, found: Effective, client: tuple[str, str], span: Span) -> dict[str, dict[int, float]]:
    """By step: what each type's sensor used, and what the client itself used."""
    own, step_ms = _names_sql(*client), span.step_ms
    wanted: dict[str, tuple[str, str]] = {}
    for number, one in enumerate(found.by_type):
        # Without a quota nothing is summed over clients.
        of_sensor = _names_sql(one.sensor_user or None, one.sensor_client_id or None)
        sensor = own if one.level is None or not of_sensor else of_sensor
        measure = _MEASURES[one.quota_type]
        wanted |= {f"sensor{number}": (sensor, measure), f"own{number}": (own, measure)}
    selected = ", ".join(f"sum(CASE WHEN {names} THEN {sum_} END) AS {name}" for name, (names, sum_) in wanted.items())
    concerned = " OR ".join(f"({names})" for names in sorted({names for names, _ in wanted.values()}))
    sums: dict[str, dict[int, float]] = {name: {} for name in wanted}
    rows = reader.query(
        "usage",
        f"SELECT sample_start_ms / {step_ms} AS step, {selected} FROM source "  # noqa: S608 - names are quoted by us
        f"WHERE sample_start_ms >= {span.since_ms} AND sample_start_ms < {span.until_ms} AND ({concerned}) "
        f"{reader.shown_once()}GROUP BY 1",
    )
    for row in rows:
        for name, of_steps in sums.items():
            of_steps[row["step"] * step_ms] = row[name] or 0.0
    return sums


def _names_sql(user: str | None, client_id: str | None) -> str:
    return predicates([(name, "=", one) for name, one in (("user", user), ("client_id", client_id)) if one is not None])


def _batch_instants(reader: TablesReader, span: Span) -> list[int]:
    part_ms = span.step_ms // 2
    since_ms, until_ms = span.since_ms - 2 * span.step_ms, span.until_ms + span.step_ms
    rows = reader.query(
        "batches",
        f"SELECT DISTINCT evaluated_at_ms / {part_ms} AS part FROM source "  # noqa: S608 - numbers of ours
        f"WHERE evaluated_at_ms >= {since_ms} AND evaluated_at_ms < {until_ms}",
    )
    return [row["part"] * part_ms for row in rows]


# Decisions, records and throttled spans.

_MOST_ROWS: Final = 1_000
_MOST_SHOWN: Final = 200
# A throttle that began so long before the span may still run in it.
_EARLY_MS: Final = 600_000
_DECISION_COLUMNS: Final = (
    "evaluated_at_ms", "quota_type", "observed", "bound", "window_ms", "raw_throttle_time_ms", "throttle_time_ms",
    "level", "mode", "asks_hold", "client_id", "decision_id", "batch_id", "quota_version",
)  # fmt: skip
_RECORD_COLUMNS: Final = (
    "publish_seq", "action", "cause", "cluster", "query_id", "batch_id", "broker_id", "user", "client_id", "quota_type",
    "observed", "bound", "throttle_time_ms", "throttled_until_ms", "owed_ms", "tokens", "decision_id",
)  # fmt: skip


def read_throttles(
    reader: TablesReader, client: tuple[str, str], span: Span, user_types: Sequence[str] = ()
) -> dict[str, Any]:
    """What was decided for a client, oldest first, and published, newest first.

    Args:
        user_types: The quota types for which the client is in the sensor of its user, and held with it.
    """
    of_client = f"({_names_sql(*client)} OR {_names_sql(client[0], None)} AND {_of_user_sql(user_types)})"
    decisions = _once(_newest(reader, "decisions", _DECISION_COLUMNS, of_client, span))
    records = _newest(reader, "throttle_events", _RECORD_COLUMNS, _holding_sql(*client), span)
    return {
        "bands": bands(records, span.since_ms),
        "decisions": decisions[::-1],
        "records": [record_row(row) for row in records[:_MOST_SHOWN]],
    }


def _of_user_sql(quota_types: Sequence[str]) -> str:
    return predicates([("client_id", "is", None), ("quota_type", "in", quota_types)])


def _holding_sql(user: str, client_id: str) -> str:
    return predicates(named(user, client_id, holds=True))


def _once(decisions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those on the client where its user was held: the user's row says the same of the sensor."""
    batch = itemgetter("batch_id", "evaluated_at_ms", "quota_type", "mode")
    of_users = {batch(row) for row in decisions if row["client_id"] is None}
    return [row for row in decisions if row["client_id"] is None or batch(row) not in of_users]


def _newest(reader: TablesReader, table: str, columns: Sequence[str], where: str, span: Span) -> list[dict[str, Any]]:
    order = "publish_seq" if "publish_seq" in columns else "time_epoch DESC NULLS LAST, evaluated_at_ms DESC, batch_id"
    return reader.query(
        table,
        f"SELECT {column_list(columns)} FROM source WHERE {where} "  # noqa: S608 - names are quoted by us
        f"AND evaluated_at_ms >= {span.since_ms - _EARLY_MS} AND evaluated_at_ms < {span.until_ms} "
        f"ORDER BY {order} DESC LIMIT {_MOST_ROWS}",
    )


_ALIKE: Final = 5


def client_document(reader: TablesReader, state: State, client: tuple[str, str]) -> dict[str, Any]:
    """The view Client."""
    user, client_id = client
    span = span_of(reader, state.now_ms)
    quotas = reader.snapshot()
    levels_of = partial(tenant_levels, reader.root)
    found = effective(quotas, user, client_id, _clients_of(reader, user, client_id), levels_of)
    whole_until_ms = 0 if state.batch is None else state.batch["evaluated_at_ms"]
    series = read_series(reader, found, client, span, whole_until_ms)
    held = sorted(state.held.by(user, client_id), key=lambda row: -row["throttled_until_ms"])
    user_types = [one.quota_type for one in found.by_type if one.sensor_user and not one.sensor_client_id]
    on_brokers = enforced_for(reader.root, user, client_id, QUOTA_TYPES)
    throttles = read_throttles(reader, client, span, user_types)
    of_types = [zip(series["at_ms"], one["own"] or one["observed"], strict=True) for one in series["series"].values()]
    used_at_ms = [at_ms for of_type in of_types for at_ms, used in of_type if used]
    seen_ms = max(used_at_ms) if used_at_ms else _last_seen(reader, client)
    return {
        **state.head(),
        "user": user,
        "client_id": client_id,
        "since_ms": span.since_ms,
        "until_ms": span.until_ms,
        "known_since_ms": StoredTable(reader.opened("batches")).oldest_value("evaluated_at_ms"),
        "step_ms": span.step_ms,
        **series,
        **throttles,
        "charts": _charts(series["series"], found, throttles),
        "seen_ms": seen_ms,
        "alike": [] if seen_ms is not None else _alike(client, clients_seen(table_uri(reader.root, "usage"))),
        "throttled": [throttled_row(row) for row in held],
        "owed": [record_row(row) for row in held],
        "levels": [row.document() for row in found.levels],
        "effective": _effective_rows(reader, found),
        "on_brokers": [{**on_brokers_row(one), "text": on_brokers_line(one)} for one in on_brokers],
        "held_by_brokers": held_by_brokers(reader.root, *client, state.now_ms),
        "large_requests": large_requests_of(reader.root, *client, quotas),
    }


def _charts(series: Mapping[str, Any], found: Effective, throttles: Mapping[str, Any]) -> list[str]:
    """The quota types with a chart: those that were used or decided about, and those with a bound."""
    shown = {row["quota_type"] for name in ("decisions", "bands") for row in throttles[name]}
    shown |= {one.quota_type for one in found.by_type if one.bound is not None}
    return [name for name, one in series.items() if name in shown or any(one["observed"])]


def _last_seen(reader: TablesReader, client: tuple[str, str]) -> int | None:
    """When a client last used something, as far as `usage` goes back; None if it did not."""
    sql = f"SELECT max(sample_start_ms) AS seen_ms FROM source WHERE {_names_sql(*client)}"  # noqa: S608 - quoted by us
    return next((row["seen_ms"] for row in reader.query("usage", sql)), None)


def _alike(client: tuple[str, str], seen: Collection[tuple[str, str]]) -> list[dict[str, str]]:
    """Clients of the last minutes that a client which was never seen may be meant to be."""
    users = {user for user, _ in seen}
    alike = {client[0]} if client[0] in users else {*get_close_matches(client[0], sorted(users), n=_ALIKE)}
    found = sorted(one for one in seen if one[0] in alike)
    found.sort(key=lambda one: -SequenceMatcher(None, one[1], client[1]).ratio())
    return [{"user": user, "client_id": client_id} for user, client_id in found[:_ALIKE]]


def _effective_rows(reader: TablesReader, found: Effective) -> list[dict[str, Any]]:
    """The quota of each type, and how much the client's sensor uses of it now: 0 without usage."""
    names = ("quota_type", "level", "sensor_user", "sensor_client_id")
    sensors: list[list[Condition]] = [
        [(name, "=", getattr(one, name)) for name in names] for one in found.by_type if one.level is not None
    ]
    wanted = " OR ".join(f"({predicates(sensor)})" for sensor in sensors) or "false"
    of_sensor = (*names, "tenant")
    columns = ", ".join(of_sensor)
    sql = f"SELECT {columns}, max(observed) AS observed FROM source WHERE clients IS NOT NULL AND ({wanted}) "  # noqa: S608 - quoted by us
    rows = read_rates(reader.root, lambda rates: rates.rows(f"{sql}GROUP BY {columns}"))
    observed = {tuple(row[name] for name in of_sensor): row["observed"] for row in rows}
    return [
        {
            **{name: getattr(one, name) for name in (*names, "mode", "bound", *OF_TENANT, "sharing")},
            "observed": observed.get(tuple(getattr(one, name) for name in of_sensor), 0.0),
            "shared_with": [list(client) for client in one.shared_with[:50]],
            "shared": len(one.shared_with),
        }
        for one in found.by_type
    ]


def _clients_of(reader: TablesReader, user: str, client_id: str) -> pa.Table:
    """Clients with usage now that may share a sensor with this one: no others are worth resolving."""
    may_share = [
        predicates([("user", "=", user)]),
        *([predicates([("client_id", "=", client_id)])] if client_id else []),
    ]
    sql = f'SELECT DISTINCT "user", client_id FROM source WHERE own_rate IS NOT NULL AND ({" OR ".join(may_share)})'  # noqa: S608 - quoted by us
    rows = read_rates(reader.root, lambda rates: rates.rows(sql))
    return names_table(sorted(client_of(row) for row in rows))


# What is shown of them, as functions of rows. Pure.

_GAP_MS: Final = 10_000
_NS_PER_PERCENT_SECOND: Final = 1e7
"""One percent of one thread for one second."""


def rates(sums: Mapping[int, float], span: Span, window_ms: int, quota_type: str) -> list[float]:
    """The rate at the end of each step, over the window before it, or over the step where that is longer.

    Args:
        sums: Start of a step -> what was used in it, in bytes or ns. May begin a window earlier.

    Returns:
        Bytes per second, or percent of one thread.
    """
    step_ms = span.step_ms
    steps = max(window_ms // step_ms, 1)
    starts = range(span.since_ms - (steps - 1) * step_ms, span.until_ms, step_ms)
    amounts = np.array([sums.get(start, 0.0) for start in starts], dtype=np.float64)
    summed = np.concatenate([[0.0], np.cumsum(amounts)])
    per_second = (summed[steps:] - summed[:-steps]) / (steps * step_ms / 1_000)
    scale = _NS_PER_PERCENT_SECOND if quota_type == QUOTA_TYPES[REQUEST] else 1.0
    return [float(rate) for rate in per_second / scale]


def has_data(evaluated_at_ms: Sequence[int], span: Span) -> list[bool]:
    """Whether the job worked in each step. Where it did not, nothing is known: that is a gap and not a zero."""
    ends = np.arange(span.since_ms + span.step_ms, span.until_ms + span.step_ms, span.step_ms)
    at_ms = np.sort(np.asarray(evaluated_at_ms, dtype=np.int64))
    reach_ms = max(_GAP_MS, span.step_ms)
    before, until = np.searchsorted(at_ms, ends - reach_ms), np.searchsorted(at_ms, ends + reach_ms, side="right")
    return [bool(one) for one in before < until]


def bands(events: Iterable[Mapping[str, Any]], since_ms: int) -> list[dict[str, Any]]:
    """The spans in which a client was held: its records, each until it ends or the next one replaces it.

    Records of one throttle that follow one another are one band; those of its user for a quota type are others.
    """
    found: list[dict[str, Any]] = []
    last_of: dict[Any, dict[str, Any]] = {}
    for row in sorted(events, key=lambda row: int(row["publish_seq"])):
        at_ms, until_ms = written_ms(row), int(row["throttled_until_ms"])
        target = Target.of(row)._replace(broker_id="")
        last = last_of.get(target)
        if row["action"] == "release":
            if last is not None:
                last["end_ms"] = min(last["end_ms"], at_ms)
                last["released"] = True
            continue
        if last is not None and last["end_ms"] >= at_ms and not last["released"]:
            last["end_ms"] = until_ms
            continue
        own = {"start_ms": at_ms, "end_ms": until_ms, "released": False}
        last_of[target] = own | picked(row, ("quota_type", "client_id"))
        found.append(last_of[target])
    return [band for band in found if band["end_ms"] > since_ms]


def record_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record that was published for the client, in short."""
    shown = ("cause", "quota_type", "observed", "bound", "throttle_time_ms", "throttled_until_ms", "owed_ms", "tokens")
    return {"at_ms": written_ms(row), "verb": verb(row), **picked(row, (*shown, "decision_id"))}
