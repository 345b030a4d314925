"""What the view Client shows of one `<user, client-id>`: rates, decisions, throttles, bounds and edits.

Each box reads one table, by one query: 15 minutes from `usage`, longer ranges from the roll-ups by the minute, which
end a minute or two before now. Grafana shows what was before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.dashboard.reader import TablesReader, client_of, names_table
from pipeline.dashboard.state import State, picked, protection_text, throttled_row
from pipeline.errors import PipelineError, TableMissing
from pipeline.replay.story import on_brokers_line, on_brokers_row
from pipeline.tables.address import table_uri
from pipeline.tables.broker_quotas import enforced_for
from pipeline.tables.port import Condition
from pipeline.tables.queries import StoredTable, column_list, predicates
from pipeline.tables.quotas.table import QuotaCommit, QuotaTable
from pipeline.tables.rates import held_by_brokers, read_rates
from pipeline.tables.reading import clients_seen
from pipeline.tables.throttles import named
from quota.effective import Effective, effective, resolved
from quota.entity import QUOTA_TYPES, REQUEST
from quota.errors import QuotaError
from quota.snapshot import QuotaSnapshot
from schemas.throttle_record import Target, counts, verb, written_ms

SEE: Final = "see docs/dashboard.md"
RANGES: Final = {"15m": 900_000, "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000, "7d": 604_800_000}
"""The lengths of the ranges, in ms; each ends now."""

# Rates of the client's sensors.

_MEASURES: Final = dict(
    zip(QUOTA_TYPES, ("produced_bytes", "fetched_bytes", "coalesce(io_time_ns, 0) + coalesce(network_time_ns, 0)"),
        strict=True)
)  # fmt: skip
_MINUTE_MS: Final = 60_000
_ROLL_UP_LATENESS_MS: Final = 10_000
"""A minute is rolled up when usage is known for so long after its end."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in whole steps: [since_ms, until_ms), both multiples of bin_ms, the length of a step."""

    since_ms: int
    until_ms: int
    bin_ms: int

    @property
    def is_by_minute(self) -> bool:
        """Whether it is read from the roll-ups."""
        return self.bin_ms >= _MINUTE_MS


def span_of(reader: TablesReader, now_ms: int, range_ms: int) -> Span:
    """The steps of a range that ends now."""
    least_ms = _MINUTE_MS if range_ms > RANGES["15m"] else reader.engine_settings().sample_window_ms
    bin_ms = step_ms(range_ms, least_ms)
    return Span((now_ms - range_ms) // bin_ms * bin_ms, -(-now_ms // bin_ms) * bin_ms, bin_ms)


def read_series(
    reader: TablesReader, found: Effective, client: tuple[str, str], span: Span, whole_until_ms: int
) -> dict[str, Any]:
    """The rate of each type's sensor, and of the client itself where it is not alone under it.

    Args:
        whole_until_ms: Usage is complete up to here: a step that ends later is not shown, or it would fall.
    """
    settings = reader.engine_settings()
    bin_ms, table, column = span.bin_ms, "usage", "sample_start_ms"
    window_ms = (settings.num_samples - 1) * settings.sample_window_ms
    if span.is_by_minute:
        table, column = "usage_by_minute", "minute_start_ms"
        whole_until_ms = _rolled_up_until(reader, whole_until_ms)
    since_ms = span.since_ms - max(window_ms, bin_ms) // bin_ms * bin_ms
    sums = _sums(reader, found, client, (table, column), Span(since_ms, span.until_ms, bin_ms))
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
    return {"at_ms": at_ms, "series": series, "window_ms": max(window_ms, bin_ms), "source": table}


def _rolled_up_until(reader: TablesReader, known_until_ms: int) -> int:
    """Rows that a clock dated ahead, and that was set back since, do not show how far a roll-up has come."""
    end_ms = (known_until_ms - _ROLL_UP_LATENESS_MS) // _MINUTE_MS * _MINUTE_MS
    before: list[Condition] = [("minute_start_ms", "<", end_ms)]
    with suppress(TableMissing):
        newest_ms = StoredTable(reader.opened("usage_by_minute")).largest("minute_start_ms", before)
        return 0 if newest_ms is None else newest_ms + _MINUTE_MS
    return 0


def _sums(
    reader: TablesReader,
    found: Effective,
    client: tuple[str, str],
    source: tuple[str, str],
    span: Span,
) -> dict[str, dict[int, float]]:
    """By step: what each type's sensor used, and what the client itself used."""
    own, (table, column), bin_ms = _names_sql(*client), source, span.bin_ms
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
        table,
        f"SELECT {column} / {bin_ms} AS step, {selected} FROM source "  # noqa: S608 - names are quoted by us
        f"WHERE {column} >= {span.since_ms} AND {column} < {span.until_ms} AND ({concerned}) "
        f"{reader.shown_once() if table == 'usage' else ''}GROUP BY 1",
    )
    for row in rows:
        for name, of_steps in sums.items():
            of_steps[row["step"] * bin_ms] = row[name] or 0.0
    return sums


def _names_sql(user: str | None, client_id: str | None) -> str:
    return predicates([(name, "=", one) for name, one in (("user", user), ("client_id", client_id)) if one is not None])


def _batch_instants(reader: TablesReader, span: Span) -> list[int]:
    part_ms = max(span.bin_ms // 2, 1_000)
    since_ms, until_ms = span.since_ms - 2 * span.bin_ms, span.until_ms + span.bin_ms
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
    """What was decided for a client, oldest first, and published, newest first: the newest rows of the span.

    * `user_types`: The quota types for which the client is in the sensor of its user, and held with it.

    By the minute the bands are those of `throttle_by_minute`.
    """
    of_client = f"({_names_sql(*client)} OR {_names_sql(client[0], None)} AND {_of_user_sql(user_types)})"
    decisions = _once(_newest(reader, "decisions", _DECISION_COLUMNS, of_client, span))
    records = _newest(reader, "throttle_events", _RECORD_COLUMNS, _holding_sql(*client), span)
    return {
        "bands": _minute_bands(reader, of_client, span) if span.is_by_minute else bands(records, span.since_ms),
        "decisions": decisions[::-1],
        "decisions_total": len(decisions),
        "records_total": len(records),
        "has_more": _MOST_ROWS in {len(decisions), len(records)},
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


def _minute_bands(reader: TablesReader, where: str, span: Span) -> list[dict[str, Any]]:
    rows = reader.query(
        "throttle_by_minute",
        "SELECT minute_start_ms, quota_type, sum(held_ms) AS held_ms, "  # noqa: S608 - names are quoted by us
        "sum(throttle_count + renewal_count) AS records FROM source "
        f"WHERE minute_start_ms >= {span.since_ms} AND minute_start_ms < {span.until_ms} "
        f"AND {where} GROUP BY 1, 2",
    )
    names = ("minute_start_ms", "quota_type", "held_ms", "records")
    return bands_of_minutes((tuple(row[name] for name in names) for row in rows), span.bin_ms)


# Whom the newest throttle protected: what the others used before it and while it held.

_NEIGHBOURS: Final = 8
_SHORTEST_MS, _LONGEST_MS = 10_000, 60_000
_USED: Final = {"produced": "produced_bytes", "fetched": "fetched_bytes", "waited": "broker_throttle_ms"}


def protected_document(reader: TablesReader, state: State, client: tuple[str, str]) -> dict[str, Any]:
    """What the other clients used before and during the newest throttle of a client in the last 15 minutes.

    The two spans are as long as the throttle, but 10 to 60 s. One that began less than 10 s ago is not compared yet.
    The neighbours that used the most come first; a wait at brokers is None where no meter reports it.
    """
    now_ms = state.now_ms
    known_ms = min(state.rates_at_ms or now_ms, now_ms)
    span = span_of(reader, now_ms, RANGES["15m"])
    found = bands(_newest(reader, "throttle_events", _RECORD_COLUMNS, _holding_sql(*client), span), span.since_ms)
    held = [one for one in found if one["start_ms"] + _SHORTEST_MS <= known_ms
            and counts(one["start_ms"], one["end_ms"], state.min_hold_ms)]  # fmt: skip
    if not held:
        return {"band": None, "rows": [], "others": 0, "text": ""}
    band = max(held, key=lambda one: int(one["start_ms"]))
    begin_ms = band["start_ms"]
    length_ms = min(max(min(band["end_ms"], known_ms) - begin_ms, _SHORTEST_MS), _LONGEST_MS)
    who = _names_sql(client[0], None if band["client_id"] is None else client[1])
    rows = _used(reader, who, begin_ms, length_ms)
    before, during = (rows[0][name] * 1_000 / length_ms if rows else 0.0 for name in ("before", "during"))
    others = rows[0]["others"] if rows else 0
    rate_names = [f"{name}_{when}" for name in ("produced", "fetched") for when in ("before", "during")]
    return {
        "band": picked(band, ("start_ms", "end_ms")),
        "begin_ms": begin_ms,
        "length_ms": length_ms,
        "rows": [
            {**picked(row, ("user", "client_id", "waited_before", "waited_during")),
             **{name: (row[name] or 0) * 1_000 / length_ms for name in rate_names}}
            for row in rows
        ],
        "others": others,
        "text": protection_text(before, during, others),
    }  # fmt: skip


def _used(reader: TablesReader, held: str, begin_ms: int, length_ms: int) -> list[dict[str, Any]]:
    """What those used who are not `held`, a condition in SQL."""
    sums = {
        f"{name}_{when}": f"sum(CASE WHEN sample_start_ms {sign} {begin_ms} THEN {column} END)"
        for name, column in _USED.items()
        for when, sign in (("before", "<"), ("during", ">="))
    }
    whens = {when: f"coalesce(produced_{when}, 0) + coalesce(fetched_{when}, 0)" for when in ("before", "during")}
    totals = ", ".join(f"sum({used}) OVER () AS {when}" for when, used in whens.items())
    used = " + ".join(whens.values())
    return reader.query(
        "usage",
        f'SELECT *, count(*) OVER () AS others, {totals} FROM (SELECT "user", client_id, '  # noqa: S608 - quoted by us
        f"{', '.join(f'{sum_} AS {name}' for name, sum_ in sums.items())} FROM source "
        f"WHERE sample_start_ms >= {begin_ms - length_ms} AND sample_start_ms < {begin_ms + length_ms} "
        f"AND NOT ({held}) GROUP BY 1, 2) "
        f'WHERE {used} > 0 ORDER BY {used} DESC, "user", client_id LIMIT {_NEIGHBOURS}',
    )


# Bounds over time and the edits that changed them, from the versions of the quota table.

_MOST_VERSIONS: Final = 60


def bounds_over_time(reader: TablesReader, client: tuple[str, str], span: Span) -> dict[str, list[dict[str, Any]]]:
    """What a client might use in a span, by the versions that were the newest then; and who edited that, and why.

    A version that is not valid, or no longer kept, changes nothing.
    """
    since_ms = span.since_ms
    commits = sorted(QuotaTable(reader.root).history(_MOST_VERSIONS), key=lambda commit: commit.version)
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


@lru_cache(maxsize=512)  # the engine of a version with ten thousand rows takes 300 ms to load
def _resolved(snapshot: QuotaSnapshot, user: str, client_id: str) -> dict[str, dict[str, Any]]:
    rows = resolved(names_table([(user, client_id)]), snapshot)
    return {row["quota_type"]: picked(row, ("bound", "mode", "level")) for row in rows}


_ALIKE: Final = 5


def client_document(reader: TablesReader, state: State, client: tuple[str, str], range_ms: int) -> dict[str, Any]:
    """The view Client, of a range that ends now."""
    snapshot = reader.snapshot()
    user, client_id = client
    span = span_of(reader, state.now_ms, range_ms)
    found = effective(snapshot, user, client_id, _clients_of(reader, user, client_id))
    whole_until_ms = 0 if state.batch is None else state.batch["evaluated_at_ms"]
    series = read_series(reader, found, client, span, whole_until_ms)
    held = sorted(state.held.by(user, client_id), key=lambda row: -row["throttled_until_ms"])
    user_types = [one.quota_type for one in found.by_type if one.sensor_user and not one.sensor_client_id]
    on_brokers = enforced_for(reader.root, user, client_id, QUOTA_TYPES)
    bounds, throttles = bounds_over_time(reader, client, span), read_throttles(reader, client, span, user_types)
    seen_ms = _last_seen(reader, client, series)
    return {
        **state.head(),
        "user": user,
        "client_id": client_id,
        "since_ms": span.since_ms,
        "until_ms": span.until_ms,
        "known_since_ms": StoredTable(reader.opened("batches")).oldest_value("evaluated_at_ms"),
        "step_ms": span.bin_ms,
        **series,
        **bounds,
        **throttles,
        "charts": _charts(series["series"], bounds["bounds"], throttles),
        "seen_ms": seen_ms,
        "alike": [] if seen_ms is not None else _alike(client, clients_seen(table_uri(reader.root, "usage"))),
        "throttled": [throttled_row(row) for row in held],
        "owed": [record_row(row) for row in held],
        "levels": [row.document() for row in found.levels],
        "effective": _effective_rows(reader, found),
        "on_brokers": [{**on_brokers_row(one), "text": on_brokers_line(one)} for one in on_brokers],
        "held_by_brokers": held_by_brokers(reader.root, *client, state.now_ms),
    }


def _charts(series: Mapping[str, Any], bounds: Sequence[Mapping[str, Any]], throttles: Mapping[str, Any]) -> list[str]:
    """The quota types with a chart: those that were used or decided about, and those with a bound."""
    shown = {row["quota_type"] for name in ("decisions", "bands") for row in throttles[name]}
    shown |= {name for row in bounds for name, one in row["by_type"].items() if one["bound"] is not None}
    return [name for name, one in series.items() if name in shown or any(one["observed"])]


def _last_seen(reader: TablesReader, client: tuple[str, str], series: Mapping[str, Any]) -> int | None:
    """When a client last used something, as far as it is kept; None if it never did."""
    own = [one["own"] or one["observed"] for one in series["series"].values()]
    used = [at_ms for at_ms, *values in zip(series["at_ms"], *own, strict=True) if any(values)]
    if used:
        return int(used[-1])
    for table, column in (("usage", "sample_start_ms"), ("usage_by_minute", "minute_start_ms")):
        sql = f"SELECT max({column}) AS seen_ms FROM source WHERE {_names_sql(*client)}"  # noqa: S608 - quoted by us
        for row in reader.query(table, sql):
            if row["seen_ms"] is not None:
                return int(row["seen_ms"])
    return None


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
    sql = f"SELECT {', '.join(names)}, max(observed) AS observed FROM source WHERE clients IS NOT NULL AND ({wanted}) "  # noqa: S608 - quoted by us
    rows = read_rates(reader.root, lambda rates: rates.rows(f"{sql}GROUP BY {', '.join(names)}"))
    observed = {tuple(row[name] for name in names): row["observed"] for row in rows}
    return [
        {
            **{name: getattr(one, name) for name in (*names, "mode", "bound")},
            "observed": observed.get(tuple(getattr(one, name) for name in names), 0.0),
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
            last["records"] += 1
            continue
        band = {"start_ms": at_ms, "end_ms": until_ms, "records": 1, "released": False}
        last_of[target] = {**band, **picked(row, ("quota_type", "decision_id", "client_id"))}
        found.append(last_of[target])
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
