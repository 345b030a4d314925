"""What the view Pipeline shows: batches and how long their steps took, the purgatory, dead letters, all sources."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from pipeline.dashboard.query import Query
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.state import State
from pipeline.dashboard.watched_table import WatchedTable
from pipeline.errors import PipelineError
from pipeline.tables.append_guard import parse_commit_note
from pipeline.tables.errors import TableMissing
from pipeline.tables.opening import reading

_BATCHES: Final = 120
_STEPS: Final = ("usage", "decisions", "throttle_events", "batches")
"""Tables whose commits tell how long a batch took, in the order in which they are written."""
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
    """Batches, newest first, with the time of each step as far as commits tell it.

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
    told = parse_commit_note(note)
    if told is None:
        return {}
    return {app_id: int(version) for app_id, version in json.loads(told["versions"]).items()}


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
