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
from collections.abc import Sequence
from pathlib import Path

from tests.faults.check_batches import check_batch, new_model
from tests.faults.check_buckets import check_snapshot
from tests.faults.check_outbox import check_figures, check_pairs, check_sequence
from tests.faults.cut import cut
from tests.faults.evidence import Evidence, Row, gather
from tests.faults.usage_reading import read
from tests.faults.verdict import Verdict

Key = tuple[str, int]


def verify(evidence: Evidence) -> Verdict:
    """Everything there is to check."""
    verdict = Verdict()
    batches = cut(evidence.tables["batches"], evidence.messages, evidence.usage_topic, verdict)
    by_batch = {name: _by_batch(rows) for name, rows in evidence.tables.items()}
    known = {batch.key for batch in batches}
    for name in ("usage", "decisions", "dead_letters"):
        for key in by_batch[name].keys() - known:
            verdict.tell(name, "different", f"rows of batch {key}, which is not in batches")
    if batches:
        model = new_model(batches[0].row["engine_settings"], evidence.scope)
        evaluated_at_ms = 0
        for batch in batches:
            rows = {name: by_key.get(batch.key, []) for name, by_key in by_batch.items()}
            evaluated_at_ms = check_batch(evidence, rows, batch, model, verdict, evaluated_at_ms)
            forgotten = check_snapshot(batch, rows["sensor_state"], model, verdict) if rows["sensor_state"] else {}
            check_figures(evidence, rows["throttle_events"], rows["decisions"], model, forgotten, verdict)
    for key in by_batch["throttle_events"].keys() - known:
        verdict.tell("looks", "different", f"records based on batch {key}, which is not in batches")
    check_sequence(evidence, verdict)
    check_pairs(evidence, verdict)
    if evidence.ledger is not None:
        _check_ledger(evidence, evidence.ledger, verdict)
    return verdict


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
