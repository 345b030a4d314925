"""The design page says what the code says: cited headings exist, and its floors are those of the import contract."""

import re
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "design.md").read_text()
NAME = "docs/design.md"
FOLDERS = ("schemas", "quota", "purgatory", "pipeline", "bench", "examples", "tests")
HEADINGS = set(re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE))


def _python_files() -> list[Path]:
    return [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]


def _citations(text: str) -> list[str]:
    """The headings of each mention of the page; "" for a mention without one. A line may break anywhere in between."""
    words = " ".join(text.split())
    mentions = re.finditer(re.escape(NAME) + r'((?:(?:,| and) "[^"]+")*)', words)
    return [heading for found in mentions for heading in re.findall(r'"([^"]+)"', found[1]) or [""]]


def test_every_citation_of_the_design_page_names_a_heading_that_exists() -> None:
    cited = {str(path.relative_to(ROOT)): _citations(path.read_text()) for path in _python_files()}
    assert any(cited.values()), "the page is cited"
    assert {name: wrong for name, found in cited.items() if (wrong := set(found) - HEADINGS)} == {}


def test_the_floors_of_the_page_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["pipeline"])
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", PAGE, re.MULTILINE)
    floors = [sorted(re.findall(r"`(\w+)/?`", names)) for _, names in rows]
    assert floors == [sorted(layer.split(" : ")) for layer in layers]
    assert [int(number) for number, _ in rows] == list(range(len(layers), 0, -1))
    assert len(set(chain(*floors))) == sum(map(len, floors))
