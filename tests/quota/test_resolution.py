"""Which quota applies: known answers of Kafka 4.3.1 (V numbers), and each pair of levels against each other."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from quota.throttle_time import ThrottleCaps
from tests.quota.factories import quota_row, table, usage_row
from tests.quota.model import DEFAULT, TYPES, ScalarModel

AT_MS = 1_700_000_040_000
PRODUCE = "producer_byte_rate"


class Run:
    """Requests of several clients at one instant, while quotas change."""

    def __init__(self, **bounds: float) -> None:
        self._engine = QuotaEngine(max_throttle_time=ThrottleCaps(producer_byte_rate="none"))
        self._bounds: dict[tuple[str, str], float] = {}
        self.set({("A", ""): bounds["A"]} if bounds else {})

    def set(self, bounds: dict[tuple[str, str], float | None]) -> None:
        """Set quotas by entity. None removes a quota."""
        merged = {**self._bounds, **bounds}
        self._bounds = {entity: bound for entity, bound in merged.items() if bound is not None}
        rows = [quota_row(*entity, producer_byte_rate=bound) for entity, bound in self._bounds.items()]
        self._engine.load_quotas(QuotaSnapshot.from_rows(rows, 1))

    def use(self, user: str, client_id: str, value: int) -> tuple[tuple[str, str], float | None, int]:
        """Record a request. Returns its sensor, bound and throttle time."""
        usage = table([usage_row(AT_MS, user=user, client_id=client_id, produced_bytes=value)])
        throttled = sum(self._engine.record(usage, AT_MS)["throttle_time_ms"].to_pylist())
        level = self._engine.resolve(usage).to_pylist()[0]
        return (level["sensor_user"], level["sensor_client_id"]), level["bound"], throttled


def test_precedence_vectors() -> None:
    run = Run()
    run.set({(DEFAULT, ""): 1000, ("", DEFAULT): 2000, (DEFAULT, DEFAULT): 3000, ("A", ""): 4000, ("A", "1"): 5000})
    run.set({("B", ""): 6000, ("B", "1"): 7000, ("B", DEFAULT): 8000, ("C", ""): 10000, ("", "1"): 9000})
    assert run.use("A", "1", 49500) == (("A", "1"), 5000, 0), "V78"
    assert run.use("A", "2", 49500) == (("A", ""), 4000, 2375), "V79"
    assert run.use("A", "3", 0) == (("A", ""), 4000, 2375), "V80"
    assert run.use("A", "1", 0) == (("A", "1"), 5000, 0), "V81"
    assert run.use("B", "1", 88000) == (("B", "1"), 7000, 2571), "V82"
    assert run.use("B", "2", 77000) == (("B", "2"), 8000, 0), "V83"
    assert run.use("B", "3", 77000) == (("B", "3"), 8000, 0), "V84"
    assert run.use("D", "1", 38500) == (("D", "1"), 3000, 2833), "V85"
    assert run.use("D", "2", 27500) == (("D", "2"), 3000, 0), "V86"
    assert run.use("E", "1", 27500) == (("E", "1"), 3000, 0), "V87"
    run.set({(DEFAULT, DEFAULT): None})
    assert run.use("D", "1", 0) == (("D", ""), 1000, 0), "V88"
    assert run.use("E", "4", 16500) == (("E", ""), 1000, 6500), "V89"
    assert run.use("F", "4", 8800) == (("F", ""), 1000, 0), "V90"
    assert run.use("F", "5", 8800) == (("F", ""), 1000, 7600), "V91"
    run.set({(DEFAULT, ""): None})
    assert run.use("F", "4", 0) == (("", "4"), 2000, 0), "V92"
    assert run.use("F", "5", 0) == (("", "5"), 2000, 0), "V93"
    assert run.use("F", "5", 27500) == (("", "5"), 2000, 3750), "V94"
    assert run.use("G", "5", 0) == (("", "5"), 2000, 3750), "V95"
    run.set({("A", ""): 8000, ("A", "1"): 10000})
    assert run.use("A", "2", 0) == (("A", ""), 8000, 0), "V96"
    assert run.use("A", "2", 49500) == (("A", ""), 8000, 2375), "V96"
    assert run.use("A", "1", 0) == (("A", "1"), 10000, 0), "V97"
    assert run.use("A", "1", 66000) == (("A", "1"), 10000, 1550), "V97"
    run.set({("A", "1"): None})
    assert run.use("A", "6", 0) == (("A", ""), 8000, 2375), "V98"
    run.set({("A", "6"): 11000})
    assert run.use("A", "6", 93500) == (("A", "6"), 11000, 0), "V99"
    run.set({("A", DEFAULT): 12000, ("A", "6"): None})
    assert run.use("A", "6", 44000) == (("A", "6"), 12000, 1458), "V100"


@pytest.mark.parametrize(
    ("bounds", "with_client_id", "without"),
    [
        pytest.param(
            {("A", DEFAULT): 100, ("A", ""): 50000}, (("A", "c"), 100, 40000), (("A", ""), 50000, 0), id="V73"
        ),
        pytest.param({("A", DEFAULT): 100, ("", "zz"): 7}, (("A", "c"), 100, 40000), (("A", ""), None, 0), id="V74"),
        pytest.param({("", DEFAULT): 100}, (("", "c"), 100, 40000), (("", ""), None, 0), id="V75"),
        pytest.param({("A", DEFAULT): 100}, (("A", "c"), 100, 40000), (("A", ""), None, 0), id="V76"),
    ],
)
def test_an_empty_client_id_escapes_default_client_quotas(bounds: Any, with_client_id: Any, without: Any) -> None:
    run = Run()
    run.set(bounds)
    assert run.use("A", "c", 5000) == with_client_id
    assert run.use("A", "", 5000) == without


def test_a_type_without_quotas_records_nothing() -> None:
    run = Run()
    assert run.use("A", "c", 11000) == (("", "c"), None, 0)
    run.set({(DEFAULT, ""): 10})
    assert run.use("A", "c", 11000) == (("A", ""), 10, 1090000), "V77"
    run.set({(DEFAULT, ""): None})
    assert run.use("A", "c", 11000) == (("", "c"), None, 0), "V77 by 4.3.1: inert again"
    run.set({(DEFAULT, ""): 10})
    assert run.use("A", "c", 0) == (("A", ""), 10, 1090000), "what was used meanwhile is not in the rate"


def test_sharing_vectors() -> None:
    run = Run(A=1000)
    assert run.use("A", "c1", 6000)[2] == 0, "V101"
    assert run.use("A", "c2", 6000)[2] == 2000, "V101: shared"
    run = Run()
    run.set({("A", DEFAULT): 1000})
    assert [run.use("A", client, 6000)[2] for client in ("c1", "c2")] == [0, 0], "V102: apart"
    run = Run()
    run.set({("", "c1"): 1000})
    assert [run.use(user, "c1", 6000)[2] for user in ("A", "B")] == [0, 2000], "V102b: shared across users"
    run = Run(A=1000)
    assert run.use("A", "c", 12000)[2] == 2000, "V102c"
    run.set({("A", "c"): 1000})
    assert run.use("A", "c", 12000)[2] == 2000, "V102c: a new sensor"
    run.set({("A", "c"): None})
    assert run.use("A", "c", 0)[2] == 2000, "V102c: the old one resumes"
    run = Run(A=10)
    assert run.use("B", "x", 10**9) == (("B", ""), None, 0), "V102d"


ROWS = {
    1: ("u", "c"),
    2: ("u", DEFAULT),
    3: ("u", ""),
    4: (DEFAULT, "c"),
    5: (DEFAULT, DEFAULT),
    6: (DEFAULT, ""),
    7: ("", "c"),
    8: ("", DEFAULT),
}


@pytest.mark.parametrize(
    "levels", [set(chosen) for size in range(1, 9) for chosen in combinations(ROWS, size)], ids=str
)
def test_the_most_specific_of_the_levels_present_holds(levels: set[int]) -> None:
    engine = QuotaEngine()
    rows = [_quota_at(level) for level in levels]
    engine.load_quotas(QuotaSnapshot.from_rows(rows, 1))
    for row in engine.resolve(table([usage_row(AT_MS)])).to_pylist():
        assert (row["level"], row["bound"]) == (min(levels), float(min(levels)))


def _quota_at(level: int) -> dict[str, Any]:
    """A quota row of a level. Its bound is the number of the level."""
    user, client_id = ROWS[level]
    return {"user": user, "client_id": client_id, **dict.fromkeys(TYPES, float(level))}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", DEFAULT, "a", "b"]),
            st.sampled_from(["", DEFAULT, "c", "d"]),
            st.sampled_from(["enforce", "shadow", "exempt"]),
            st.tuples(*[st.sampled_from([None, 1.0, 2.0])] * 3),
        ).filter(lambda row: bool(row[0] or row[1])),
        max_size=12,
        unique_by=lambda row: row[:2],
    )
)
@settings(max_examples=80)
def test_resolution_equals_a_search_row_by_row(rows: list[Any]) -> None:
    quotas = [quota_row(user, client, mode=mode, **dict(zip(TYPES, b, strict=True))) for user, client, mode, b in rows]
    engine, model = QuotaEngine(), ScalarModel()
    engine.load_quotas(QuotaSnapshot.from_rows(quotas, 1))
    model.load_quotas(quotas)
    entities = [
        usage_row(AT_MS, user=u, client_id=c) for u in ("a", "b", "x", DEFAULT) for c in ("", "c", "d", "x", DEFAULT)
    ]
    assert engine.resolve(table(entities)).to_pylist() == model.resolve(entities)
