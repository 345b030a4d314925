"""The switch between clusters, and the page of an application team, in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.clock import wall_ms
from pipeline.dashboard.links import About, link_text
from tests.pipeline.dashboard.lived_tables import HOSTILE, LivedTables, Sender
from tests.pipeline.dashboard.shop import lived_shop, quota
from tests.waiting import PATIENCE_SECONDS

pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

from tests.pipeline.dashboard import test_page
from tests.pipeline.dashboard.test_page import CHROMIUM, dashboard, new_page, violations

browser, page = test_page.browser, test_page.page
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")
TOKEN = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[LivedTables, LivedTables]:
    """The shop, and a second cluster."""
    prod = lived_shop(tmp_path_factory.mktemp("prod"), wall_ms() - 45_000, seconds=45)
    sends = [Sender("bob", "test", lambda _: {"produced_bytes": 20_000})]
    quotas = [quota("bob", "", producer_byte_rate=50_000.0)]
    dev = LivedTables(Path(tmp_path_factory.mktemp("dev")), quotas, sends, wall_ms() - 20_000)
    dev.live(20)
    return prod, dev


@pytest.fixture(scope="module")
def address(tables: tuple[LivedTables, LivedTables]) -> Iterator[str]:
    with dashboard(f"prod={tables[0].root}", f"dev={tables[1].root}") as found:
        yield found.rstrip("/")


def client_names(page: Any) -> set[str]:
    page.wait_for_selector("main[data-ready=true]")
    return {*page.get_by_test_id("talkers").get_by_role("link").all_inner_texts()}


def test_the_switch_leads_to_the_other_cluster_and_every_link_stays_in_it(page: Any, address: str) -> None:
    page.goto(address)
    page.locator("#clusters:not([hidden])").wait_for()
    assert page.locator("#clusters option").all_inner_texts() == ["prod", "dev"]
    assert "alice / etl" in client_names(page)
    page.select_option("#clusters", "dev")
    page.get_by_role("link", name="bob / test").first.wait_for()
    assert page.url == f"{address}/?cluster=dev"
    assert client_names(page) == {"bob / test"}
    links = page.eval_on_selector_all("a[data-nav]", "all => all.map((one) => one.getAttribute('href'))")
    assert links
    assert [one for one in links if "cluster=dev" not in one] == []
    page.get_by_test_id("talkers").get_by_role("link", name="bob / test").click()
    page.wait_for_selector("main[data-view=client][data-ready=true]")
    assert page.url == f"{address}/client?user=bob&client_id=test&cluster=dev"
    page.keyboard.press("3")
    page.wait_for_selector("main[data-view=quotas][data-ready=true]")
    assert page.get_by_test_id("quota-row").count() == 1
    assert page.url == f"{address}/quotas?cluster=dev"


def test_an_unknown_cluster_is_a_sentence_on_the_page(browser: Any, address: str) -> None:
    context = browser.new_context()
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_SECONDS * 1_000)
    for view in ("/", "/quotas"):
        opened.goto(f"{address}{view}?cluster=test")
        failed = opened.get_by_test_id("failed")
        failed.wait_for()
        assert failed.locator("h1").inner_text() == "Unknown cluster 'test'; clusters are prod, dev."
        assert failed.get_by_role("link").get_attribute("href") == view
    context.close()


def test_one_cluster_alone_has_no_switch(page: Any, tables: tuple[LivedTables, LivedTables]) -> None:
    with dashboard(tables[0].root) as alone:
        page.goto(alone)
        page.wait_for_selector("main[data-ready=true]")
        assert page.locator("#clusters").is_hidden()
        page.goto("about:blank")


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_the_page_of_a_team_is_accessible_and_fits(
    browser: Any, tables: tuple[LivedTables, LivedTables], theme: str
) -> None:
    end_ms = wall_ms() + 3_600_000
    with dashboard(tables[0].root, KQUOTA_DASHBOARD_TOKEN=TOKEN) as at, new_page(browser, color_scheme=theme) as opened:
        for about in (About(None, "alice", "etl"), About(None, "web", None), About(None, "guest", HOSTILE)):
            opened.goto(link_text(at, TOKEN, about, end_ms))
            assert opened.locator("h1").inner_text().endswith(".")
            assert opened.locator("img").count() == 0
            for width in (360, 768, 1440):
                opened.set_viewport_size({"width": width, "height": 800})
                assert opened.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (about, width)
                assert violations(opened) == [], (about, width)
        opened.goto("about:blank")
