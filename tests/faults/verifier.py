"""An independent judge of what a job has left behind: `python -m tests.faults.verifier --help`.

Recomputes everything from the usage topic and the quota table with the scalar model and plain Python, for the batches
as the job cut them, and compares it with the tables and the throttle topic row for row. Prints a table, or JSON; ends
with 1 on any difference.
"""

import argparse
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults.books import Books
from tests.faults.case import Case
from tests.faults.check_batches import check_batch
from tests.faults.check_buckets import check_intervals, check_snapshot
from tests.faults.check_outbox import check_pairs, check_sequence
from tests.faults.check_silence import check_reign
from tests.faults.cut import Batch, cut
from tests.faults.evidence import Evidence, Row, gather
from tests.faults.reign import Reign
from tests.faults.rules import Rules
from tests.faults.usage_reading import read
from tests.faults.verdict import Verdict

Key = tuple[str, int]


def verify(evidence: Evidence, rules: Rules | None = None, at_least: Mapping[str, int] | None = None) -> Verdict:
    """Everything there is to check.

    Args:
        evidence: What the job has left.
        rules: Settings of the job; its defaults without.
        at_least: How much each check must have compared, by its name; see `Verdict.demand`.
    """
    verdict = Verdict()
    rules = rules or Rules()
    batches = cut(evidence.tables["batches"], evidence.messages, evidence.usage_topic, verdict)
    by_batch = {name: _by_batch(rows) for name, rows in evidence.tables.items()}
    known = {batch.key for batch in batches}
    for name in ("usage", "decisions", "dead_letters", "throttle_events", "sensor_state"):
        for key in by_batch[name].keys() - known:
            verdict.tell(name, "different", f"rows of batch {key}, which is not in batches")
    if batches:
        _check_batches(evidence, batches, by_batch, rules, verdict)
        check_intervals(batches, by_batch["sensor_state"], rules, verdict)
    check_sequence(evidence, verdict)
    check_pairs(evidence, verdict)
    if evidence.ledger is not None:
        _check_ledger(evidence, evidence.ledger, verdict)
    verdict.demand(at_least or {})
    return verdict


def _check_batches(
    evidence: Evidence,
    batches: Sequence[Batch],
    by_batch: Mapping[str, Mapping[Key, list[Row]]],
    rules: Rules,
    verdict: Verdict,
) -> None:
    """Batch after batch, each with the snapshot and the records that are based on it."""
    settings = batches[0].row["engine_settings"]
    case = Case(Books(evidence, settings), rules, verdict, evidence.starts)
    pinned_version = -1
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        rows = {name: by_key.get(batch.key, []) for name, by_key in by_batch.items()}
        unknown = batch.row["engine_settings"] != settings
        verdict.deny("batches", unknown, f"batch {batch.key} has other engine settings, which are not judged")
        went_back = batch.quota_version < pinned_version
        verdict.deny("batches", went_back, f"batch {batch.key}: quotas v{batch.quota_version} after v{pinned_version}")
        pinned_version = batch.quota_version
        case.newest_version = max(case.newest_version, pinned_version)
        reign = Reign(batch, following)
        decisions = check_batch(evidence, rows, batch, case.books, rules, verdict)
        case.emptied = {}
        if rows["sensor_state"]:
            versions = case.books.versions(batch.quota_version, None if following is None else following.quota_version)
            case.emptied = check_snapshot(batch, rows["sensor_state"], case.books, versions, verdict)
        check_reign(case, reign, rows["throttle_events"], decisions)


def _by_batch(rows: list[Row]) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["query_id"], row["batch_id"]].append(row)
    return found


def _check_ledger(evidence: Evidence, ledger: dict[str, Row], verdict: Verdict) -> None:
    """What the generator has sent is on the topic, and holds what the generator meant it to hold."""
    by_key = {(message.key or b"").decode(): message for message in evidence.messages}
    verdict.once_each("ledger", (key for key, line in ledger.items() if line["acknowledged"]), _known(evidence, ledger))
    for key, line in ledger.items():
        if key not in by_key:
            continue
        message = by_key[key]
        reading = read([message], sample_window_ms=1_000)
        digest = hashlib.sha256(message.value or b"").hexdigest()
        got = (reading.good_count, len(reading.dead), reading.ignored_count, digest)
        wanted = (line["good"], line["dead"], line["ignored"], line["sha256"])
        verdict.expect("ledger", got == wanted, f"message {key}: (good, dead, ignored, sha256) {wanted}; got {got}")


def _known(evidence: Evidence, ledger: dict[str, Row]) -> list[str]:
    """Keys on the topic; one whose acknowledgement never came may be there or not."""
    keys = [(message.key or b"").decode() for message in evidence.messages]
    return [key for key in keys if key not in ledger or ledger[key]["acknowledged"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather, verify, print; 0 if everything is equal."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.verifier", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tables", required=True, help="root of the Delta tables")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--usage-topic", default="quota.usage.v1")
    parser.add_argument("--throttle-topic", default="quota.throttle.v1")
    parser.add_argument("--ledger", type=Path, action="append", default=[], help="what a generator has sent")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    evidence = gather(given.tables, given.bootstrap_server, given.usage_topic, given.throttle_topic, given.ledger)
    verdict = verify(evidence)
    print(json.dumps(verdict.as_json()) if given.json else verdict.as_table())  # noqa: T201
    return int(bool(verdict.differences))


if __name__ == "__main__":
    sys.exit(main())
