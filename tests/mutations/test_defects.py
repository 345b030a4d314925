"""Every planted defect has its place and its tests: whoever moves one of them moves the row of the table, too."""

from collections import Counter

from tests.mutations.defects import DEFECTS
from tests.mutations.planting import ROOT, Defect, NotPlantable, Tree


def test_each_defect_can_be_planted() -> None:
    tree = Tree()
    gone = []
    for defect in DEFECTS:
        try:
            tree.planted(defect)
        except NotPlantable as exc:
            gone.append(f"{defect.what}: cannot be planted any more: {exc}")
    assert not gone, "\n".join(gone)


def test_the_tests_that_find_a_defect_are_there() -> None:
    assert [f"{defect.what}: {name}" for defect in DEFECTS for name in missing_tests(defect)] == []


def test_each_defect_has_a_sentence_of_its_own() -> None:
    assert [what for what, times in Counter(defect.what for defect in DEFECTS).items() if times > 1] == []


def missing_tests(defect: Defect) -> list[str]:
    return [name for name in defect.finder.split() if not is_there(*name.partition("::")[::2])]


def is_there(file: str, names: str) -> bool:
    path = ROOT / file
    if not names:
        return path.exists()
    name = names.rpartition("::")[2]  # without the id of a case, which no one could look up here
    return path.is_file() and f"def {name}(" in path.read_text(encoding="utf-8")
