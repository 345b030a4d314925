"""Makes the pictures of README and pages anew, of a demo that has run for some minutes.

`make run`, and in a second shell `.venv/bin/python -m tests.pages.pictures http://127.0.0.1:8788`. With a folder as a
second argument, all views are drawn there instead, in both themes and on a telephone, to be looked at.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from playwright.sync_api import sync_playwright

from tests.pages.blocks import ROOT
from tests.pipeline.dashboard.test_page import CHROMIUM, FLAGS, new_page, show

ALICE: Final = "/client?user=alice&client_id=etl"
VIEWS: Final = {"now": "/", "client": ALICE, "quotas": "/quotas", "pipeline": "/pipeline"}
HELD: Final = {"/": "[data-testid=throttled-row] >> nth=1", ALICE: ".holding .chip.warn"}
"""What is there while clients are held."""


class Picture(NamedTuple):
    """A view of the page as a file; `is_whole`: also what is below the screen."""

    name: str
    view: str
    theme: str
    size: tuple[int, int] = (1280, 860)
    is_whole: bool = False


OF_PAGES: Final = (
    Picture("dashboard-now.png", "/", "light"),
    Picture("dashboard-client.png", ALICE, "dark"),
)


def every_view() -> Iterator[Picture]:
    """Each view in both themes, wide and narrow."""
    for name, view in VIEWS.items():
        for theme in ("light", "dark"):
            yield Picture(f"{name}-{theme}.png", view, theme, is_whole=True)
            yield Picture(f"{name}-{theme}-360.png", view, theme, (360, 1500))


def draw(address: str, pictures: Iterable[Picture], folder: Path) -> None:
    """Draw pictures into a folder, each while clients are held."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for one in pictures:
            width, height = one.size
            with new_page(browser, viewport={"width": width, "height": height}, color_scheme=one.theme) as page:
                show(page, address, one.view)
                page.wait_for_selector(HELD.get(one.view, "main"))
                page.screenshot(path=str(folder / one.name), full_page=one.is_whole)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        draw(sys.argv[1], every_view(), Path(sys.argv[2]))
    else:
        draw(sys.argv[1], OF_PAGES, ROOT / "docs")
