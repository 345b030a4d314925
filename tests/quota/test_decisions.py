"""Batches of stored usage come back as they were decided; a decision has one id."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.decisions import Evaluation, batches_of, decision_ids

T0_MS = 1_700_000_000_000


def stored(batch_id: int, at_ms: int, rows: int = 1, query_id: str = "q") -> list[dict[str, Any]]:
    key = {
        "query_id": query_id,
        "batch_id": batch_id,
        "evaluated_at_ms": at_ms,
        "quota_version": batch_id // 7,
        "tenants_version": -1,
    }
    return [{**key, "time_epoch": 0, "user": f"u{row}"} for row in range(rows)]


@given(st.data())
def test_batches_come_back_whole_and_in_the_order_they_were_decided(data: st.DataObject) -> None:
    batches, at_ms = [], T0_MS
    for batch_id, step_ms in enumerate(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=60))):
        at_ms += step_ms
        batches.append(stored(batch_id, at_ms, data.draw(st.integers(1, 5))))
    usage = pa.Table.from_pylist(data.draw(st.permutations([row for batch in batches for row in batch])))
    found = [*batches_of(usage)]
    assert [sorted(one.usage["user"].to_pylist()) for one in found] == [[row["user"] for row in b] for b in batches]
    for one, (first, *_) in zip(found, batches, strict=True):
        key = {
            name: getattr(one.evaluation, name)
            for name in ("query_id", "batch_id", "evaluated_at_ms", "quota_version", "tenants_version")
        }
        assert key == {name: first[name] for name in key}


def test_a_new_query_begins_after_the_last_instant_of_the_one_before_and_the_first_of_all_at_its_own() -> None:
    last = Evaluation("q", 7, T0_MS, 0)
    assert [last.least_ms("q"), last.least_ms("r"), Evaluation("", -1, 0, -1).least_ms("q")] == [T0_MS, T0_MS + 1, 0]
    assert list(batches_of(pa.Table.from_pylist(stored(7, T0_MS)).slice(0, 0))) == []


PARTS: dict[str, Any] = {"cluster": "c1", "query_id": "q1", "batch_id": 7, "broker_id": "", "user": "alice"}
PARTS |= {"client_id": "etl", "quota_type": "producer_byte_rate"}


def decision_id(*, cluster: str, query_id: str, batch_id: int, **decision: str | None) -> str:
    rows = pa.table({name: pa.array([part], pa.string()) for name, part in decision.items()})
    return decision_ids(rows, cluster, Evaluation(query_id, batch_id, T0_MS, 0))[0]


def test_the_id_of_a_decision_never_changes() -> None:
    # Stored rows and published records have this id. Another value here would be a breaking change.
    assert decision_id(**PARTS) == "fc0835ce8d967edc"


@pytest.mark.parametrize("part", list(PARTS))
def test_every_part_counts(part: str) -> None:
    other = 8 if part == "batch_id" else PARTS[part] + "x"
    assert decision_id(**{**PARTS, part: other}) != decision_id(**PARTS)


@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_different_parts_never_run_together(user: str, client_id: str, other_user: str, other_client_id: str) -> None:
    one = decision_id(**{**PARTS, "user": user, "client_id": client_id})
    other = decision_id(**{**PARTS, "user": other_user, "client_id": other_client_id})
    assert (one == other) == ((user, client_id) == (other_user, other_client_id))


def test_ids_of_a_sensor_and_of_a_client_without_a_client_id_differ() -> None:
    assert decision_id(**{**PARTS, "client_id": None}) != decision_id(**{**PARTS, "client_id": ""})
