"""What the view Client shows of one `<user, client-id>` over a span: rates, decisions, throttles, bounds and edits."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dashboard.api import SEE, Query
from pipeline.dashboard.live_rates import names_table
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.recent import (
    DECISION_COLUMNS,
    RECORD_COLUMNS,
    TIME,
    RecentRows,
    RecentTable,
    Wanted,
    WatchedTable,
    recent_sums,
)
from pipeline.dashboard.state import State, picked, throttled_row
from pipeline.dashboard.verdict import shown_as
from pipeline.errors import PipelineError, TableMissing
from pipeline.replay.story import on_brokers_line, on_brokers_row
from pipeline.tables.address import table_missing
from pipeline.tables.enforced import enforced_for
from pipeline.tables.port import Condition
from pipeline.tables.queries import FILTER_FIRST, largest
from pipeline.tables.quotas.table import QuotaCommit, QuotaTable
from pipeline.web import QueryRefused
from quota.effective import Effective, EffectiveQuota, effective, resolved
from quota.entity import QUOTA_TYPES, REQUEST
from quota.errors import QuotaError
from quota.snapshot import QuotaSnapshot
from schemas.throttle_record import verb, written_ms

# Rates of the client's sensors, from the table that has them with the fewest rows.

_MEASURES: Final = dict(
    zip(QUOTA_TYPES, (("produced_bytes",), ("fetched_bytes",), ("io_time_ns", "network_time_ns")), strict=True)
)
_MINUTE_MS: Final = 60_000
_MOST_ROWS: Final = 1_000_000
"""Of `usage`, for one chart. What has more is shown by the minute, from the table that is sorted by client."""


class _RollUp(NamedTuple):
    """A row is written when usage is known for so long after its end."""

    name: str
    column: str
    row_ms: int
    lateness_ms: int


_ROLL_UPS: Final = (
    _RollUp("usage_by_minute", "minute_start_ms", _MINUTE_MS, 10_000),
    _RollUp("usage_by_second", "second_start_ms", 1_000, 60_000),
)


class _Piece(NamedTuple):
    """What one table has of a span: [since_ms, until_ms)."""

    table: str
    column: str
    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in whole steps: [since_ms, until_ms), both multiples of bin_ms, the length of a step."""

    since_ms: int
    until_ms: int
    bin_ms: int


def read_series(
    reader: TablesReader, found: Effective, client: tuple[str, str], ends_ms: tuple[int, int], whole_until_ms: int
) -> tuple[Span, dict[str, Any]]:
    """The rate of each type's sensor, and of the client itself where it is not alone under it.

    Args:
        whole_until_ms: Usage is complete up to here: a step that ends later is not shown, or it would fall.
    """
    since_ms, until_ms = ends_ms
    settings = reader.engine_settings()
    bin_ms = step_ms(until_ms - since_ms, settings.sample_window_ms)
    if bin_ms < _MINUTE_MS and _is_much(reader, since_ms, until_ms):
        bin_ms = _MINUTE_MS
    span = Span(since_ms // bin_ms * bin_ms, -(-until_ms // bin_ms) * bin_ms, bin_ms)
    window_ms = settings.num_samples * settings.sample_window_ms - settings.sample_window_ms
    pieces = _pieces(reader, span, span.since_ms - max(window_ms, bin_ms) // bin_ms * bin_ms, whole_until_ms)
    sums = _sums(reader, found, client, span, pieces)
    known = has_data(_batch_instants(reader, span), span.since_ms, span.until_ms, bin_ms)
    at_ms = list(range(span.since_ms + bin_ms, span.until_ms + bin_ms, bin_ms))
    known = [is_known and at <= whole_until_ms for is_known, at in zip(known, at_ms, strict=True)]
    series = {}
    for number, one in enumerate(found.by_type):
        of_type = {}
        for name in ("sensor", "own"):
            values = rates(sums[f"{name}{number}"], span.since_ms, span.until_ms, bin_ms, window_ms, one.quota_type)
            of_type[name] = [value if is_known else None for value, is_known in zip(values, known, strict=True)]
        is_alone = of_type["own"] == of_type["sensor"]
        series[one.quota_type] = {"observed": of_type["sensor"], "own": None if is_alone else of_type["own"]}
    return span, {"at_ms": at_ms, "series": series, "window_ms": max(window_ms, bin_ms), "source": pieces[0].table}


def _is_much(reader: TablesReader, since_ms: int, until_ms: int) -> bool:
    """Whether a span has more usage than is worth reading by the second. Only the statistics of files are read."""
    if reader.tables["usage_by_minute"].newest_value("minute_start_ms") is None:
        return False
    with suppress(TableMissing):
        return reader.tables["usage"].rows_about("sample_start_ms", since_ms, until_ms) > _MOST_ROWS
    return False


def _pieces(reader: TablesReader, span: Span, since_ms: int, known_until_ms: int) -> list[_Piece]:
    """Which table has which part of a span, from an instant on.

    Roll-ups trail by a minute or two, so what is newer comes from `usage`. Rows that a clock dated ahead of what is
    known, and that was set back since, do not show how far a roll-up has come.
    """
    usage = _Piece("usage", "sample_start_ms", since_ms, span.until_ms)
    fits = [one for one in _ROLL_UPS if span.bin_ms % one.row_ms == 0]
    kept_from_ms = reader.tables["usage"].oldest_value("sample_start_ms")
    if kept_from_ms is not None and kept_from_ms <= since_ms and span.bin_ms < _ROLL_UPS[0].row_ms:
        return [usage]
    for one in fits:
        newest_ms = _newest_row(reader.tables[one.name], one, known_until_ms)
        if newest_ms is not None:
            whole_until_ms = min(newest_ms + one.row_ms, span.until_ms)
            rolled_up = _Piece(one.name, one.column, since_ms, whole_until_ms)
            return [rolled_up, usage._replace(since_ms=max(whole_until_ms, since_ms))]
    return [usage]


def _newest_row(table: WatchedTable, one: _RollUp, known_until_ms: int) -> int | None:
    newest_ms = table.newest_value(one.column)
    end_ms = (known_until_ms - one.lateness_ms) // one.row_ms * one.row_ms
    if newest_ms is None or newest_ms < end_ms:
        return newest_ms
    return largest(table.opened(), one.column, [(one.column, "<", end_ms)], FILTER_FIRST)


def _sums(
    reader: TablesReader, found: Effective, client: tuple[str, str], span: Span, pieces: list[_Piece]
) -> dict[str, dict[int, float]]:
    """By step: what each type's sensor used, and what the client itself used."""
    wanted = []
    for number, one in enumerate(found.by_type):
        # Without a quota nothing is summed over clients. Days are sorted by user: a client-id alone reads all of them.
        of_sensor = (one.sensor_user or None, one.sensor_client_id or None)
        sensor = client if one.level is None or of_sensor == (None, None) else of_sensor
        for name, names in (("sensor", sensor), ("own", client)):
            wanted.append(Wanted(f"{name}{number}", names, _MEASURES[one.quota_type]))
    sums: dict[str, dict[int, float]] = {one.name: {} for one in wanted}
    for piece in pieces:
        if piece.since_ms >= piece.until_ms:
            continue
        recent = reader.recent.usage
        held = recent.held if piece.table == "usage" else None
        # A sample never begins after the instant at which its batch was evaluated.
        is_held = held is not None and piece.since_ms >= held.begin
        if not is_held or (recent.has_older_epochs and piece.since_ms < reader.epoch_begin_ms):
            rows = _rows_sql(reader, held) if piece.table == "usage" else ""
            _add(sums, span.bin_ms, _stored(reader, piece, span.bin_ms, wanted, client, rows))
        if held is not None:
            _add(sums, span.bin_ms, recent_sums(held, piece.since_ms, piece.until_ms, span.bin_ms, wanted))
    return sums


def _add(sums: dict[str, dict[int, float]], bin_ms: int, found: Mapping[str, Sequence[Any]]) -> None:
    for name, of_steps in sums.items():
        for step, value in zip(found.get("step", ()), found.get(name, ()), strict=True):
            of_steps[step * bin_ms] = of_steps.get(step * bin_ms, 0.0) + (value or 0.0)


def _stored(
    reader: TablesReader, piece: _Piece, bin_ms: int, wanted: list[Wanted], client: tuple[str, str], rows: str
) -> Mapping[str, list[Any]]:
    """The sums of a piece by step, from the table; `rows` has further conditions."""
    selected = ", ".join(
        f"sum(CASE WHEN {_names_sql(one.names)} THEN {_measure_sql(one.columns)} END) AS {one.name}" for one in wanted
    )
    # Each sensor has the client's own usage, too.
    own = _names_sql(client)
    concerned = " OR ".join(f"({one})" for one in sorted({_names_sql(one.names) for one in wanted} - {own} or {own}))
    try:
        found = reader.tables[piece.table].query(
            f"SELECT {piece.column} / {bin_ms} AS step, {selected} FROM source "  # noqa: S608 - names are quoted by us
            f"WHERE {piece.column} >= {piece.since_ms} AND {piece.column} < {piece.until_ms} AND ({concerned}) "
            f"{rows}GROUP BY 1"
        )
    except TableMissing:
        return {}
    return {name: found[name].to_pylist() for name in found.column_names}


def _rows_sql(reader: TablesReader, held: RecentRows | None) -> str:
    """Which rows of `usage` count that are not in memory.

    Of what the clock showed twice, because it was set back, the second time is shown.
    """
    time_epoch = reader.recent.usage.time_epoch
    shown = f"AND (time_epoch = {time_epoch} OR sample_start_ms < {reader.epoch_begin_ms}) " if time_epoch else ""
    if held is None:
        return shown
    older = f" OR time_epoch < {time_epoch} OR time_epoch IS NULL" if time_epoch else ""
    return f"{shown}AND (evaluated_at_ms < {held.begin}{older}) "


def _measure_sql(columns: Sequence[str]) -> str:
    return columns[0] if len(columns) == 1 else " + ".join(f"coalesce({name}, 0)" for name in columns)


def _names_sql(names: tuple[str | None, str | None]) -> str:
    tags = zip(('"user"', "client_id"), names, strict=True)
    return " AND ".join(f"{column} = {_quoted(name)}" for column, name in tags if name is not None)


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _batch_instants(reader: TablesReader, span: Span) -> list[int]:
    part_ms = max(span.bin_ms // 2, 1_000)
    since_ms, until_ms = span.since_ms - 2 * span.bin_ms, span.until_ms + span.bin_ms
    newest = reader.batches[-1]["time_epoch"] if reader.batches else 0
    newest_at_ms = [int(one["evaluated_at_ms"]) for one in reader.batches if one["time_epoch"] == newest]
    with suppress(TableMissing):
        return reader.batch_parts.in_span(reader.tables["batches"], part_ms, since_ms, until_ms, newest_at_ms)
    return []


# Decisions, records and throttled spans, the newest first, and only as many as are shown.

MOST_DECISIONS: Final = 1_000
MOST_RECORDS: Final = 200
_HOUR_MS: Final = 3_600_000
# A throttle that began so long before the span may still run in it.
_EARLY_MS: Final = 600_000
# What is counted back from the end of the span in each step; then all the rest.
_STEPS_MS: Final = (_HOUR_MS, 6 * _HOUR_MS, 24 * _HOUR_MS)


def read_throttles(reader: TablesReader, client: tuple[str, str], span: Span) -> dict[str, Any]:
    """What was decided for a client, oldest first, and published, newest first.

    The totals are of what was read, and `has_more` is whether there may be older ones that were not read. Where a step
    of the span is a minute or longer, the bands are those of `throttle_by_minute`: a day of records is not read to
    draw some minutes. Records that are not in it yet are added.
    """
    enough = MOST_DECISIONS if span.bin_ms >= _MINUTE_MS else None
    decisions, more_decisions = _newest(reader.recent.decisions, DECISION_COLUMNS, client, span, enough)
    decisions.sort(key=lambda row: (row[TIME], row["batch_id"]))
    records, more_records, found = read_records(reader, client, span)
    return {
        "bands": found,
        "decisions": [picked(row, DECISION_COLUMNS) for row in decisions[-MOST_DECISIONS:]],
        "decisions_total": len(decisions),
        "records_total": len(records),
        "has_more": more_decisions or more_records,
        "records": [record_row(row) for row in records[:MOST_RECORDS]],
    }


def read_records(
    reader: TablesReader, client: tuple[str, str], span: Span
) -> tuple[list[dict[str, Any]], bool, list[dict[str, Any]]]:
    """The records of a client, newest first; whether there may be older ones; and its bands."""
    enough = MOST_RECORDS if span.bin_ms >= _MINUTE_MS else None
    early = Span(span.since_ms - _EARLY_MS, span.until_ms, span.bin_ms)
    records, has_more = _newest(reader.recent.events, RECORD_COLUMNS, client, early, enough)
    records.sort(key=lambda row: int(row["publish_seq"]), reverse=True)
    found = bands(records, span.since_ms)
    return records, has_more, _with_minutes(reader, client, span, found) if has_more else found


def _newest(
    table: RecentTable, columns: Sequence[str], client: tuple[str, str], span: Span, enough: int | None
) -> tuple[list[dict[str, Any]], bool]:
    """At least so many of the newest rows, and whether there may be more; None = all."""
    found: list[dict[str, Any]] = []
    until_ms = span.until_ms
    for back_ms in (*(() if enough is None else _STEPS_MS), span.until_ms - span.since_ms):
        since_ms = max(span.until_ms - back_ms, span.since_ms)
        try:
            found += table.rows(columns, client, since_ms, until_ms)
        except TableMissing:
            return [], False
        if since_ms <= span.since_ms:
            break
        if enough is not None and len(found) >= enough:
            return found, True
        until_ms = since_ms
    return found, False


def _with_minutes(
    reader: TablesReader, client: tuple[str, str], span: Span, of_records: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Bands by minute up to the first one that records have, then those."""
    until_ms = min((band["start_ms"] for band in of_records), default=span.until_ms)
    client_sql = _names_sql(client)
    try:
        rows = reader.tables["throttle_by_minute"].query(
            "SELECT minute_start_ms, quota_type, sum(held_ms) AS held_ms, "  # noqa: S608 - names are quoted by us
            "sum(throttle_count + renewal_count) AS records FROM source "
            f"WHERE minute_start_ms >= {span.since_ms} AND minute_start_ms < {until_ms} AND {client_sql} GROUP BY 1, 2"
        )
    except TableMissing:
        return [*of_records]
    minutes = zip(
        *(rows[name].to_pylist() for name in ("minute_start_ms", "quota_type", "held_ms", "records")), strict=True
    )
    return [*bands_of_minutes(minutes, span.bin_ms), *of_records]


# Bounds over time and the edits that changed them, from the versions of the quota table.

_MOST_VERSIONS: Final = 60


def bounds_over_time(reader: TablesReader, client: tuple[str, str], span: Span) -> dict[str, list[dict[str, Any]]]:
    """What a client might use in a span, by the versions that were the newest then; and who edited that, and why.

    A version that is not valid, or no longer kept, changes nothing.
    """
    since_ms, commits = span.since_ms, _commits(reader.root, reader.tables["quotas"].version)
    before = [commit for commit in commits if commit.committed_at_ms <= since_ms]
    shown = [*before[-1:], *(commit for commit in commits if since_ms < commit.committed_at_ms < span.until_ms)]
    bounds: list[dict[str, Any]] = []
    edits: list[dict[str, Any]] = []
    for commit in shown:
        try:
            found = _resolved(reader.quotas_at(commit.version), *client)
        except (PipelineError, QuotaError):
            continue
        if bounds and bounds[-1]["by_type"] == found:
            continue
        edit = _edit_row(commit, bounds[-1]["by_type"] if bounds else {}, found)
        # The commit that made the table is the first of all, and gave no client a bound.
        if bounds or (edit["changed"] and commit.committed_at_ms > since_ms):
            edits.append(edit)
        bounds.append({"since_ms": max(commit.committed_at_ms, since_ms), "version": commit.version, "by_type": found})
    return {"bounds": bounds, "edits": edits}


_OF_THE_TABLE: Final = frozenset({"CREATE TABLE", "ADD CONSTRAINT", "ADD COLUMN", "SET TBLPROPERTIES"})
"""Operations that change no quota."""


def made_by(commit: QuotaCommit) -> str:
    """Who made a version, in words. kquota makes and extends the table itself without an audit."""
    if commit.audit is not None:
        return f"{commit.audit.actor} at {commit.audit.host}"
    if commit.operation in _OF_THE_TABLE:
        return f"kquota, for the table itself ({commit.operation.lower()})"
    return f"another tool ({commit.operation.lower()})"


def _edit_row(commit: QuotaCommit, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    changed = {
        name: [before.get(name, {}).get("bound"), one["bound"]]
        for name, one in after.items()
        if before.get(name, {}).get("bound") != one["bound"]
    }
    why = {name: getattr(commit.audit, name, None) for name in ("actor", "reason")}
    made = {"at_ms": commit.committed_at_ms, "version": commit.version, "by": made_by(commit)}
    return {**made, **why, "changed": changed}


def quotas_then(reader: TablesReader, at_ms: int, version: int | None = None) -> QuotaSnapshot | None:
    """The quotas of a version; if that is not known, the newest valid ones at an instant, as far as they are kept."""
    commits = reversed(_commits(reader.root, reader.tables["quotas"].version))
    older = (commit.version for commit in commits if commit.committed_at_ms <= at_ms)
    for one in older if version is None else [version]:
        with suppress(PipelineError, QuotaError):
            return reader.quotas_at(one)
    return None


@lru_cache(maxsize=8)
def _commits(root: str, _newest: int | None) -> tuple[QuotaCommit, ...]:
    """Oldest first; read again when there is a newer version, as a look at the log takes 10 ms."""
    return tuple(sorted(QuotaTable(root).history(_MOST_VERSIONS), key=lambda commit: commit.version))


@lru_cache(maxsize=512)
def _resolved(snapshot: QuotaSnapshot, user: str, client_id: str) -> dict[str, dict[str, Any]]:
    rows = resolved(names_table([(user, client_id)]), snapshot)
    return {row["quota_type"]: picked(row, ("bound", "mode", "level")) for row in rows}


_DEFAULT_SPAN_MS: Final = 900_000
_LONGEST_SPAN_MS: Final = 90 * 86_400_000
_ALIKE: Final = 5


def asked_span(query: Query, now_ms: int) -> tuple[int, int]:
    """The span [since, until) that a request asks for, at most 90 days and not after now; 15 minutes without a begin.

    Raises:
        QueryRefused: It is empty.
    """
    until_ms = min(query.until_ms or now_ms, now_ms)
    since_ms = until_ms - _DEFAULT_SPAN_MS if query.since_ms is None else query.since_ms
    if since_ms >= until_ms:
        raise QueryRefused([f"'since' {since_ms} is not before 'until' {until_ms}"], SEE)
    return max(since_ms, until_ms - _LONGEST_SPAN_MS), until_ms


def client_document(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """The view Client.

    Raises:
        QueryRefused: No user is given, or the span is empty.
    """
    user, client_id, snapshot = query.user, query.client_id or "", reader.snapshot()
    if not user:
        raise QueryRefused(["'user' is missing"], SEE)
    client = (user, client_id)
    if snapshot is None:
        raise table_missing(reader.tables["quotas"].uri)
    since_ms, until_ms = asked_span(query, state.now_ms)
    found = effective(snapshot, user, client_id, _clients_of(state, user, client_id))
    span, series = read_series(reader, found, client, (since_ms, until_ms), state.rates_at_ms)
    held = [one for one in state.running if (one.row["user"], one.row["client_id"]) == client]
    on_brokers = enforced_for(reader.root, user, client_id, QUOTA_TYPES)
    bounds, throttles = bounds_over_time(reader, client, span), read_throttles(reader, client, span)
    seen_ms = _last_seen(reader, client, series)
    return {
        **state.head(),
        "user": user,
        "client_id": client_id,
        "since_ms": span.since_ms,
        "until_ms": span.until_ms,
        "known_since_ms": reader.tables["batches"].oldest_value("evaluated_at_ms"),
        "step_ms": span.bin_ms,
        **series,
        **bounds,
        **throttles,
        "shown_as": _shown_as(series["series"], bounds["bounds"], throttles),
        "seen_ms": seen_ms,
        "alike": [] if seen_ms is not None else _alike(client, reader.clients_seen().names),
        "throttled": [throttled_row(one, state.levels) for one in held],
        "owed": [record_row(one.row) for one in held],
        "levels": [row.document() for row in found.levels],
        "effective": [_effective_row(one, state) for one in found.by_type],
        "on_brokers": [{**on_brokers_row(one), "text": on_brokers_line(one)} for one in on_brokers],
    }


def _shown_as(
    series: Mapping[str, Any], bounds: Sequence[Mapping[str, Any]], throttles: Mapping[str, Any]
) -> dict[str, str]:
    decided = {row["quota_type"] for name in ("decisions", "bands") for row in throttles[name]}
    types = {}
    for name, one in series.items():
        of_type = [row["by_type"][name]["bound"] for row in bounds if name in row["by_type"]]
        types[name] = {
            "most": max((value for value in one["observed"] if value is not None), default=0.0),
            "bound": max((bound for bound in of_type if bound is not None), default=None),
            "decided": name in decided,
        }
    return shown_as(types)


def _last_seen(reader: TablesReader, client: tuple[str, str], series: Mapping[str, Any]) -> int | None:
    """When a client last used something, as far as it is kept; None if it never did."""
    seen_ms = reader.clients_seen().get(client)
    if seen_ms is not None:
        return seen_ms
    own = [one["own"] or one["observed"] for one in series["series"].values()]
    used = [at_ms for at_ms, *values in zip(series["at_ms"], *own, strict=True) if any(values)]
    if used:
        return int(used[-1])
    of_client: list[Condition] = [("user", "=", client[0]), ("client_id", "=", client[1])]
    with suppress(TableMissing):
        return largest(reader.tables["usage_by_minute"].opened(), "minute_start_ms", of_client, FILTER_FIRST)
    return None


def _alike(client: tuple[str, str], seen: pa.Table) -> list[dict[str, str]]:
    """Clients of the last minutes that a client which was never seen may be meant to be."""
    users = sorted(pc.unique(seen["user"]).to_pylist())
    alike = [client[0]] if client[0] in users else get_close_matches(client[0], users, n=_ALIKE)
    of_user = {user: seen.filter(pc.equal(seen["user"], user))["client_id"].to_pylist() for user in alike}
    found = [(user, client_id) for user in alike for client_id in sorted(of_user[user])]
    found.sort(key=lambda one: -SequenceMatcher(None, one[1], client[1]).ratio())
    return [{"user": user, "client_id": client_id} for user, client_id in found[:_ALIKE]]


def _effective_row(one: EffectiveQuota, state: State) -> dict[str, Any]:
    shown = ("quota_type", "level", "mode", "bound", "sensor_user", "sensor_client_id")
    sensor = {name: getattr(one, name) for name in ("quota_type", "sensor_user", "sensor_client_id", "level")}
    places = () if one.level is None else state.sensors.places_where(**sensor)[:1]
    return {
        **{name: getattr(one, name) for name in shown},
        "observed": next((state.sensors[int(place)].observed for place in places), 0.0),
        "shared_with": [list(client) for client in one.shared_with[:50]],
        "shared": len(one.shared_with),
    }


def _clients_of(state: State, user: str, client_id: str) -> pa.Table:
    """Clients seen lately that may share a sensor with this one: no others are worth resolving."""
    may_share = [{"user": user}, *([{"client_id": client_id}] if client_id else [])]
    return names_table(
        sorted({(one.user, one.client_id) for names in may_share for one in state.sensors.where(**names)})
    )


# What is shown of them, as functions of rows. Pure.

MOST_POINTS: Final = 360
_STEPS_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400)
_GAP_MS: Final = 10_000
_NS_PER_PERCENT_SECOND: Final = 1e7
"""One percent of one thread for one second."""


def step_ms(span_ms: int, least_ms: int = 1_000) -> int:
    """The shortest of some round steps with which a span has at most `MOST_POINTS` points."""
    fits = (
        step * 1_000 for step in _STEPS_SECONDS if step * 1_000 >= least_ms and span_ms <= step * 1_000 * MOST_POINTS
    )
    return next(fits, _STEPS_SECONDS[-1] * 1_000)


def rates(
    sums: Mapping[int, float], since_ms: int, until_ms: int, bin_ms: int, window_ms: int, quota_type: str
) -> list[float]:
    """The rate at the end of each step, over the window before it, or over the step where that is longer.

    Args:
        sums: Start of a step -> what was used in it, in bytes or ns. May begin a window earlier.

    Returns:
        Bytes per second, or percent of one thread.
    """
    steps = max(window_ms // bin_ms, 1)
    starts = range(since_ms - (steps - 1) * bin_ms, until_ms, bin_ms)
    amounts = np.array([sums.get(start, 0.0) for start in starts], dtype=np.float64)
    summed = np.concatenate([[0.0], np.cumsum(amounts)])
    per_second = (summed[steps:] - summed[:-steps]) / (steps * bin_ms / 1_000)
    scale = _NS_PER_PERCENT_SECOND if quota_type == QUOTA_TYPES[REQUEST] else 1.0
    return [float(rate) for rate in per_second / scale]


def has_data(evaluated_at_ms: Sequence[int], since_ms: int, until_ms: int, bin_ms: int) -> list[bool]:
    """Of each step, whether the job worked then. Where it did not, nothing is known: that is a gap and not a zero."""
    ends = np.arange(since_ms + bin_ms, until_ms + bin_ms, bin_ms)
    at_ms = np.sort(np.asarray(evaluated_at_ms, dtype=np.int64))
    reach_ms = max(_GAP_MS, bin_ms)
    before, until = np.searchsorted(at_ms, ends - reach_ms), np.searchsorted(at_ms, ends + reach_ms, side="right")
    return [bool(one) for one in before < until]


BAND_COLUMNS: Final = (
    *("publish_seq", "action", "broker_id", "user", "client_id", "quota_type"),
    *("throttle_time_ms", "throttled_until_ms", "decision_id"),
)
"""What of a record tells who was held, and from when until when."""


def bands(events: Iterable[Mapping[str, Any]], since_ms: int) -> list[dict[str, Any]]:
    """The spans in which a client was held: its records, each until it ends or the next one replaces it.

    Records of one throttle that follow one another are one band.
    """
    found: list[dict[str, Any]] = []
    for row in sorted(events, key=lambda row: int(row["publish_seq"])):
        at_ms, until_ms = written_ms(row), int(row["throttled_until_ms"])
        last = found[-1] if found else None
        if row["action"] == "release":
            if last is not None:
                last["end_ms"] = min(last["end_ms"], at_ms)
                last["released"] = True
            continue
        if last is not None and last["end_ms"] >= at_ms and not last["released"]:
            last["end_ms"] = until_ms
            last["records"] += 1
            continue
        band = {"start_ms": at_ms, "end_ms": until_ms, "records": 1, "released": False}
        found.append({**band, **picked(row, ("quota_type", "decision_id"))})
    return [band for band in found if band["end_ms"] > since_ms]


def bands_of_minutes(minutes: Iterable[tuple[int, str, int, int]], step_ms: int) -> list[dict[str, Any]]:
    """The spans in which a client was held, from its minutes: where it was held in each of some steps, it is one band.

    Args:
        minutes: (start, quota type, milliseconds held, records), in no order, each start and type once.
        step_ms: Of the chart, at least a minute. Gaps shorter than that cannot be seen.
    """
    found: list[dict[str, Any]] = []
    open_bands: dict[str, dict[str, Any]] = {}
    for start_ms, quota_type, held_ms, records in sorted(minutes):
        if held_ms <= 0:
            continue
        last = open_bands.get(quota_type)
        if last is not None and start_ms - last["end_ms"] < step_ms:
            last["end_ms"] = start_ms + _MINUTE_MS
            last["records"] += records
            continue
        band = {"start_ms": start_ms, "end_ms": start_ms + _MINUTE_MS, "records": records, "released": True}
        open_bands[quota_type] = {**band, "quota_type": quota_type, "decision_id": None}
        found.append(open_bands[quota_type])
    return found


def record_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record that was published for the client, in short."""
    shown = ("cause", "quota_type", "observed", "bound", "throttle_time_ms", "throttled_until_ms", "owed_ms", "tokens")
    return {"at_ms": written_ms(row), "verb": verb(row), **picked(row, (*shown, "decision_id"))}
