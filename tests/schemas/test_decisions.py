"""The id of a decision, one by one and by columns."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrow import decision_id_column
from schemas.decisions import decision_id

PARTS: dict[str, Any] = {
    "cluster": "c1",
    "query_id": "q1",
    "batch_id": 7,
    "broker_id": "",
    "user": "alice",
    "client_id": "etl",
    "quota_type": "producer_byte_rate",
}


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


def test_a_name_with_a_lone_surrogate_has_an_id() -> None:
    assert len(decision_id(**{**PARTS, "user": "\ud800"})) == 16


COLUMNS = ("broker_id", "user", "client_id", "quota_type")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES, NAMES), max_size=6), NAMES, st.integers(0, 2**40), st.integers(0, 3))
def test_ids_by_columns_are_the_ids_one_by_one(
    decisions: list[tuple[str, str, str, str]], cluster: str, batch_id: int, first: int
) -> None:
    batch: dict[str, Any] = {"cluster": cluster, "query_id": "q", "batch_id": batch_id}
    rows: list[dict[str, Any]] = [dict(zip(COLUMNS, one, strict=True)) for one in decisions]
    table = pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in COLUMNS])).slice(first)
    ids = decision_id_column(table, **batch)
    assert ids.type == pa.string()
    assert ids.to_pylist() == [decision_id(**batch, **row) for row in rows[first:]]
