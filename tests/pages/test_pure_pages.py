"""The commands of the pages that need neither broker nor Spark are played, each page from its top, as a reader would.

`make pages RENEW=1` writes what was printed into the pages.
"""

from pathlib import Path

import pytest

from tests.pages.blocks import PAGES, ROOT, blocks_of
from tests.pages.demo import EVENTS
from tests.pages.given import give
from tests.pages.reader import Reader
from tests.pages.transcript import events_of

PURE = [page for page in PAGES if any(block.how.startswith("pure") for block in blocks_of(page.read_text("utf-8")))]


def test_every_event_that_a_page_waits_for_is_one_of_the_demo() -> None:
    named = {event for page in PAGES for _, event in events_of(page.read_text("utf-8"))}
    assert named
    assert named <= set(EVENTS)


def test_there_are_pages_to_play() -> None:
    assert {page.name for page in PURE} >= {"learn.md", "quotas.md", "what-if.md"}


@pytest.mark.parametrize("page", PURE, ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with Reader(tmp_path, give(page, tmp_path)) as reader:
        assert reader.play(page, "pure") == []
