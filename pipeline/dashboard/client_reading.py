"""Reads what the view Client shows: of one `<user, client-id>`, over a span of time."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from arro3.core import Array, DataType

from pipeline.dashboard.client_view import decision_row, record_row
from pipeline.dashboard.now_view import throttled_row
from pipeline.dashboard.query import SEE, Query
from pipeline.dashboard.quota_timeline import bounds_over_time
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.series_reading import read_series
from pipeline.dashboard.state import State
from pipeline.dashboard.throttle_reading import read_throttles
from pipeline.story.on_brokers import on_brokers_line, on_brokers_row
from pipeline.tables.brokers.enforced import enforced_for
from pipeline.tables.errors import TableMissing
from pipeline.web import QueryRefused
from quota.effective import EffectiveQuota, effective
from quota.entity import QUOTA_TYPES

_DEFAULT_SPAN_MS: Final = 900_000
_LONGEST_SPAN_MS: Final = 90 * 86_400_000


def client_document(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """The view Client.

    Raises:
        QueryRefused: No user is given, or the span is empty.
    """
    user, client_id, snapshot = query.user, query.client_id or "", reader.snapshot()
    if not user:
        raise QueryRefused(["'user' must be given; got none"], SEE)
    if snapshot is None:
        raise TableMissing(reader.tables["quotas"].uri)
    until_ms = min(query.until_ms or state.now_ms, state.now_ms)
    since_ms = max(query.since_ms if query.since_ms is not None else until_ms - _DEFAULT_SPAN_MS,
                   until_ms - _LONGEST_SPAN_MS)  # fmt: skip
    if since_ms >= until_ms:
        raise QueryRefused([f"'since' must be before 'until'; got {since_ms} and {until_ms}"], SEE)
    found = effective(snapshot, user, client_id, _clients_of(state, user, client_id))
    span, series = read_series(reader, found, (user, client_id), (since_ms, until_ms), state.rates_at_ms)
    told = read_throttles(reader, (user, client_id), span)
    held = [one for one in state.running if (one.row["user"], one.row["client_id"]) == (user, client_id)]
    on_brokers = enforced_for(reader.root, user, client_id, QUOTA_TYPES)
    timeline = bounds_over_time(reader, user, client_id, span.since_ms, span.until_ms)
    return {
        **state.head(),
        "user": user,
        "client_id": client_id,
        "since_ms": span.since_ms,
        "until_ms": span.until_ms,
        "known_since_ms": reader.tables["batches"].oldest_value("evaluated_at_ms"),
        "step_ms": span.bin_ms,
        **series,
        "bounds": timeline.bounds,
        "edits": timeline.edits,
        "bands": told.bands,
        "decisions": [decision_row(row) for row in told.decisions],
        "decisions_total": told.decisions_total,
        "records_total": told.records_total,
        "has_more": told.has_more,
        "records": [record_row(row) for row in told.records],
        "throttled": [throttled_row(one, state.levels) for one in held],
        "owed": [record_row(one.row) for one in held],
        "levels": [row.document() for row in found.levels],
        "effective": [_effective_row(one, state) for one in found.by_type],
        "on_brokers": [{**on_brokers_row(one), "text": on_brokers_line(one)} for one in on_brokers],
    }


def _effective_row(one: EffectiveQuota, state: State) -> dict[str, Any]:
    sensor = (one.quota_type, one.sensor_user, one.sensor_client_id, one.level)
    observed = (
        rate.observed
        for rate in state.sensors
        if (rate.quota_type, rate.sensor_user, rate.sensor_client_id, rate.level) == sensor
    )
    return {
        "observed": next(observed, 0.0),
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
