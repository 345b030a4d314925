"""What was: the view Now as of an instant in the past, who was held in a range, and whom a throttle protected."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dashboard.api import SEE, Query
from pipeline.dashboard.client import BAND_COLUMNS, Span, asked_span, bands, quotas_then, read_records, step_ms
from pipeline.dashboard.live_rates import USAGE_COLUMNS, LiveRates, RunningThrottles
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.recent import RECORD_COLUMNS
from pipeline.dashboard.state import State, picked
from pipeline.dashboard.verdict import protection_text, range_text
from pipeline.errors import TableMissing
from pipeline.settings.model import EngineSettings
from pipeline.tables.port import Condition, of_newest_epoch
from pipeline.web import QueryRefused
from schemas.throttle_record import counts, written_ms

# The view Now of a range, and of its end if that is over.

_MINUTE_MS: Final = 60_000
_LOOK_BACK_MS: Final = 30 * _MINUTE_MS
"""How far before an instant the begin of a throttle that runs then is looked for."""
_BY_RECORDS_MS: Final = 15 * _MINUTE_MS
"""Up to this length who was held is read from the records, above it from the minutes."""
_MOST_HELD: Final = 200
_SPARK_MS: Final = 180_000
_BY_MINUTE: Final = EngineSettings(num_samples=2, sample_window_ms=_MINUTE_MS)
"""With these a rate is the mean of one minute."""


def summary_of(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """The view Now with who was held in a range; all else is of its end, or of now.

    Raises:
        QueryRefused: The range is empty.
    """
    since_ms, until_ms = asked_span(query, state.now_ms)
    is_past = until_ms < state.now_ms
    look_back_ms = max(_LOOK_BACK_MS, min(until_ms - since_ms, _BY_RECORDS_MS))
    columns = RECORD_COLUMNS if is_past else BAND_COLUMNS
    records = _records(reader, columns, until_ms - look_back_ms, until_ms)
    rates = _rates_at(reader, until_ms) if is_past else None
    shown = state if rates is None else _state_at(state, records, rates, until_ms)
    held, total = _held(reader, records, since_ms, until_ms)
    return {
        **state.head(),
        "at_ms": shown.now_ms,
        "is_past": is_past,
        "rates_at_ms": state.rates_at_ms if rates is None else rates.at_ms,
        "source": "usage" if rates is None else rates.source,
        "since_ms": since_ms,
        "until_ms": until_ms,
        **shown.document(),
        "held": {"rows": held, "total": total, "text": range_text(held, total)},
    }


@dataclass(frozen=True, slots=True)
class _RatesThen:
    """The rates at an instant, from the table `source`; `live` is None if nothing is kept of then."""

    live: LiveRates | None
    at_ms: int
    source: str


def _records(reader: TablesReader, columns: Sequence[str], since_ms: int, until_ms: int) -> list[dict[str, Any]]:
    """What was written before an instant of what was decided since another one, the oldest first."""
    with suppress(TableMissing):
        rows = reader.recent.events.rows(columns, (None, None), since_ms, until_ms)
        written = (row for row in rows if written_ms(row) <= until_ms)
        return sorted(written, key=lambda row: int(row["publish_seq"]))
    return []


def _state_at(state: State, records: Sequence[Mapping[str, Any]], rates: _RatesThen, at_ms: int) -> State:
    kept = RunningThrottles()
    kept.apply(records)
    running, recent, live = kept.running(at_ms, state.min_hold_ms), kept.recent(), rates.live
    then = State(at_ms, state.seq, state.health, running=running, recent=recent, is_past=True)
    if live is None:
        return then
    clients = sorted({(row["user"], row["client_id"]) for row in (*(one.row for one in running), *recent)})
    found = live.resolve(clients) if clients else []
    return replace(
        then,
        levels={(row["user"], row["client_id"], row["quota_type"]): row for row in found},
        sensors=live.sensors(),
        seconds=_seconds(live, rates.source),
        active_clients=live.active_clients,
        per_second=live.per_second,
    )


def _seconds(live: LiveRates, source: str) -> list[tuple[int, int, int, int]]:
    seconds = live.totals()
    if source == "usage" or not seconds:
        return seconds
    second, *sums = seconds[0]  # the sums of a minute, all in its first second
    produced, fetched, requests = (total // 60 for total in sums)
    return [(second + at, produced, fetched, requests) for at in range(60)]


def _rates_at(reader: TablesReader, at_ms: int) -> _RatesThen:
    """The rates of the newest batch before an instant; where usage is not kept so long, of the minute before."""
    settings = reader.engine_settings()
    begin_ms = at_ms - settings.rate_span_ms
    kept_from_ms = reader.tables["usage"].oldest_value("sample_start_ms")
    if kept_from_ms is not None and kept_from_ms <= begin_ms:
        span: list[Condition] = [("evaluated_at_ms", ">=", begin_ms), ("evaluated_at_ms", "<=", at_ms)]
        rows = reader.tables["usage"].read((*USAGE_COLUMNS, "quota_version"), [*_epoch(reader, at_ms), *span])
        source, newest_ms = "usage", max(rows["evaluated_at_ms"].to_pylist(), default=begin_ms)
        version = max(rows["quota_version"].to_pylist(), default=None)
    else:
        settings, source = _BY_MINUTE, "usage_by_minute"
        minute_ms = at_ms // _MINUTE_MS * _MINUTE_MS - _MINUTE_MS
        rows, newest_ms, version = _minute(reader, minute_ms), minute_ms + _MINUTE_MS - 1, None
    snapshot, live = quotas_then(reader, at_ms, version), reader.new_rates(settings)
    if not rows.num_rows or snapshot is None or live is None:
        return _RatesThen(None, newest_ms, source)
    live.load(snapshot, reader.owners)
    if source == "usage":
        live.add_totals(reader.second_sums(newest_ms - _SPARK_MS, begin_ms, _epoch_of(reader, at_ms)))
    live.record(rows, newest_ms)
    return _RatesThen(live, newest_ms, source)


def _minute(reader: TablesReader, minute_ms: int) -> pa.Table:
    columns = [("minute_start_ms AS sample_start_ms" if name == "sample_start_ms" else f'"{name}"')
               for name in USAGE_COLUMNS[3:]]  # fmt: skip
    with suppress(TableMissing):
        return reader.tables["usage_by_minute"].query(
            f"SELECT {', '.join(columns)} FROM source WHERE minute_start_ms = {minute_ms}"  # noqa: S608 - ours
        )
    return pa.table({})


def _epoch_of(reader: TablesReader, at_ms: int) -> int | None:
    """The time epoch of an instant; None for an older one than the newest."""
    newest = reader.recent.usage.time_epoch
    return newest if not newest or at_ms >= reader.epoch_begin_ms else None


def _epoch(reader: TablesReader, at_ms: int) -> list[Condition]:
    newest = reader.recent.usage.time_epoch
    if _epoch_of(reader, at_ms) is None:
        return [("time_epoch", "in", (None, *range(newest)))]
    return [*of_newest_epoch(newest)]


def _held(
    reader: TablesReader, records: Sequence[Mapping[str, Any]], since_ms: int, until_ms: int
) -> tuple[list[dict[str, Any]], int]:
    """The clients that were held in a range, the longest first, and their number."""
    by_minute: list[dict[str, Any]] = []
    rest_ms = since_ms
    if until_ms - since_ms > _BY_RECORDS_MS:
        newest_ms = reader.tables["throttle_by_minute"].newest_value("minute_start_ms")
        if newest_ms is not None:
            rest_ms = max(min(newest_ms + _MINUTE_MS, until_ms), since_ms)
            by_minute = _held_minutes(reader, since_ms, rest_ms)
    found: dict[tuple[str, str], dict[str, Any]] = {(row["user"], row["client_id"]): row for row in by_minute}
    for row in held_by(records, rest_ms, until_ms, reader.min_hold_ms):
        before = found.setdefault((row["user"], row["client_id"]), row)
        if before is not row:
            before |= {
                "held_ms": before["held_ms"] + row["held_ms"],
                "throttles": max(before["throttles"], row["throttles"]),
                "last_ms": row["last_ms"],
            }
    rows = sorted(found.values(), key=lambda row: (-row["held_ms"], row["user"], row["client_id"]))
    return rows[:_MOST_HELD], len(rows)


def held_by(
    records: Iterable[Mapping[str, Any]], since_ms: int, until_ms: int, min_hold_ms: int
) -> list[dict[str, Any]]:
    """How long each client was held in [since, until), by its records; what is too short to count is left out. Pure.

    Returns:
        user, client_id, `held_ms`, `throttles` (that run in the range) and `last_ms`, where the last one ended.
    """
    of_client: defaultdict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in records:
        of_client[row["broker_id"], row["user"], row["client_id"]].append(row)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for (_, user, client_id), rows in of_client.items():
        for band in bands(rows, since_ms):
            if band["start_ms"] >= until_ms or not counts(band["start_ms"], band["end_ms"], min_hold_ms):
                continue
            begin_ms, end_ms = max(band["start_ms"], since_ms), min(band["end_ms"], until_ms)
            row = found.setdefault(
                (user, client_id),
                {"user": user, "client_id": client_id, "held_ms": 0, "throttles": 0, "last_ms": end_ms},
            )
            held_ms, last_ms = row["held_ms"] + end_ms - begin_ms, max(row["last_ms"], end_ms)
            row |= {"held_ms": held_ms, "throttles": row["throttles"] + 1, "last_ms": last_ms}
    return [*found.values()]


def _held_minutes(reader: TablesReader, since_ms: int, until_ms: int) -> list[dict[str, Any]]:
    rows = reader.tables["throttle_by_minute"].query(
        'SELECT "user", client_id, sum(held_ms) AS held_ms, sum(throttle_count) AS throttles, '  # noqa: S608 - numbers
        f"max(minute_start_ms) + {_MINUTE_MS} AS last_ms FROM source "
        f"WHERE minute_start_ms >= {since_ms // _MINUTE_MS * _MINUTE_MS} AND minute_start_ms < {until_ms} "
        "AND held_ms > 0 GROUP BY 1, 2"
    )
    # A throttle that began before the range has no begin in it.
    return [row | {"throttles": max(row["throttles"], 1)} for row in rows.to_pylist()]


# Whom a throttle protected: what the others used before it and while it held.

_NEIGHBOURS: Final = 8
_SHORTEST_MS: Final = 10_000
_LONGEST_MS: Final = 60_000
_LONGEST_HOLD_MS: Final = 5 * _MINUTE_MS
"""How far before the two spans the begin of a throttle that runs in them is looked for."""


def protected_document(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """What the other clients used, and how long each was held, before and during the newest throttle of a client.

    The two spans are as long as the throttle, but 10 to 60 s. One that began less than 10 s ago is not compared yet.

    Raises:
        QueryRefused: No user is given, or the range is empty.
    """
    if not query.user:
        raise QueryRefused(["'user' is missing"], SEE)
    client = query.user, query.client_id or ""
    since_ms, until_ms = asked_span(query, state.now_ms)
    bin_ms = step_ms(until_ms - since_ms)
    _, _, found = read_records(reader, client, Span(since_ms, until_ms, bin_ms))
    known_ms = min(state.rates_at_ms or state.now_ms, until_ms)
    held = [one for one in found if one["start_ms"] + _SHORTEST_MS <= known_ms
            and counts(one["start_ms"], one["end_ms"], state.min_hold_ms)]  # fmt: skip
    if not held:
        return {"band": None, "rows": [], "others": 0, "text": ""}
    band = max(held, key=lambda one: int(one["start_ms"]))
    length_ms = min(max(min(band["end_ms"], known_ms) - band["start_ms"], _SHORTEST_MS), _LONGEST_MS)
    rows, source, (begin_ms, length_ms) = _used(reader, band["start_ms"], length_ms)
    records = _records(reader, BAND_COLUMNS, begin_ms - length_ms - _LONGEST_HOLD_MS, begin_ms + length_ms)
    others, around = neighbours(rows, client), _held_around(records, begin_ms, length_ms)
    before, during = (
        sum(pc.sum(others[name]).as_py() or 0 for name in names) * 1_000 / length_ms for names in (_BEFORE, _DURING)
    )
    return {
        "band": {"start_ms": band["start_ms"], "end_ms": band["end_ms"]},
        "begin_ms": begin_ms,
        "length_ms": length_ms,
        "source": source,
        "rows": [neighbour_row(row, length_ms, around) for row in others.slice(0, _NEIGHBOURS).to_pylist()],
        "others": others.num_rows,
        "before": before,
        "during": during,
        "text": protection_text(before, during, others.num_rows),
    }


def _held_around(
    records: Sequence[Mapping[str, Any]], begin_ms: int, length_ms: int
) -> dict[tuple[str, str], dict[str, int]]:
    spans = {"held_before_ms": begin_ms - length_ms, "held_during_ms": begin_ms}
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(spans, 0))
    for name, since_ms in spans.items():
        for row in held_by(records, since_ms, since_ms + length_ms, 0):
            found[row["user"], row["client_id"]][name] = row["held_ms"]
    return found


def neighbours(rows: pa.Table, client: tuple[str, str]) -> pa.Table:
    """All clients but one that used something before or during, those that used the most first. Pure.

    * `rows`: has the columns of `USED_SCHEMA`; null counts as 0. The result has one more, of the sum.
    """
    used = reduce(pc.add, [pc.fill_null(rows[name], 0) for name in _SUMS])
    is_client = pc.and_(pc.equal(rows["user"], client[0]), pc.equal(rows["client_id"], client[1]))
    others = rows.append_column(_USED, used).filter(pc.and_(pc.greater(used, 0), pc.invert(is_client)))
    return others.sort_by([(_USED, "descending"), ("user", "ascending"), ("client_id", "ascending")])


def neighbour_row(
    row: Mapping[str, Any], length_ms: int, held: Mapping[tuple[str, str], Mapping[str, int]]
) -> dict[str, Any]:
    """The rates of a client per second, before and during, and how long brokers made it wait, in ms. Pure.

    The wait is None where no meter reports it.

    Args:
        held: `held_before_ms` and `held_during_ms` of the clients that were held in the two spans.
    """
    client = row["user"], row["client_id"]
    return {
        **picked(row, ("user", "client_id")),
        **{name: (row[name] or 0) * 1_000 / length_ms for name in _SUMS},
        **picked(row, _WAITED),
        **held.get(client, {"held_before_ms": 0, "held_during_ms": 0}),
    }


_BEFORE: Final = ("produced_before", "fetched_before")
_DURING: Final = ("produced_during", "fetched_during")
_SUMS: Final = (*_BEFORE, *_DURING)
_WAITED: Final = ("waited_before", "waited_during")
_USED: Final = "used"
USED_SCHEMA: Final = pa.schema(
    [("user", pa.string()), ("client_id", pa.string()), *((name, pa.int64()) for name in (*_SUMS, *_WAITED))]
)
_COLUMNS: Final = {"produced": "produced_bytes", "fetched": "fetched_bytes", "waited": "broker_throttle_ms"}


def _used(reader: TablesReader, start_ms: int, length_ms: int) -> tuple[pa.Table, str, tuple[int, int]]:
    """What each client used for so long before and after an instant, the table, and the instant and length taken."""
    kept_from_ms = reader.tables["usage"].oldest_value("sample_start_ms")
    source, column = "usage", "sample_start_ms"
    if kept_from_ms is None or kept_from_ms > start_ms - length_ms:
        source, column = "usage_by_minute", "minute_start_ms"
        start_ms, length_ms = -(-start_ms // _MINUTE_MS) * _MINUTE_MS, _MINUTE_MS
    parts = [
        f"sum(CASE WHEN {column} {'<' if when == 'before' else '>='} {start_ms} THEN {summed} END) AS {name}_{when}"
        for name, summed in _COLUMNS.items()
        for when in ("before", "during")
    ]
    try:
        rows = reader.tables[source].query(
            f'SELECT "user", client_id, {", ".join(parts)} FROM source '  # noqa: S608 - numbers of ours
            f"WHERE {column} >= {start_ms - length_ms} AND {column} < {start_ms + length_ms} GROUP BY 1, 2"
        )
    except TableMissing:
        rows = USED_SCHEMA.empty_table()
    return rows, source, (start_ms, length_ms)
