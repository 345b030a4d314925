"""Reads the rates of a client's sensors over a span, from the table that has them with the fewest rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pipeline.dashboard.client_view import has_data, rates, step_ms
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.recent_rows import RecentRows
from pipeline.dashboard.recent_sums import Wanted, recent_sums
from pipeline.dashboard.watched_table import WatchedTable
from pipeline.tables.errors import TableMissing
from quota.effective import Effective
from quota.entity import QUOTA_TYPES

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
    """A span of time in whole steps.

    Attributes:
        since_ms: Its begin, inclusive.
        until_ms: Its end, exclusive.
        bin_ms: Length of a step; both ends are multiples of it.
    """

    since_ms: int
    until_ms: int
    bin_ms: int


def read_series(
    reader: TablesReader, found: Effective, client: tuple[str, str], ends_ms: tuple[int, int], whole_until_ms: int
) -> tuple[Span, dict[str, Any]]:
    """The rate of each type's sensor, and of the client itself where it is not alone under it.

    Args:
        reader: The tables.
        found: The quotas of the client.
        client: User and client-id.
        ends_ms: Begin and end of the span.
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
    try:
        return reader.tables["usage"].rows_about("sample_start_ms", since_ms, until_ms) > _MOST_ROWS
    except TableMissing:
        return False


def _pieces(reader: TablesReader, span: Span, since_ms: int, known_until_ms: int) -> list[_Piece]:
    """Which table has which part of a span, from an instant on.

    Roll-ups trail by a minute or two, so what is newer comes from `usage`. One that is missing is no error. Rows that a
    clock dated ahead of what is known, and that was set back since, do not show how far a roll-up has come.
    """
    usage = _Piece("usage", "sample_start_ms", since_ms, span.until_ms)
    fits = [one for one in _ROLL_UPS if span.bin_ms % one.row_ms == 0]
    kept_from_ms = reader.tables["usage"].oldest_value("sample_start_ms")
    if kept_from_ms is not None and kept_from_ms <= since_ms and span.bin_ms < _ROLL_UPS[0].row_ms:
        return [usage]
    for one in fits:
        newest_ms = _newest_row(reader.tables.get(one.name), one, known_until_ms)
        if newest_ms is not None:
            whole_until_ms = min(newest_ms + one.row_ms, span.until_ms)
            rolled_up = _Piece(one.name, one.column, since_ms, whole_until_ms)
            return [rolled_up, usage._replace(since_ms=max(whole_until_ms, since_ms))]
    return [usage]


def _newest_row(table: WatchedTable | None, one: _RollUp, known_until_ms: int) -> int | None:
    newest_ms = None if table is None else table.newest_value(one.column)
    end_ms = (known_until_ms - one.lateness_ms) // one.row_ms * one.row_ms
    if table is None or newest_ms is None or newest_ms < end_ms:
        return newest_ms
    sql = f"SELECT max({one.column}) AS most FROM source WHERE {one.column} < {end_ms}"  # noqa: S608 - ours
    most: int | None = table.query(sql)["most"][0].as_py()
    return most


def _sums(
    reader: TablesReader, found: Effective, client: tuple[str, str], span: Span, pieces: list[_Piece]
) -> dict[str, dict[int, float]]:
    """By step: what each type's sensor used, and what the client itself used."""
    wanted = _wanted(found, client)
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


def _wanted(found: Effective, client: tuple[str, str]) -> list[Wanted]:
    wanted = []
    for number, one in enumerate(found.by_type):
        # Without a quota nothing is summed over clients. Days are sorted by user: a client-id alone reads all of them.
        of_sensor = (one.sensor_user or None, one.sensor_client_id or None)
        sensor = client if one.level is None or of_sensor == (None, None) else of_sensor
        wanted.append(Wanted(f"sensor{number}", sensor, _MEASURES[one.quota_type]))
        wanted.append(Wanted(f"own{number}", client, _MEASURES[one.quota_type]))
    return wanted


def _add(sums: dict[str, dict[int, float]], bin_ms: int, found: Mapping[str, Sequence[Any]]) -> None:
    for name, of_steps in sums.items():
        for step, value in zip(found.get("step", ()), found.get(name, ()), strict=True):
            of_steps[step * bin_ms] = of_steps.get(step * bin_ms, 0.0) + (value or 0.0)


def _stored(
    reader: TablesReader,
    piece: _Piece,
    bin_ms: int,
    wanted: list[Wanted],
    client: tuple[str, str],
    rows: str,
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
    return " AND ".join(f"{column} = {_text(name)}" for column, name in tags if name is not None)


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _batch_instants(reader: TablesReader, span: Span) -> list[int]:
    part_ms = max(span.bin_ms // 2, 1_000)
    since_ms, until_ms = span.since_ms - 2 * span.bin_ms, span.until_ms + span.bin_ms
    try:
        newest = reader.batches[-1]["time_epoch"] if reader.batches else 0
        newest_at_ms = [int(one["evaluated_at_ms"]) for one in reader.batches if one["time_epoch"] == newest]
        return reader.batch_parts.in_span(reader.tables["batches"], part_ms, since_ms, until_ms, newest_at_ms)
    except TableMissing:
        return []
