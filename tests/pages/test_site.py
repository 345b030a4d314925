"""The site of docs/ is built, loads nothing from elsewhere, and its own search finds the answers to twenty questions.

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
ANSWERS: Final = {
    "What does metering cost my brokers?": r"2 % of its CPU at 5 000 requests a second",
    "How do I feed it?": r"kquota meter prometheus",
    "What happens to clients while the job is down, and to their debt afterwards?": r"end at their own throttled_until",
    "How do I run it for three clusters?": r"one set of tables.{1,50}for each cluster",
    "How do I roll it out without breaking anybody?": r"shadow for one team, cluster mode for five users",
    "Who is paged for which alert, and what do they do?": r"what to look at and what to do at 3 a\.m\.",
    "How do I see who would be throttled before I switch it on?": r"kquota observe .*shadow mode",
    "Why was alice throttled at 10:46 yesterday?": r"kquota throttles explain ID",
    "My consumer is slow: lag or throttle?": r"begins with why the client is held",
    "How small may a quota be?": r"Larger than one batch or one fetch",
    "What does one throttle record look like, and how do I obey it in Go?": r"eight rules",
    "Which rights does each part need?": r"kquota topics check --acls",
    "Can two brokers give a client twice its quota, and what stops that?": r"all brokers one level",
    "How do I change 500 quotas from git?": r"kquota quotas apply -f",
    "How do I undo an edit?": r"kquota quotas rollback N",
    "How big a machine for 50 000 clients and 100 000 events/s?": r"How big a machine",
    "How do I upgrade, and go back?": r"install the wheel of before|the older wheel",
    "What is lost if the disk is?": r"usage that is still on the topic is counted again",
    "What do you do that Kafka's quotas, Cruise Control, a proxy do not?": r"Cruise Control moves partitions",
    "How do I add a metric to the code?": r"pipeline/job/metrics\.py",
}
"""What a reader types, and a pattern of the answer."""

pytestmark = pytest.mark.skipif(not SITE_PYTHON.exists(), reason="the site's packages are not installed: make docs")


class _Article(HTMLParser):
    """The text of a page, and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        loaded = values.get("href") if tag == "link" else values.get("src")
        self.loads += [loaded] if loaded else []

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


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
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
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


def test_the_questions_have_answers_that_are_looked_for() -> None:
    page = (ROOT / "docs" / "questions.md").read_text("utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(ANSWERS)


@pytest.mark.parametrize("question", ANSWERS)
def test_the_search_finds_the_answer_in_two_pages(question: str, site: Path, reader: Any) -> None:
    pages = found_by(reader, question)[:PAGES_READ]
    assert [page for page in pages if re.search(ANSWERS[question], _Article(site / page).text)], pages


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    elsewhere = {page.name: [load for load in _Article(page).loads if "//" in load] for page in pages}
    assert {name: loads for name, loads in elsewhere.items() if loads} == {}


def test_the_browser_asks_for_nothing_but_files(reader: Any) -> None:
    found_by(reader, "throttle record")
    assert len(reader.asked) > 3
    assert [address for address in reader.asked if not address.startswith("file:")] == []
