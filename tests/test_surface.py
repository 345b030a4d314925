"""What is supported: `__all__` of a package and the site's page of it; examples of docstrings do what they print."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "quota", "purgatory", "pipeline.gate", "pipeline.tables.quotas")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_supported_name_is_there_and_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert f"::: {package}\n" in (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("quota.engine", {"QuotaEngine", "QuotaSnapshot", "ThrottleCaps"}),
        ("quota.broker_level", {"broker_level"}),
        ("purgatory.batch_wheel", {"BatchTimingWheel"}),
        ("purgatory.timing_wheel", {"TimingWheel"}),
        ("purgatory.delayed_operation", {"DelayedOperation", "DelayedOperationPurgatory"}),
    ],
)
def test_the_module_paths_that_other_programs_import_stay(module: str, names: set[str]) -> None:
    assert names <= set(vars(importlib.import_module(module)))


WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("schemas", "quota", "purgatory")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module_do_what_they_print(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried > 0
    assert failed == 0
