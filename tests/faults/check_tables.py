"""Usage, dead letters, decisions, snapshots of buckets, and outbox: recomputed, and compared row for row."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any, Final

from schemas.throttle_record import Target
from tests.faults.case import Books
from tests.faults.evidence import Batch, Evidence, Message, Row, Version
from tests.faults.verdict import Rules, Values, Verdict
from tests.pipeline.stream.usage_model import Expected, expected_of, judged
from tests.quota.model import Sensed, Sensor, terms_of

Tables = Mapping[str, list[Row]]
_DIGEST_BYTES = 8
_LETTERS_PER_MESSAGE = 100  # the default, which all jobs under test run with
_MAX_EVENT_AGE_MS = 86_400_000  # the default, too
_MORE = re.compile(r"; (\d+) more refused elements, up to element \d+$")
_MOST_NEW_NAMES = 1_000
_OTHER = "<other>"
_NOT_STORED = ("event_count", "clamped_count")
_NAMES = ("sample_start_ms", "broker_id", "user", "client_id")


def check_batch(
    evidence: Evidence, rows: Tables, batch: Batch, books: Books, rules: Rules, verdict: Verdict
) -> list[Row]:
    """Recompute one batch and compare it with its rows; its decisions. The books have recorded it afterwards."""
    limit_ms = batch.processed_at_ms + rules.clock_tolerance_ms
    reading = _limited(reading_of(batch.messages, books.sample_window_ms), limit_ms, books.sample_window_ms)
    reading, folded_count = _folded(reading, rows["usage"], books, verdict)
    own_ms = reading.newest_event_ms
    appended_ms = max((message.appended_at_ms for message in batch.messages), default=0)
    epoch, now_ms = books.time_epoch, books.instant_of(batch, own_ms, appended_ms)
    verdict.compared["epochs"] += books.time_epoch - epoch
    late = [row["event_count"] for row in reading.usage.values() if row["last_event_ms"] <= now_ms - books.ring_ms]
    old_ms = batch.processed_at_ms - rules.max_decision_age_ms
    events = {key: row["last_event_ms"] for key, row in reading.usage.items()}
    gap = _gap_of(events.values(), books, old_ms)
    facts = {
        "gap_since_ms": gap and gap[0],
        "gap_until_ms": gap and gap[1],
        "time_epoch": books.time_epoch,
        "evaluated_at_ms": now_ms,
        "good_count": reading.good_count,
        "clamped_count": reading.clamped_count,
        "ignored_count": reading.ignored_count,
        "dead_count": len(reading.dead),
        "late_count": sum(late),
        "folded_count": folded_count,
    }
    verdict.same_values("batches", batch.key, facts, batch.row)
    verdict.compared["clamped_events"] += reading.clamped_count
    verdict.compared["late_events"] += sum(late)
    pinned = {"time_epoch": books.time_epoch, "evaluated_at_ms": now_ms}
    pinned |= {name: batch.row[name] for name in ("quota_version", "tenants_version")}
    is_old = now_ms < old_ms
    verdict.compared["old_batches"] += is_old
    verdict.compared["gaps"] += gap is not None and not is_old
    books.gap, books.processed_at_ms = gap, batch.processed_at_ms
    for key, one in reading.usage.items():
        one["in_gap"] = is_old or (gap is not None and gap[0] < events[key] < gap[1])
    _check_usage(reading, rows["usage"], batch, pinned, verdict)
    _check_dead_letters(evidence.usage_topic, reading, rows["dead_letters"], batch, verdict)
    usage = [dict(zip(_NAMES, key, strict=True)) | row for key, row in reading.usage.items()]
    decisions = [
        {**row, **pinned, "decision_id": _decision_id(batch, row)} for row in books.record(usage, now_ms, batch.version)
    ]
    verdict.compared["debts"] += sum(row["cause"] == "debt" and row["asks_hold"] for row in decisions)
    wanted: dict[Hashable, Values] = {(*batch.key, *_decision_key(row)): row for row in decisions}
    verdict.same_rows("decisions", wanted, (((*batch.key, *_decision_key(row)), row) for row in rows["decisions"]))
    return decisions


def _gap_of(events_ms: Collection[int], books: Books, old_ms: int) -> tuple[int, int] | None:
    """The time in which no throttle could be published that some of these events are of."""
    if any(books.processed_at_ms < event_ms < old_ms for event_ms in events_ms):
        return books.processed_at_ms if books.gap is None else books.gap[0], old_ms
    still = books.gap is not None and any(
        books.gap[0] < event_ms < books.gap[1] and event_ms < old_ms for event_ms in events_ms
    )
    return books.gap if still else None


def reading_of(messages: Sequence[Message], sample_window_ms: int) -> Expected:
    elements = judged([message.value for message in messages])
    appended_at_ms = [message.appended_at_ms for message in messages]
    return expected_of(elements, appended_at_ms, _MAX_EVENT_AGE_MS, window_ms=sample_window_ms)


def _limited(reading: Expected, limit_ms: int, sample_window_ms: int) -> Expected:
    """These events, those after the limit as of the limit.

    Of a sample window that begins after the limit all events count as clamped, of one that holds the limit at least
    one: only its newest event is known.
    """
    if (reading.newest_event_ms or 0) <= limit_ms:
        return reading
    usage: dict[tuple[Any, ...], Row] = {}
    limit_start_ms = limit_ms - limit_ms % sample_window_ms
    for (start_ms, *names), row in reading.usage.items():
        clamped = row["clamped_count"]
        if row["last_event_ms"] > limit_ms:
            clamped = row["event_count"] if start_ms > limit_start_ms else max(clamped, 1)
        counted = {**row, "clamped_count": clamped, "last_event_ms": min(row["last_event_ms"], limit_ms)}
        _add(usage, (min(start_ms, limit_start_ms), *names), counted)
    return replace(reading, usage=usage, clamped_count=sum(row["clamped_count"] for row in usage.values()))


def _add(usage: dict[tuple[Any, ...], Row], key: tuple[Any, ...], row: Row) -> None:
    total = usage.setdefault(key, dict.fromkeys(row))
    for name, amount in row.items():
        if name == "last_event_ms":
            total[name] = max(total[name] or 0, amount)
        elif amount is not None:
            total[name] = (total[name] or 0) + amount


def _folded(reading: Expected, rows: list[Row], books: Books, verdict: Verdict) -> tuple[Expected, int]:
    """Client-ids beyond the limit of new ones count as one of their user; and how many events these had.

    A driver that starts knows no names, so which ones these are is seen by the rows. The user must have had so many
    names before; that a driver folds as soon as it must is not judged.
    """
    stored = {tuple(row[name] for name in _NAMES) for row in rows}
    # Where a tenant has client-ids by the beginning of their names, its beginning stays.
    found = {name.removesuffix(_OTHER) for *_, name in stored if name.endswith(_OTHER)}
    beginnings = sorted(found, key=len, reverse=True)
    usage: dict[tuple[Any, ...], Row] = {}
    folded_count = 0
    for *_, user, client_id in reading.usage:
        books.client_ids[user].add(client_id)
    for key, row in reading.usage.items():
        *place, user, client_id = key
        others = (*place, user, next(filter(client_id.startswith, beginnings), "") + _OTHER)
        if key in stored or others not in stored:
            _add(usage, key, row)
            continue
        _add(usage, others, row)
        folded_count += row["event_count"]
        count = len(books.client_ids[user])
        verdict.deny("usage", count <= _MOST_NEW_NAMES, f"{key} is folded; its user has {count} names")
    verdict.compared["folded_events"] += folded_count
    return replace(reading, usage=usage), folded_count


def _check_usage(reading: Expected, rows: list[Row], batch: Batch, pinned: Row, verdict: Verdict) -> None:
    wanted: dict[Hashable, Values] = {
        (*batch.key, *key): {name: value for name, value in row.items() if name not in _NOT_STORED} | pinned
        for key, row in reading.usage.items()
    }
    verdict.same_rows("usage", wanted, (((*batch.key, *(row[name] for name in _NAMES)), row) for row in rows))


def _check_dead_letters(topic: str, reading: Expected, rows: list[Row], batch: Batch, verdict: Verdict) -> None:
    of_message: dict[int, list[tuple[int | None, bytes]]] = defaultdict(list)
    for place, index, written in reading.dead:
        of_message[place].append((index, written))
    wanted: dict[Hashable, Values] = {
        (*batch.key, batch.messages[place].partition, batch.messages[place].offset, index): {
            "topic": topic,
            "appended_at_ms": batch.messages[place].appended_at_ms,
            "content": written,
            "more": max(len(letters) - _LETTERS_PER_MESSAGE, 0) if number == _LETTERS_PER_MESSAGE else 0,
        }
        for place, letters in of_message.items()
        for number, (index, written) in enumerate(letters[:_LETTERS_PER_MESSAGE], 1)
    }
    verdict.same_rows("dead_letters", wanted, _letters(rows, batch))


def _letters(rows: list[Row], batch: Batch) -> Iterator[tuple[Hashable, Row]]:
    for row in rows:
        key = (*batch.key, row["partition"], row["offset"], row["element_index"])
        more = _MORE.search(row["cause"] or "")
        yield key, {**row, "content": row["value"] if row["cause"] else None, "more": int(more[1]) if more else 0}


def _decision_key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("broker_id", "user", "client_id", "quota_type", "mode"))


def _decision_id(batch: Batch, decision: Row) -> str:
    parts = [batch.row["cluster"], batch.row["query_id"], str(batch.row["batch_id"])]
    parts += [decision[name] for name in ("broker_id", "user", "client_id", "quota_type")]
    # No name is as long as the eight bytes that stand for none.
    encoded = (b"\xff" * 8 if part is None else len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)
    text = b"".join(encoded)
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


_IDLE_MS: Final = 3_600_000
"""The job drops a sensor that was not used for longer than this, and its bucket with it."""
Bucket = tuple[str, str, Sensed]
"""Quota type; broker, user and client-id of the sensor."""


def check_snapshot(
    batch: Batch, rows: list[Row], books: Books, versions: Sequence[Version], verdict: Verdict
) -> dict[Sensor, float]:
    """Compare the snapshot after a batch: it has every bucket that is not full, and no other.

    A bucket is full if it was full at the end of the oldest sample window. The bound decides that, and the snapshot may
    have been taken under the quotas of the batch or under those of a later edit: it must be right under one of them.

    The job goes on from what it wrote: what is full becomes a new bucket. So the verifier's own buckets that are full
    become new ones here too. Whether the snapshot has them plays no part in that.

    Returns:
        The buckets that are new from now on, with what was in them.
    """
    # The row without a sensor stands for a snapshot without buckets.
    of_sensors = [row for row in rows if row["sensor_user"] or row["sensor_client_id"]]
    of_levels = [row for row in rows if row["tenant_level"] is not None]
    verdict.once_each("snapshots", [batch.key], [batch.key] * (len(rows) - len(of_sensors) - len(of_levels) or 1))
    _check_lending(batch, of_sensors, of_levels, books, versions, verdict)
    listed = [(_bucket_of(row), row) for row in of_sensors if row["tokens"] is not None]
    stored = {bucket for bucket, _ in listed}
    charged = {key[1:]: sensor for key, sensor in books.model.sensors.items() if sensor.tokens is not None}
    members = (key for key, sensor in books.model.sensors.items() if _wants_more(sensor, books))
    wanting = {key[1:] for key in members if key[0] == "enforced"}  # the shadow side has no buckets
    by_version = [_full(charged, books, version) - wanting for version in versions]
    full = min(by_version, key=lambda full: len((charged.keys() - full) ^ stored))
    wanted: dict[Hashable, Values] = {
        (*batch.key, *bucket): {
            "tokens": sensor.tokens,
            "refilled_at_ms": sensor.refilled_at_ms,
            "time_epoch": books.time_epoch,
            "evaluated_at_ms": books.evaluated_at_ms,
        }
        for bucket, sensor in charged.items()
        if bucket not in full and (bucket in stored or not _is_idle(sensor, books.evaluated_at_ms))
    }
    verdict.same_rows("buckets", wanted, (((*batch.key, *bucket), row) for bucket, row in listed))
    verdict.compared["full_buckets"] += len(full)
    emptied = {charged[bucket]: charged[bucket].tokens or 0.0 for bucket in full}
    for sensor in emptied:
        sensor.tokens = None
    return emptied


def check_intervals(
    batches: Sequence[Batch], snapshots: Iterable[tuple[str, int]], rules: Rules, verdict: Verdict
) -> None:
    """A snapshot is taken as soon as the interval has passed since the last one.

    The snapshot after a batch is written when the next one begins: after the batch was collected, and before the next
    one was.
    """
    taken = set(snapshots)
    latest_ms: int | None = None
    for batch, following in pairwise(batches):
        if batch.key in taken:
            latest_ms = following.steady_ms
        else:
            is_due = latest_ms is None or batch.steady_ms - latest_ms >= rules.sensor_state_interval_ms
            latest_ms = batch.steady_ms if latest_ms is None else latest_ms
            if is_due:
                verdict.tell("snapshots", "lost", f"the snapshot after batch {batch.key}")


def _full(charged: Iterable[Bucket], books: Books, version: Version) -> set[Bucket]:
    """The buckets that were full at the end of the oldest window under a version; without a bound none is.

    That of a member which wanted more lately is stored with that, full or not.
    """
    books.put_in_force(version)
    model = books.model
    full_at_ms = max((books.evaluated_at_ms // model.w - model.n + 1) * model.w, 0)
    full = set()
    for bucket in charged:
        bound = model.bound(("enforced", *bucket))
        if bound is None:
            continue
        burst = model.n * (model.w / 1000.0) * bound
        if model.tokens_at(("enforced", *bucket), bound, full_at_ms) >= burst:
            full.add(bucket)
    return full


def _check_lending(
    batch: Batch,
    of_sensors: Iterable[Row],
    of_levels: Iterable[Row],
    books: Books,
    versions: Sequence[Version],
    verdict: Verdict,
) -> None:
    """The levels of tenants that are not at rest, and the members that wanted more lately.

    A level is at rest under other terms than it was moved under.
    """
    model = books.model
    stored_levels: list[tuple[Hashable, Row]] = [
        ((*batch.key, *_side_of(row), row["tenant"]), row) for row in of_levels
    ]
    by_version = [_levels_under(batch, books, version) for version in versions]
    levels = min(by_version, key=lambda levels: len(levels.keys() ^ {key for key, _ in stored_levels}))
    verdict.same_rows("levels", levels, stored_levels)
    demands: dict[Hashable, Values] = {
        (*batch.key, *key): {"demanded_at_ms": sensor.demanded_at_ms}
        for key, sensor in model.sensors.items()
        if _wants_more(sensor, books)
    }
    stored = (row for row in of_sensors if row["demanded_at_ms"] is not None)
    found = (((*batch.key, *_side_of(row), _bucket_of(row)[-1]), row) for row in stored)
    verdict.same_rows("demands", demands, found)


def _levels_under(batch: Batch, books: Books, version: Version) -> dict[Hashable, Values]:
    books.put_in_force(version)
    return {
        (*batch.key, *key): {"tenant_level": level.value, "refilled_at_ms": level.moved_at_ms}
        for key, level in books.model.tenant_levels.items()
        if level.value < inf and level.terms == terms_of(books.model.tenants.get(key[3], {}))
    }


def _wants_more(sensor: Sensor, books: Books) -> bool:
    """Whether a member wanted more so lately that it may still count as one that does."""
    after_ms = (books.evaluated_at_ms // books.model.w - books.model.n) * books.model.w
    return sensor.demanded_at_ms is not None and sensor.demanded_at_ms > after_ms


def _side_of(row: Row) -> tuple[str, str, str]:
    return "enforced" if row["mode"] == "enforce" else "shadow", row["quota_type"], row["broker_id"]


def _is_idle(sensor: Sensor, now_ms: int) -> bool:
    return sensor.refilled_at_ms < now_ms - _IDLE_MS


def _bucket_of(row: Row) -> Bucket:
    sensor = Sensed(row["sensor_user"], row["sensor_client_id"], row["tenant"] or "")
    return row["quota_type"], row["broker_id"], sensor


_OVERHEAD_BYTES = 1_000
"""Headers and framing of a record, at most."""
_KEY = ("cluster", "broker_id", "user", "client_id")
_FIGURES = ("observed", "bound", "window_ms", "tokens", "owed_ms")
_RECORD = (
    *("action", "cause", *_KEY, "throttle_time_ms", "throttled_until_ms", "quota_type", "sensor", *_FIGURES),
    *("except_client_ids", "decision_id", "publish_seq", "batch_id", "quota_version", "schema_version"),
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
            "key": [row[name] for name in _KEY] + ([row["quota_type"]] if row["client_id"] is None else []),
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
    """Each throttle of a target ends with exactly one release of the same decision; none is left.

    An edit may put a user in the place of its clients: its throttle goes on with the decision of one of them.
    """
    begun = {(Target.of(row), row["decision_id"]) for row in evidence.tables["decisions"] if row["asks_hold"]}
    running: dict[tuple[str, Target], Row] = {}
    for row in sorted(evidence.tables["throttle_events"], key=lambda row: int(row["publish_seq"])):
        target = Target.of(row)
        client = row["cluster"], target
        before = running.get(client)
        where = f"publish_seq {row['publish_seq']} {row['action']} {row['cause']} of {client}"
        if before is None:
            is_begin = row["action"] == "throttle" and row["cause"] in {"violation", "debt"}
            is_known = (target, row["decision_id"]) in begun
            if row["cause"] == "quota_changed" and target.client_id is None:
                clients = (one for (_, other), one in running.items() if other[:2] == target[:2])
                is_begin = is_known = any(one["decision_id"] == row["decision_id"] for one in clients)
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
