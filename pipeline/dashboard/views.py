"""The views Pipeline (batches, step times, purgatory, dead letters, sources), Quotas, and the story of a decision."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from pipeline.dashboard.live_rates import SensorRate
from pipeline.dashboard.query import SEE, Query
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.state import State
from pipeline.dashboard.watched_table import WatchedTable
from pipeline.errors import PipelineError, TableMissing, printable
from pipeline.reports.story import words_of
from pipeline.settings.model import Settings
from pipeline.tables.enforced import enforced_for
from pipeline.tables.opening import reading
from pipeline.tables.port import parse_commit_note
from pipeline.tables.quotas.history import QuotaVersion, entity_texts, versions
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.throttles import decision_with_id, newest_decision, origin_of_bound, story_of, why_unpublished
from pipeline.web import QueryRefused
from quota.entity import QUOTA_TYPES, label, level_of

_BATCHES: Final = 120
_STEPS: Final = ("usage", "decisions", "throttle_events", "batches")
"""Tables whose commits show how long a batch took, in the order in which they are written."""
_SAMPLE_BYTES: Final = 400
_DEAD_LETTERS: Final = 20
_LATENESS_ROWS: Final = 2_000


def pipeline_document(reader: TablesReader, state: State) -> dict[str, Any]:
    """The view Pipeline."""
    batches = reader.batches[-_BATCHES:]
    return {
        **state.head(),
        "batches": batch_rows(batches, {name: _commits(reader.tables[name]) for name in _STEPS}),
        "purgatory": purgatory(state, _lateness(reader.tables["throttle_events"])),
        "dead_letters": dead_letters(reader, Query(limit=_DEAD_LETTERS)),
        "sources": [asdict(source) for source in state.sources],
    }


def batch_rows(
    batches: Sequence[Mapping[str, Any]], committed: Mapping[str, Mapping[tuple[str, int], int]]
) -> list[dict[str, Any]]:
    """Batches, newest first, with the time of each step as far as commits have it.

    Args:
        batches: Rows of `batches`, oldest first.
        committed: Table -> (query id, batch id) -> when its commit was made, in epoch ms.
    """
    found = []
    for row in reversed(batches):
        key = (row["query_id"], row["batch_id"])
        at_ms, steps_ms = row["processed_at_ms"], {}
        for name in sorted(_STEPS, key=lambda name: committed.get(name, {}).get(key, 0)):
            end_ms = committed.get(name, {}).get(key)
            if end_ms is not None:
                steps_ms[name] = max(end_ms - at_ms, 0)
                at_ms = max(end_ms, at_ms)
        counts = ("good_count", "late_count", "clamped_count", "ignored_count", "dead_count")
        found.append(
            {
                "batch_id": row["batch_id"],
                "query_id": row["query_id"],
                "processed_at_ms": row["processed_at_ms"],
                "time_epoch": row["time_epoch"],
                "evaluated_at_ms": row["evaluated_at_ms"],
                "lag_ms": max(row["processed_at_ms"] - row["evaluated_at_ms"], 0),
                "quota_version": row["quota_version"],
                "steps_ms": steps_ms,
                "took_ms": max(at_ms - row["processed_at_ms"], 0) if steps_ms else None,
                **{name: row[name] for name in counts},
            }
        )
    return found


def purgatory(state: State, lateness_ms: Sequence[int]) -> dict[str, Any]:
    """The number of throttles that are held, and the time by which the purgatory handed them out late."""
    ordered = sorted(lateness_ms)
    next_ms = min((one.row["throttled_until_ms"] for one in state.running), default=None)
    return {
        "held": len(state.running),
        "next_end_ms": next_ms,
        "lateness_p50_ms": _percentile(ordered, 0.5),
        "lateness_p99_ms": _percentile(ordered, 0.99),
        "lateness_max_ms": ordered[-1] if ordered else None,
        "looks": len(ordered),
    }


def dead_letters(reader: TablesReader, query: Query) -> dict[str, Any]:
    """The newest dead letters, newest first, with the beginning of what they hold."""
    table = reader.tables["dead_letters"]
    try:
        newest_ms = table.newest_value("appended_at_ms")
        if newest_ms is None:
            return {"dead_letters": [], "last_hour": 0}
        since_ms = newest_ms - 3_600_000 if query.since_ms is None else query.since_ms
        columns = ["batch_id", "appended_at_ms", "topic", "partition", "offset", "element_index", "cause", "value"]
        rows = table.rows(columns, [("appended_at_ms", ">=", since_ms)])
    except TableMissing:
        return {"dead_letters": [], "last_hour": 0}
    rows.sort(key=lambda row: (row["appended_at_ms"], row["offset"]), reverse=True)
    last_hour = sum(row["appended_at_ms"] >= newest_ms - 3_600_000 for row in rows)
    return {"dead_letters": [_sample(row) for row in rows[: query.limit]], "last_hour": last_hour}


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    value = row.pop("value")
    # Bytes of whoever may write to the topic: as text where they are, and never more than a sample.
    return {**row, "bytes": len(value), "sample": value[:_SAMPLE_BYTES].decode("utf-8", "backslashreplace")}


def _commits(table: WatchedTable) -> dict[tuple[str, int], int]:
    """(query id, batch id) -> when the commit was made that names it."""
    try:
        opened = table.opened()
        with reading(table.uri):
            history = opened.history(_BATCHES * 2)
    except PipelineError:
        return {}
    found: dict[tuple[str, int], int] = {}
    for commit in history:
        for app_id, version in _versions(commit.get("userMetadata")).items():
            found.setdefault((app_id, version), int(commit["timestamp"]))
    return found


def _versions(note: object) -> dict[str, int]:
    versions = parse_commit_note(note)
    if versions is None:
        return {}
    return {app_id: int(version) for app_id, version in json.loads(versions["versions"]).items()}


def _lateness(table: WatchedTable) -> list[int]:
    try:
        newest_seq = table.newest_value("publish_seq")
        if newest_seq is None:
            return []
        rows = table.read(["lateness_ms"], [("publish_seq", ">", newest_seq - _LATENESS_ROWS)])
    except TableMissing:
        return []
    return _present(rows["lateness_ms"].to_pylist())


def _present(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _percentile(ordered: Sequence[int], part: float) -> int | None:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else None


# The view Quotas: rows with their use, and the history of the table.

_VERSIONS: Final = 30


def quotas_document(reader: TablesReader, state: State, query: Query) -> dict[str, Any]:
    """The view Quotas."""
    table = QuotaTable(reader.root).read()
    wanted = [row for row in table.rows if _is_wanted(row, query)]
    nearest = nearest_sensors(state.sensors)
    shown = [quota_row(row, nearest) for row in wanted]
    shown.sort(key=lambda row: (-max((one["used"] for one in row["bounds"].values()), default=0), row["level"]))
    # Of these rows, which may be newer than what was seen at the last look: an edit of them names it.
    page = {"version": table.version, "rows": shown[: query.limit], "total": len(wanted), "all": len(table.rows)}
    return {**state.head(), **page}


def quota_history(reader: TablesReader, query: Query) -> dict[str, Any]:
    """The newest versions of the quota table, newest first."""
    table = QuotaTable(reader.root)
    return {"versions": [version_row(one) for one in versions(table, min(query.limit, _VERSIONS))]}


def nearest_sensors(sensors: Iterable[SensorRate]) -> dict[tuple[str, str, str], SensorRate]:
    """Of each bound, by entity and quota type, the sensor that is nearest to it."""
    found: dict[tuple[str, str, str], SensorRate] = {}
    for one in sensors:
        found.setdefault((*one.entity, one.quota_type), one)
    return found


def quota_row(row: Mapping[str, Any], nearest: Mapping[tuple[str, str, str], SensorRate]) -> dict[str, Any]:
    """A row of the quota table, each bound with the rate that is nearest to it."""
    entity = row["user"], row["client_id"]
    bounds = {}
    for name in QUOTA_TYPES:
        if row[name] is not None:
            rate = nearest.get((*entity, name))
            bounds[name] = {
                "bound": row[name],
                "observed": None if rate is None else rate.observed,
                "used": 0.0 if rate is None else rate.observed / row[name],
                "user": None if rate is None else rate.user,
                "client_id": None if rate is None else rate.client_id,
            }
    return {
        "user": row["user"],
        "client_id": row["client_id"],
        "entity": label(*entity),
        "level": int(level_of(*entity)),
        "mode": row["mode"],
        "owner": row["owner"],
        "note": row["note"],
        "bounds": bounds,
    }


def version_row(version: QuotaVersion) -> dict[str, Any]:
    """A version: who, when, why, and what it changed."""
    audit = version.commit.audit
    changes: Sequence[Mapping[str, Any]] = [change.as_row() for change in version.changes[:50]]
    return {
        "version": version.commit.version,
        "committed_at_ms": int(version.commit.committed_at.timestamp() * 1_000),
        "operation": version.commit.operation,
        "actor": getattr(audit, "actor", None),
        "host": getattr(audit, "host", None),
        "reason": getattr(audit, "reason", None),
        "mode": list(version.mode),
        "changes": changes,
        "texts": entity_texts(version.changes[:50]),
        "more": max(len(version.changes) - 50, 0),
    }


def _is_wanted(row: Mapping[str, Any], query: Query) -> bool:
    for name, value in (("user", query.user), ("client_id", query.client_id), ("owner", query.owner)):
        if value is not None and row[name] != value:
            return False
    if not query.search:
        return True
    text = " ".join(str(row[name] or "") for name in ("user", "client_id", "owner", "note", "mode")).casefold()
    return query.search.casefold() in text


# The story of one decision, in the words of `kquota throttles explain`.


def explained(reader: TablesReader, query: Query, settings: Settings) -> dict[str, Any]:
    """Why a client was throttled: by the beginning of a decision's id, or the newest decision of a client.

    Raises:
        QueryRefused: Neither is given.
        NotFound, UsageError: As `throttles explain`.
    """
    root = reader.root
    if query.decision_id:
        decision = decision_with_id(root, query.decision_id)
    elif query.user is not None:
        decision = newest_decision(root, query.user, query.client_id)
    else:
        raise QueryRefused(["'decision_id' or 'user' is missing"], SEE)
    story = story_of(root, decision)
    quotas = QuotaTable(root)
    settings = settings.model_copy(update={"engine": reader.engine_settings()})
    limits = (settings.stream.max_decision_age_ms, settings.purgatory.min_hold_ms)
    unpublished = None if story.events else why_unpublished(root, quotas, story.decision, *limits)
    on_brokers = enforced_for(root, decision["user"], decision["client_id"], [decision["quota_type"]])
    words = words_of(story, settings, origin_of_bound(quotas, story.decision), unpublished, on_brokers)
    return {
        "decision_id": decision["decision_id"],
        "user": decision["user"],
        "client_id": decision["client_id"],
        "quota_type": decision["quota_type"],
        "evaluated_at_ms": decision["evaluated_at_ms"],
        "title": printable(words.title),
        "facts": [[name, printable(text)] for name, text in words.facts],
        "published": [printable(line.strip()) for line in words.published],
    }
