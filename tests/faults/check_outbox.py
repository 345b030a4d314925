"""The outbox as a whole: one row and one record for every `publish_seq`, throttles paired with releases."""

import json
from collections.abc import Hashable
from typing import Any

from tests.faults.evidence import Evidence, Row
from tests.faults.held import client_of
from tests.faults.rules import Rules
from tests.faults.verdict import Values, Verdict

_OVERHEAD_BYTES = 1_000
"""Headers and framing of a record, at most."""
_KEY = ("cluster", "broker_id", "user", "client_id")
_FIGURES = ("observed", "bound", "window_ms", "tokens", "owed_ms")
_RECORD = (
    *("action", "cause", *_KEY, "throttle_time_ms", "throttled_until_ms", "quota_type", "sensor", *_FIGURES),
    *("decision_id", "publish_seq", "batch_id", "quota_version", "schema_version"),
)


def check_sequence(evidence: Evidence, rules: Rules, verdict: Verdict) -> None:
    """`publish_seq` counts up by one in the table, and the topic has every row once, with equal content, in order.

    A row whose record is larger than the topic takes may be missing on it.
    """
    rows = evidence.tables["throttle_events"]
    stored = [row["publish_seq"] for row in rows]
    verdict.once_each("publish_seq", range(1 + max(stored, default=-1)), stored)
    wanted: dict[Hashable, Values] = {
        row["publish_seq"]: {
            **{name: row[name] for name in _RECORD if name != "sensor"},
            "sensor": [row["sensor_user"], row["sensor_client_id"]],
            "key": [row[name] for name in _KEY],
        }
        for row in rows
    }
    present = {record["publish_seq"] for record in evidence.records}
    for publish_seq in wanted.keys() - present:
        if _size_bytes(wanted[publish_seq]) > rules.max_record_bytes - _OVERHEAD_BYTES:
            del wanted[publish_seq]
            verdict.compared["passed_over"] += 1
    verdict.same_rows("topic", wanted, ((record["publish_seq"], record) for record in evidence.records))
    newest: dict[int, int] = {}
    for record in evidence.records:
        before = newest.get(record["partition"], -1)
        text = f"publish_seq {record['publish_seq']} comes after {before} in partition {record['partition']}"
        verdict.deny("topic", record["publish_seq"] < before, text)
        newest[record["partition"]] = max(before, record["publish_seq"])


def _size_bytes(record: Values) -> int:
    """Of key and value as JSON. Names are most of a record that is too large."""
    value = {name: content for name, content in record.items() if name != "key"}
    parts = (json.dumps(part, ensure_ascii=False, separators=(",", ":")) for part in (record["key"], value))
    return sum(len(part.encode()) for part in parts)


def check_pairs(evidence: Evidence, verdict: Verdict) -> None:
    """Each throttle of a client ends with exactly one release of the same decision; none is left."""
    begun = {(client_of(row), row["decision_id"]) for row in evidence.tables["decisions"] if row["applied"]}
    running: dict[tuple[Any, ...], Row] = {}
    for row in sorted(evidence.tables["throttle_events"], key=lambda row: int(row["publish_seq"])):
        client = tuple(row[name] for name in _KEY)
        before = running.get(client)
        where = f"publish_seq {row['publish_seq']} {row['action']} {row['cause']} of {client}"
        if before is None:
            is_begin = (row["action"], row["cause"]) == ("throttle", "violation")
            is_known = (client_of(row), row["decision_id"]) in begun
            verdict.expect("pairs", is_begin and is_known, f"{where}: not held, decision {row['decision_id']}")
        else:
            same = row["decision_id"] == before["decision_id"]
            verdict.expect("pairs", same, f"{where}: decision {row['decision_id']}, held by {before['decision_id']}")
        if row["action"] == "release":
            verdict.expect("pairs", row["throttle_time_ms"] == 0, f"{where}: throttle time {row['throttle_time_ms']}")
            running.pop(client, None)
        else:
            running[client] = row
    for client, row in running.items():
        verdict.tell("pairs", "lost", f"the release of {client}, held since publish_seq {row['publish_seq']}")
