"""Reads what the view Client shows: of one `<user, client-id>`, over a span of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from arro3.core import Array, DataType

from pipeline.dashboard.client_view import (
    bands,
    decision_row,
    has_data,
    levels_document,
    rates,
    record_row,
    step_ms,
)
from pipeline.dashboard.errors import QueryRefused
from pipeline.dashboard.now_view import throttled_row
from pipeline.dashboard.query import Query
from pipeline.dashboard.quota_timeline import bounds_over_time
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.state import State
from pipeline.story.on_brokers import on_brokers_line, on_brokers_row
from pipeline.tables.arrow_values import python_rows
from pipeline.tables.enforced import enforced_for
from pipeline.tables.errors import TableMissing
from pipeline.tables.port import Condition
from quota.effective import Effective, EffectiveQuota, effective
from quota.entity import QUOTA_TYPES

_DEFAULT_SPAN_MS: Final = 900_000
_LONGEST_SPAN_MS: Final = 90 * 86_400_000
_MEASURES: Final = dict(
    zip(
        QUOTA_TYPES,
        ("produced_bytes", "fetched_bytes", "coalesce(io_time_ns, 0) + coalesce(network_time_ns, 0)"),
        strict=True,
    )
)
_MOST_DECISIONS: Final = 1_000
_MOST_RECORDS: Final = 200
_SOURCES: Final = (("usage", "sample_start_ms", 1), ("usage_by_second", "second_start_ms", 1_000))
_MINUTES: Final = ("usage_by_minute", "minute_start_ms", 60_000)


@dataclass(frozen=True, slots=True)
class _Span:
    since_ms: int
    until_ms: int
    bin_ms: int


def client_document(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """The view Client.

    Raises:
        QueryRefused: No user is given, or the span is empty.
    """
    user, client_id, snapshot = query.user, query.client_id or "", reader.snapshot()
    if not user:
        raise QueryRefused(["'user' must be given; got none"])
    if snapshot is None:
        raise TableMissing(reader.tables["quotas"].uri)
    until_ms = min(query.until_ms or state.now_ms, state.now_ms)
    since_ms = max(query.since_ms if query.since_ms is not None else until_ms - _DEFAULT_SPAN_MS,
                   until_ms - _LONGEST_SPAN_MS)  # fmt: skip
    if since_ms >= until_ms:
        raise QueryRefused([f"'since' must be before 'until'; got {since_ms} and {until_ms}"])
    found = effective(snapshot, user, client_id, _clients_of(state, user, client_id))
    span, series = _series(reader, found, user, client_id, (since_ms, until_ms))
    events = _of_client(reader, "throttle_events", user, client_id, span, early_ms=600_000)
    decisions = _of_client(reader, "decisions", user, client_id, span)
    decisions.sort(key=lambda row: (row["evaluated_at_ms"], row["batch_id"]))
    held = [one for one in state.running if (one.row["user"], one.row["client_id"]) == (user, client_id)]
    on_brokers = enforced_for(reader.root, user, client_id, QUOTA_TYPES)
    timeline = bounds_over_time(reader, user, client_id, span.since_ms, span.until_ms)
    return {
        **state.head(),
        "user": user,
        "client_id": client_id,
        "since_ms": span.since_ms,
        "until_ms": span.until_ms,
        "step_ms": span.bin_ms,
        **series,
        "bounds": timeline.bounds,
        "edits": timeline.edits,
        "bands": bands(events, span.since_ms),
        "decisions": [decision_row(row) for row in decisions[-_MOST_DECISIONS:]],
        "decisions_total": len(decisions),
        "records_total": len(events),
        "records": [record_row(row) for row in sorted(events, key=_seq, reverse=True)[:_MOST_RECORDS]],
        "throttled": [throttled_row(one, state.levels) for one in held],
        "owed": [record_row(one.row) for one in held],
        "levels": levels_document(found),
        "effective": [_effective_row(one, reader) for one in found.by_type],
        "on_brokers": [{**on_brokers_row(one), "text": on_brokers_line(one)} for one in on_brokers],
    }


def _seq(row: Mapping[str, Any]) -> int:
    return int(row["publish_seq"])


def _effective_row(one: EffectiveQuota, reader: TablesReader) -> dict[str, Any]:
    return {
        "quota_type": one.quota_type,
        "level": one.level,
        "mode": one.mode,
        "bound": one.bound,
        "sensor_user": one.sensor_user,
        "sensor_client_id": one.sensor_client_id,
        "shared_with": [list(client) for client in one.shared_with[:50]],
        "shared": len(one.shared_with),
    }


def _clients_of(state: State, user: str, client_id: str) -> pa.Table:
    """Clients seen lately that may share a sensor with this one: no others are worth resolving."""
    alike = {
        (one.user, one.client_id)
        for one in state.sensors
        if one.user == user or (client_id and one.client_id == client_id)
    }
    columns = [list(column) for column in zip(*sorted(alike), strict=True)] or [[], []]
    return pa.table({name: _texts(column) for name, column in zip(("user", "client_id"), columns, strict=True)})


def _texts(values: Sequence[str]) -> pa.Array:
    return pa.array(Array(list(values), DataType.string()))


def _series(
    reader: TablesReader, found: Effective, user: str, client_id: str, ends_ms: tuple[int, int]
) -> tuple[_Span, dict[str, Any]]:
    """The rate of each type's sensor, and of the client itself where it is not alone under it."""
    since_ms, until_ms = ends_ms
    settings = reader.engine_settings()
    bin_ms = step_ms(until_ms - since_ms, settings.sample_window_ms)
    span = _Span(since_ms // bin_ms * bin_ms, -(-until_ms // bin_ms) * bin_ms, bin_ms)
    source, time_column = _source(reader, span)
    window_ms = settings.num_samples * settings.sample_window_ms - settings.sample_window_ms
    sums = _sums(reader, source, time_column, found, (user, client_id), span, window_ms)
    known = has_data(_batch_instants(reader, span), span.since_ms, span.until_ms, bin_ms)
    series = {}
    for number, one in enumerate(found.by_type):
        of_type = {}
        for name in ("sensor", "own"):
            values = rates(sums[f"{name}{number}"], span.since_ms, span.until_ms, bin_ms, window_ms, one.quota_type)
            of_type[name] = [value if is_known else None for value, is_known in zip(values, known, strict=True)]
        is_alone = of_type["own"] == of_type["sensor"]
        series[one.quota_type] = {"observed": of_type["sensor"], "own": None if is_alone else of_type["own"]}
    at_ms = list(range(span.since_ms + bin_ms, span.until_ms + bin_ms, bin_ms))
    return span, {"at_ms": at_ms, "series": series, "window_ms": max(window_ms, bin_ms), "source": source}


def _source(reader: TablesReader, span: _Span) -> tuple[str, str]:
    """The table that reaches far enough back with the fewest rows. A roll-up that is missing is no error."""
    wanted = (_MINUTES, *reversed(_SOURCES)) if span.bin_ms >= _MINUTES[2] else _SOURCES
    best = _SOURCES[0][:2]
    reach_ms: int | None = None
    for name, column, least_ms in wanted:
        first_ms = _first(reader, name, column)
        if first_ms is None or span.bin_ms % least_ms:
            continue
        if first_ms <= span.since_ms:
            return name, column
        if reach_ms is None or first_ms < reach_ms:
            best, reach_ms = (name, column), first_ms
    return best


def _first(reader: TablesReader, name: str, column: str) -> int | None:
    table = reader.tables.get(name)
    return None if table is None else table.oldest_value(column)


def _sums(
    reader: TablesReader,
    source: str,
    time_column: str,
    found: Effective,
    client: tuple[str, str],
    span: _Span,
    window_ms: int,
) -> dict[str, dict[int, float]]:
    """By step: what each type's sensor used, and what the client itself used."""
    own = f'"user" = {_text(client[0])} AND client_id = {_text(client[1])}'
    parts, of_sensors = [], {own}
    for number, one in enumerate(found.by_type):
        sensor = _sensor_sql(one) or own
        of_sensors.add(sensor)
        measure = _MEASURES[one.quota_type]
        parts.append(f"sum(CASE WHEN {sensor} THEN {measure} END) AS sensor{number}")
        parts.append(f"sum(CASE WHEN {own} THEN {measure} END) AS own{number}")
    reach_ms = max(window_ms, span.bin_ms)
    sql = (
        f"SELECT {time_column} / {span.bin_ms} AS step, {', '.join(parts)} FROM source "  # noqa: S608 - quoted by us
        f"WHERE {time_column} >= {span.since_ms - reach_ms} AND {time_column} < {span.until_ms} "
        f"AND ({' OR '.join(f'({one})' for one in sorted(of_sensors))}) GROUP BY 1"
    )
    try:
        rows = reader.tables[source].query(sql)
    except TableMissing:
        return {f"{name}{number}": {} for name in ("sensor", "own") for number in range(len(QUOTA_TYPES))}
    starts = [step * span.bin_ms for step in rows["step"].to_pylist()]
    return {
        name: dict(zip(starts, (value or 0.0 for value in rows[name].to_pylist()), strict=True))
        for name in rows.column_names
        if name != "step"
    }


def _sensor_sql(one: EffectiveQuota) -> str:
    tags = (('"user"', one.sensor_user), ("client_id", one.sensor_client_id))
    return " AND ".join(f"{column} = {_text(name)}" for column, name in tags if name)


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _batch_instants(reader: TablesReader, span: _Span) -> list[int]:
    try:
        sql = (
            f"SELECT DISTINCT evaluated_at_ms / {max(span.bin_ms // 2, 1_000)} AS part FROM source "  # noqa: S608 - numbers
            f"WHERE evaluated_at_ms >= {span.since_ms - 2 * span.bin_ms} AND evaluated_at_ms < {span.until_ms + span.bin_ms}"
        )
        parts = reader.tables["batches"].query(sql)["part"].to_pylist()
    except TableMissing:
        return []
    return [part * max(span.bin_ms // 2, 1_000) for part in parts]


def _of_client(
    reader: TablesReader, name: str, user: str, client_id: str, span: _Span, early_ms: int = 0
) -> list[dict[str, Any]]:
    where: list[Condition] = [
        ("user", "=", user),
        ("client_id", "=", client_id),
        ("evaluated_at_ms", ">=", span.since_ms - early_ms),
        ("evaluated_at_ms", "<", span.until_ms),
    ]
    try:
        return python_rows(reader.tables[name].read(None, where))
    except TableMissing:
        return []
