"""The model of the outbox keeps its properties, and misses each of its guards."""

import pytest

from tests.model.__main__ import PAGE, broken_by, guard_of
from tests.model.guards import GUARDS
from tests.model.search import explore
from tests.mutations.defects import DEFECTS
from tests.mutations.planting import Defect, Tree

MOST_STEPS = 12


def test_with_all_guards_no_state_breaks_a_property() -> None:
    found = explore()
    assert found[1:] == ("", ())
    assert found.states > 100_000


@pytest.mark.parametrize("name", list(GUARDS))
def test_without_a_guard_a_short_way_breaks_a_property_and_the_page_has_it(name: str) -> None:
    found = explore(name)
    assert found.broken
    assert len(found.way) <= MOST_STEPS
    (line,) = (line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"* **{broken_by(found)}**: "))
    assert guard_of(name, found) in line


WITHOUT_A_DEFECT = {"conditional", "raise", "store", "fence", "together", "renew"}
"""Guards that no planted defect of one line takes away."""


def test_each_guard_is_in_the_code_and_has_its_planted_defect_or_is_named_here() -> None:
    tree, sentences = Tree(), {defect.what for defect in DEFECTS}
    for guard in GUARDS.values():
        tree.planted(Defect("", guard.where, "lambda original, *a, **k: original(*a, **k)", ""))
    assert {name for name, guard in GUARDS.items() if guard.defect not in sentences} == WITHOUT_A_DEFECT
