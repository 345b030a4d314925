"""The site of docs/ is built, loads nothing from elsewhere, and its own search finds the twenty questions.

It needs the site's packages, which `make docs` installs, and for the search Chromium; without them the tests say so and
are skipped.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest

from tests.pages.blocks import ROOT
from tests.waiting import PATIENCE_SECONDS

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
SITE_PYTHON: Final = ROOT / os.environ.get("VENV", ".venv") / "site" / "bin" / "python"
CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
PAGES_READ: Final = 2
QUESTIONS: Final = re.findall(r"^## (.+)$", (ROOT / "docs" / "questions.md").read_text("utf-8"), re.MULTILINE)

pytestmark = pytest.mark.skipif(not SITE_PYTHON.exists(), reason="the site's packages are not installed: make docs")


class _Loads(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loaded = dict(attrs).get("href" if tag == "link" else "src")
        self.found += [loaded] if loaded else []


@pytest.fixture(scope="module")
def site() -> Path:
    """The built site, every link and anchor checked."""
    built = subprocess.run([ROOT / "deploy" / "site.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return ROOT / "build" / "site" / "html"


@pytest.fixture(scope="module")
def reader(site: Path) -> Iterator[Any]:
    """The first page in Chromium, opened as a file."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_SECONDS * 1_000)
        page.goto((site / "index.html").as_uri())
        yield page
        browser.close()


def found_by(reader: Any, words: str) -> list[str]:
    """The pages that the site's own search lists, best first."""
    field, said = reader.locator("input[data-md-component=search-query]"), ".md-search-result__meta"
    for typed, answer in (("", "Type to start"), (words, "matching document")):
        field.fill(typed)
        field.press("End")  # the search listens to keys
        reader.wait_for_function(f"document.querySelector('{said}').innerText.includes('{answer}')")
    links = reader.locator("a.md-search-result__link").evaluate_all("all => all.map(link => link.href)")
    return list(dict.fromkeys(re.sub(r"^.*/html/|[?#].*", "", link) for link in links))


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_finds_a_question(question: str, reader: Any) -> None:
    assert "questions.html" in found_by(reader, question)[:PAGES_READ]


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    elsewhere = {page.name: [load for load in _Loads(page).found if "//" in load] for page in pages}
    assert {name: loads for name, loads in elsewhere.items() if loads} == {}
