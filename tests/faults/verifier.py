"""An independent judge of what a job has left behind: `python -m tests.faults.verifier --help`.

Recomputes everything from the usage topic and the quota table with the scalar model and plain Python, for the batches
as the job cut them, and compares it with the tables and the throttle topic row for row. Prints a table; ends with 1 on
any difference.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from tests.faults.case import Books, Case, Reign
from tests.faults.check_tables import (
    check_batch,
    check_intervals,
    check_pairs,
    check_sequence,
    check_snapshot,
)
from tests.faults.check_throttles import check_reign
from tests.faults.evidence import Batch, Evidence, Row, cut, gather
from tests.faults.verdict import Rules, Verdict

Key = tuple[str, int]
_SOMETHING: Final = {"messages": 1, "batches": 1}
"""Of nothing there is no verdict."""


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
    rows_of = {name: by_batch(rows) for name, rows in evidence.tables.items()}
    known = {batch.key for batch in batches}
    for name in ("usage", "decisions", "dead_letters", "throttle_events", "sensor_state"):
        for key in rows_of[name].keys() - known:
            verdict.tell(name, "different", f"rows of batch {key}, which is not in batches")
    if batches:
        _check_batches(evidence, batches, rows_of, rules, verdict)
        check_intervals(batches, rows_of["sensor_state"], rules, verdict)
    check_sequence(evidence, rules, verdict)
    check_pairs(evidence, verdict)
    verdict.demand(at_least or {})
    return verdict


def _check_batches(
    evidence: Evidence,
    batches: Sequence[Batch],
    rows_of: Mapping[str, Mapping[Key, list[Row]]],
    rules: Rules,
    verdict: Verdict,
) -> None:
    """Batch after batch, each with the snapshot and the records that are based on it."""
    settings = batches[0].row["engine_settings"]
    case = Case(Books(evidence, settings), rules, verdict, evidence.starts, evidence.moved)
    pinned_version = (-1, -1)
    before = since = batches[0]
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        rows = {name: by_key.get(batch.key, []) for name, by_key in rows_of.items()}
        unknown = batch.row["engine_settings"] != settings
        verdict.deny("batches", unknown, f"batch {batch.key} has other engine settings, which are not judged")
        went_back = batch.version < pinned_version
        verdict.deny("batches", went_back, f"batch {batch.key}: quotas v{batch.version} after v{pinned_version}")
        pinned_version = batch.version
        case.newest_version = max(case.newest_version, pinned_version)
        # A new query begins a millisecond later, also without newer usage.
        least = before.time_epoch, before.evaluated_at_ms + (before.key[0] != batch.key[0])
        if (batch.time_epoch, batch.evaluated_at_ms) > least:
            since = batch
        before = batch
        reign = Reign(batch, following, since.steady_ms, _moved_starts(batch, evidence), rules.longest_take_over_ms)
        decisions = check_batch(evidence, rows, batch, case.books, rules, verdict)
        case.emptied = {}
        if rows["sensor_state"]:
            versions = case.books.versions(batch.version, None if following is None else following.version)
            case.emptied = check_snapshot(batch, rows["sensor_state"], case.books, versions, verdict)
        check_reign(case, reign, rows["throttle_events"], decisions)


def _moved_starts(batch: Batch, evidence: Evidence) -> tuple[tuple[int, int], ...]:
    """The starts after a batch, each with how far the clock was set since then; nothing if it was not."""
    moved = zip(evidence.starts or (), (by_ms for by_ms, _ in evidence.moved), strict=False)
    before_ms = int(batch.row.get("moved_ms", 0))
    starts = tuple((at_ms, by_ms - before_ms) for at_ms, by_ms in moved if at_ms >= batch.steady_ms)
    return starts if any(by_ms for _, by_ms in starts) else ()


def by_batch(rows: list[Row]) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["query_id"], row["batch_id"]].append(row)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.verifier", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tables", required=True, help="root of the Delta tables")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--usage-topic", default="quota.usage.v1")
    parser.add_argument("--throttle-topic", default="quota.throttle.v1")
    parser.add_argument("--rules", default="{}", help="settings of the job that are not its defaults: a JSON object")
    given = parser.parse_args()
    evidence = gather(given.tables, given.bootstrap_server, given.usage_topic, given.throttle_topic)
    verdict = verify(evidence, Rules(**json.loads(given.rules)), _SOMETHING)
    print(verdict.as_table())  # noqa: T201
    return int(bool(verdict.differences))


if __name__ == "__main__":
    sys.exit(main())
