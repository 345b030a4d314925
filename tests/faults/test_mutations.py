"""The judge finds every defect that is seeded into the job, and nothing where there is none."""

from pathlib import Path

import pytest

from tests.faults.hand_load import AT_LEAST, Load, live
from tests.faults.mutations import MUTATIONS

_QUICK_EVERY = 12  # the others are for the long run
DEFECTS = [
    pytest.param(defect, marks=pytest.mark.long if number % _QUICK_EVERY else ())
    for number, defect in enumerate(MUTATIONS)
]


def test_a_job_without_a_defect_is_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(tmp_path, monkeypatch, in_memory=True)
    live(load)
    assert load.job.verdict(AT_LEAST).told() == []


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_seeded_defect_is_found(defect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[defect]
    mutation.seed(monkeypatch)
    load = Load(tmp_path, monkeypatch, in_memory=True)
    live(load)
    told = load.job.verdict().told()
    assert [line for line in told if line.startswith(mutation.told)], told
