"""What is supported: `__all__` of a package, the site's page of it, and what documents and examples import."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "quota", "purgatory", "pipeline.gate", "pipeline.tables.quotas")
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def supported(package: str) -> set[str]:
    return set(importlib.import_module(package).__all__)


def imported(source: str, package: str) -> set[str]:
    """What a program imports from a package, or a shell command with one in it: `name`, or `module:name`."""
    found = set()
    pattern = rf"from ({package}(?:\.[\w.]+)?) import (?:\(([^)]*)\)|([\w, ]+))"
    for module, in_brackets, in_line in re.findall(pattern, source):
        inside = module.removeprefix(package).lstrip(".")
        names = re.findall(r"\w+", in_brackets or in_line)
        found |= {f"{inside}:{name}" if inside else name for name in names}
    return found


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


@pytest.mark.parametrize("package", PACKAGES)
def test_docs_and_examples_import_only_what_is_supported(package: str) -> None:
    examples = sorted((ROOT / "examples").rglob("*.py"))
    used = {path.name: imported(path.read_text(), package) for path in (*examples, *PAGES)}
    assert {name: wrong for name, names in used.items() if (wrong := names - supported(package))} == {}
