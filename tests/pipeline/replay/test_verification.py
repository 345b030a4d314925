import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.errors import NotFound
from pipeline.replay.verification import KEY, Difference, Verification, differences, verify
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from quota.entity import QUOTA_TYPES
from schemas.throttle_record import Target
from tests.faults.hand_job import HandJob
from tests.pipeline.replay.kept import AUDIT, KeptJob

FOREVER_MS = 10**15


def checked(job: KeptJob, since_ms: int = 0, until_ms: int = FOREVER_MS) -> Verification:
    return verify(job.root, "cluster", job.quotas.at, since_ms, until_ms, lambda done, whole: None)


def test_all_usage_comes_to_the_live_decisions_row_for_row(kept: KeptJob) -> None:
    found = checked(kept)
    assert (found.mismatches, found.decisions) == ([], len(kept.decided))
    seen = {name: {row[name] for row in kept.decided} for name in ("mode", "quota_type", "level", "cause")}
    assert (seen["mode"], seen["quota_type"]) == ({"enforce", "shadow"}, set(QUOTA_TYPES))
    assert seen["level"] >= {1, 3, 5}
    assert seen["cause"] == {"violation", "debt"}


def test_a_range_in_the_middle_is_decided_as_it_was(kept: KeptJob) -> None:
    middle_ms = kept.clock.wall_ms - 600_000
    found = checked(kept, middle_ms - 30_000, middle_ms + 30_000)
    assert found.mismatches == []
    assert 0 < found.decisions < len(kept.decided)
    assert middle_ms - 30_000 <= found.since_ms <= found.until_ms <= middle_ms + 30_000


def test_every_kind_of_falsified_row_is_found(kept: KeptJob, tmp_path: Path) -> None:
    stored = DeltaTable(table_uri(kept.root, "decisions")).to_pyarrow_table().sort_by("batch_id")
    rows = stored.to_pylist()
    rows[10]["throttle_time_ms"] += 1
    rows[20]["observed"] = rows[20]["observed"] * (1 + 2**-52)
    next(row for row in rows[22:] if row["tokens"] is not None)["tokens"] += 1e-3
    removed = rows.pop(30)
    rows.append({**rows[40], "user": "mallory"})
    copy = KeptCopy(kept, tmp_path)
    copy.replace("decisions", pa.Table.from_pylist(rows, stored.schema))
    found = verify(str(tmp_path), "cluster", kept.quotas.at, 0, FOREVER_MS, lambda done, whole: None)
    assert [sorted(mismatch.columns) for mismatch in found.mismatches if mismatch.columns] == [
        ["throttle_time_ms"],
        ["observed"],
        ["tokens"],
    ]
    assert [one.key["batch_id"] for one in found.mismatches if not one.is_stored] == [removed["batch_id"]]
    assert [one.key["user"] for one in found.mismatches if not one.is_recomputed] == ["mallory"]


def test_trimmed_usage_shortens_the_range_by_the_windows_that_reach_back_into_it(kept: KeptJob, tmp_path: Path) -> None:
    copy = KeptCopy(kept, tmp_path)
    cut_ms = kept.clock.wall_ms - 300_000
    usage = DeltaTable(copy.uri("usage"))
    usage.delete(f"evaluated_at_ms < {cut_ms}")
    found = verify(str(tmp_path), "cluster", kept.quotas.at, 0, FOREVER_MS, lambda done, whole: None)
    assert found.mismatches == []
    assert cut_ms + 12_000 <= found.since_ms < cut_ms + 80_000  # the buckets are stored each minute
    assert found.uncomparable > 0
    with pytest.raises(NotFound):
        verify(str(tmp_path), "cluster", kept.quotas.at, 0, cut_ms + 11_000, lambda done, whole: None)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> HandJob:
    """A job that holds users, but their exceptions, and clients that have sensors of their own, over an edit."""
    rates = {"producer_byte_rate": 10_000.0, "consumer_byte_rate": 10_000.0}
    job = HandJob(tmp_path_factory.mktemp("held"), rates, in_memory=True)
    job.quota_table.alter([QuotaChange("alice", "etl", {"producer_byte_rate": 5_000.0})], AUDIT)
    job.start()
    for step in range(60):
        at_ms = job.clock.wall_ms
        for user, client_id in (("alice", "etl"), ("alice", "app"), ("bob", "")):
            used = {"produced_bytes": 9_000, "fetched_bytes": 9_000} if step % 20 < 8 else {"produced_bytes": 10}
            job.send(json.dumps({"event_time_ms": at_ms, "user": user, "client_id": client_id, **used}).encode())
        if step == 25:
            job.quota_table.alter([QuotaChange("alice", "web", {"mode": "exempt"})], AUDIT)
        if step == 45:
            job.forgive("bob")
        job.clock.advance(200)
        job.step()
    while len(job.purgatory):
        job.clock.advance(500)
        job.step()
    job.store()
    return job


def verified(root: str, job: HandJob) -> Verification:
    return verify(root, "cluster", job.quotas.at, 0, FOREVER_MS, lambda done, whole: None)


def test_records_hold_whom_their_decisions_and_quotas_say(held: HandJob) -> None:
    found = verified(held.settings.tables.root, held)
    assert found.mismatches == []
    assert found.records == held.rows("throttle_events").num_rows
    rows = held.rows("throttle_events").to_pylist()
    assert [str(Target.of(row)) for row in rows if row["cause"] == "forgiven"] == ["bob/*"] * 2, "of both types"
    targets = {str(Target.of(row)) for row in rows}
    assert targets == {"alice/*", "alice/etl", "bob/*"}


def test_a_range_begins_with_usage_and_not_with_a_batch_of_before(tmp_path: Path) -> None:
    job = HandJob(tmp_path, {"producer_byte_rate": 10_000.0})
    job.start()
    used = {"event_time_ms": job.clock.wall_ms, "user": "alice", "client_id": "etl", "produced_bytes": 1}
    for value in (b"[]", json.dumps(used).encode()):
        job.send(value)
        job.step()
    assert verified(job.settings.tables.root, job).since_ms == used["event_time_ms"]


OF_ALICE = {"user": "alice", "client_id": None, "quota_type": "producer_byte_rate"}


@pytest.mark.parametrize(
    ("of", "changed", "columns"),
    [
        (OF_ALICE, {"except_client_ids": []}, ["except_client_ids"]),
        # No decision asks for the hold of this client, and for one of this type.
        (OF_ALICE, {"except_client_ids": None, "client_id": "app"}, []),
        (OF_ALICE, {"quota_type": "request_percentage"}, []),
        ({"user": "alice", "cause": "expired"}, {"cause": "forgiven"}, ["cause"]),
        ({"user": "bob", "cause": "expired"}, {"cause": "forgiven"}, ["cause"]),
    ],
)
def test_a_record_that_decisions_and_quotas_do_not_ask_for_is_found(
    of: dict[str, Any], changed: dict[str, Any], columns: list[str], held: HandJob, tmp_path: Path
) -> None:
    copy = KeptCopy(held, tmp_path)
    records = DeltaTable(copy.uri("throttle_events")).to_pyarrow_table()
    rows = records.sort_by("publish_seq").to_pylist()
    matching = [row for row in rows if of.items() <= row.items()]
    altered = matching[-1 if "cause" in of else 0]
    altered.update(changed)
    copy.replace("throttle_events", pa.Table.from_pylist(rows, records.schema))
    (found,) = verified(str(tmp_path), held).mismatches
    assert (found.key["publish_seq"], sorted(found.columns)) == (altered["publish_seq"], columns)


class KeptCopy:
    """The usage, buckets, batches, decisions and records of a job under another root, to be tampered with."""

    def __init__(self, job: KeptJob | HandJob, root: Path) -> None:
        self._root = str(root)
        for name in ("usage", "batches", "decisions", "throttle_events", "sensor_state"):
            of_job = job.root if isinstance(job, KeptJob) else job.settings.tables.root
            rows = DeltaTable(table_uri(of_job, name)).to_pyarrow_table()
            write_deltalake(self.uri(name), rows, partition_by=["date"])

    def uri(self, name: str) -> str:
        return table_uri(self._root, name)

    def replace(self, name: str, rows: pa.Table) -> None:
        write_deltalake(self.uri(name), rows, mode="overwrite", partition_by=["date"])


def decision(user: str = "alice", batch_id: int = 1, **columns: Any) -> dict[str, Any]:
    key = {"query_id": "q", "batch_id": batch_id, "broker_id": "", "user": user, "client_id": "etl"}
    figures = {"quota_type": "producer_byte_rate", "mode": "enforce", "observed": 2.5, "max_throttle_time_ms": None}
    return {**key, **figures, **columns}


SCHEMA = pa.schema(
    [
        *((name, pa.int64() if name == "batch_id" else pa.string()) for name in KEY),
        ("observed", pa.float64()),
        ("max_throttle_time_ms", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("kept", "again", "told"),
    [
        ([decision(), decision("bob")], [decision("bob"), decision()], []),
        ([decision()], [decision(observed=2.5 + 2**-51)], [("alice", 1, {"observed": (2.5, 2.5 + 2**-51)})]),
        ([decision(max_throttle_time_ms=9)], [decision()], [("alice", 1, {"max_throttle_time_ms": (9, None)})]),
        (
            [decision(), decision("bob")],
            [decision("bob"), decision("carol")],
            [("alice", 1, "not recomputed"), ("carol", 1, "not stored")],
        ),
        (
            [decision(batch_id=batch_id) for batch_id in (10, 9, 2)],
            [decision(batch_id=batch_id, observed=0.0) for batch_id in (2, 10, 9)],
            [("alice", batch_id, {"observed": (2.5, 0.0)}) for batch_id in (2, 9, 10)],
        ),
    ],
    ids=["in any order", "the last bit", "a value and none", "on one side only", "in the order of the batches"],
)
def test_what_differs_is_told(kept: list[Any], again: list[Any], told: list[Any]) -> None:
    stored = pa.Table.from_pylist(kept, SCHEMA).append_column("date", pa.array(["2026-11-21"] * len(kept)))
    found = differences(stored, pa.Table.from_pylist(again, SCHEMA))
    assert [(one.key["user"], one.key["batch_id"], what(one)) for one in found] == told


def what(one: Difference) -> Any:
    if not one.is_stored:
        return "not stored"
    return one.columns if one.is_recomputed else "not recomputed"
