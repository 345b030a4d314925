from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrow import decision_id_column
from schemas.decisions import decision_id

PARTS = ("broker_id", "user", "client_id", "quota_type")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES, NAMES), max_size=6), NAMES, st.integers(0, 2**40), st.integers(0, 3))
def test_ids_by_columns_are_the_ids_one_by_one(
    decisions: list[tuple[str, str, str, str]], cluster: str, batch_id: int, first: int
) -> None:
    batch: dict[str, Any] = {"cluster": cluster, "query_id": "q", "batch_id": batch_id}
    rows: list[dict[str, Any]] = [dict(zip(PARTS, one, strict=True)) for one in decisions]
    table = pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in PARTS])).slice(first)
    ids = decision_id_column(table, **batch)
    assert ids.type == pa.string()
    assert ids.to_pylist() == [decision_id(**batch, **row) for row in rows[first:]]
