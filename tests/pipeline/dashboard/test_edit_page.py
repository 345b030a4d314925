"""The dialog "Try a different limit" in a real browser: a what-if that is stopped, and an edit copied as a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.pipeline.dashboard.shop import START_MS
from tests.pipeline.dashboard.test_editing import Replays, dashboard_of, is_alive
from tests.waiting import wait_until

pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

from tests.pipeline.dashboard import test_page
from tests.pipeline.dashboard.test_page import CHROMIUM, show

browser, page = test_page.browser, test_page.page
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")


@contextmanager
def shown_to(page: Any, tables: LivedTables, **options: Any) -> Iterator[str]:
    """A dashboard's address; the page has left it before it ends, and so asks for nothing that is refused."""
    with dashboard_of(tables, **options) as server:
        yield server.address
        page.goto("about:blank")


def open_dialog(page: Any, address: str) -> None:
    show(page, address, "/quotas")
    page.get_by_test_id("quota-row").filter(has_text="alice").first.get_by_test_id("edit-row").click()
    page.get_by_test_id("field-producer_byte_rate").fill("50kB/s")


def test_a_what_if_shows_what_share_is_done_and_is_stopped(
    page: Any, shop: LivedTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = Replays(tmp_path, monkeypatch)
    with shown_to(page, shop) as address:
        open_dialog(page, address)
        names = page.get_by_test_id("field-baseline").locator("option").all_inner_texts()
        assert names == ["with today's quotas", "as it happened"]
        page.get_by_test_id("field-baseline").select_option("happened")
        page.get_by_test_id("edit-what-if").click()
        pid = replays.wait_for_one()
        page.get_by_text("Replaying the last 15 minutes, 40 % done, ").wait_for()
        assert page.get_by_role("progressbar").get_attribute("value") == "40"
        page.get_by_test_id("edit-stop").click()
        page.get_by_text("Stopped.").wait_for()
        wait_until(lambda: not is_alive(pid), "the replay to end, as it was stopped")


def test_an_edit_is_copied_as_the_command_that_makes_it(page: Any, shop: LivedTables) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    with shown_to(page, shop) as address:
        open_dialog(page, address)
        page.get_by_test_id("edit-plan").click()
        command = page.get_by_test_id("command").inner_text()
        assert command.endswith(" --add-config producer_byte_rate=50000")
        page.get_by_test_id("copy").click()
        page.get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == command


def test_a_hint_that_ends_in_a_command_has_a_button_that_copies_it(page: Any, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    with shown_to(page, LivedTables(tmp_path, [], [], START_MS), process=None) as address:
        show(page, address, "/quotas")
        command = page.locator("#banner").get_by_test_id("command").inner_text()
        assert command.endswith("kquota run")
        page.locator("#banner").get_by_test_id("copy").click()
        page.get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == command
        page.wait_for_timeout(2_500)  # the banner is shown again meanwhile
        assert page.get_by_text("Copied").is_visible()
