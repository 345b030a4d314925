"""Usage, dead letters and decisions of every batch, recomputed from its messages."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping

from tests.faults.books import Books
from tests.faults.cut import Batch
from tests.faults.evidence import Evidence, Row
from tests.faults.rules import Rules
from tests.faults.usage_reading import SUMS, DeadLetter, Reading, limited, read
from tests.faults.verdict import Values, Verdict

Tables = Mapping[str, list[Row]]
_DIGEST_BYTES = 8
_LETTERS_PER_MESSAGE = 100  # the default, which all jobs under test run with
_MORE = re.compile(r"; (\d+) more refused elements, up to element \d+$")
_NAMES = ("sample_start_ms", "broker_id", "user", "client_id")


def check_batch(
    evidence: Evidence, rows: Tables, batch: Batch, books: Books, rules: Rules, verdict: Verdict
) -> list[Row]:
    """Recompute one batch and compare; the books have its usage afterwards.

    Args:
        evidence: For the name of the usage topic.
        rows: The batch's own rows by table.
        batch: Which.
        books: Have recorded all batches before.
        rules: Of the job.
        verdict: Takes what is found.

    Returns:
        Its decisions, as recomputed.
    """
    limit_ms = batch.processed_at_ms + rules.clock_tolerance_ms
    reading = limited(read(batch.messages, books.sample_window_ms), limit_ms, books.sample_window_ms)
    own_ms = reading.newest_event_ms
    appended_ms = max((message.appended_at_ms for message in batch.messages), default=0)
    if own_ms is not None and max(own_ms, appended_ms, batch.processed_at_ms) < books.evaluated_at_ms - books.ring_ms:
        books.begin_epoch(own_ms)
        verdict.compared["epochs"] += 1
    now_ms = max(own_ms or 0, books.evaluated_at_ms)
    late = [row["event_count"] for row in reading.usage.values() if row["last_event_ms"] <= now_ms - books.ring_ms]
    facts = {
        "time_epoch": books.time_epoch,
        "evaluated_at_ms": now_ms,
        "good_count": reading.good_count,
        "clamped_count": reading.clamped_count,
        "ignored_count": reading.ignored_count,
        "dead_count": len(reading.dead),
        "late_count": sum(late),
    }
    verdict.same_values("batches", batch.key, facts, batch.row)
    verdict.compared["clamped_events"] += reading.clamped_count
    verdict.compared["late_events"] += sum(late)
    pinned = {"time_epoch": books.time_epoch, "evaluated_at_ms": now_ms, "quota_version": batch.quota_version}
    is_old = batch.processed_at_ms - now_ms > rules.max_decision_age_ms
    verdict.compared["old_batches"] += is_old
    _check_usage(reading, rows["usage"], batch, pinned, verdict)
    _check_dead_letters(evidence.usage_topic, reading, rows["dead_letters"], batch, verdict)
    usage = [dict(zip(_NAMES, key, strict=True)) | row for key, row in reading.usage.items()]
    decisions = [
        {**row, **pinned, "decision_id": _decision_id(batch, row)}
        for row in books.record(usage, now_ms, batch.quota_version, is_old)
    ]
    wanted: dict[Hashable, Values] = {(*batch.key, *_decision_key(row)): row for row in decisions}
    verdict.same_rows("decisions", wanted, (((*batch.key, *_decision_key(row)), row) for row in rows["decisions"]))
    return decisions


def _check_usage(reading: Reading, rows: list[Row], batch: Batch, pinned: Row, verdict: Verdict) -> None:
    wanted: dict[Hashable, Values] = {
        (*batch.key, *key): {**{name: row[name] for name in (*SUMS, "last_event_ms")}, **pinned}
        for key, row in reading.usage.items()
    }
    verdict.same_rows("usage", wanted, (((*batch.key, *(row[name] for name in _NAMES)), row) for row in rows))


def _check_dead_letters(topic: str, reading: Reading, rows: list[Row], batch: Batch, verdict: Verdict) -> None:
    of_message: dict[Hashable, list[DeadLetter]] = defaultdict(list)
    for letter in reading.dead:
        of_message[letter.partition, letter.offset].append(letter)
    wanted: dict[Hashable, Values] = {
        (*batch.key, letter.partition, letter.offset, letter.element_index): {
            "topic": topic,
            "appended_at_ms": letter.appended_at_ms,
            "content": letter.text,
            "more": max(len(letters) - _LETTERS_PER_MESSAGE, 0) if place == _LETTERS_PER_MESSAGE else 0,
        }
        for letters in of_message.values()
        for place, letter in enumerate(letters[:_LETTERS_PER_MESSAGE], 1)
    }
    verdict.same_rows("dead_letters", wanted, _letters(rows, batch))


def _letters(rows: list[Row], batch: Batch) -> Iterator[tuple[Hashable, Row]]:
    for row in rows:
        content = row["value"] if row["element_index"] is None else json.loads(row["value"])
        key = (*batch.key, row["partition"], row["offset"], row["element_index"])
        more = _MORE.search(row["cause"] or "")
        yield key, {**row, "content": content if row["cause"] else None, "more": int(more[1]) if more else 0}


def _decision_key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("broker_id", "user", "client_id", "quota_type", "mode"))


def _decision_id(batch: Batch, decision: Row) -> str:
    parts = [batch.row["cluster"], batch.row["query_id"], str(batch.row["batch_id"])]
    parts += [decision[name] for name in ("broker_id", "user", "client_id", "quota_type")]
    encoded = (part.encode() for part in parts)
    text = b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()
