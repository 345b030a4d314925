"""The page in a real browser, over tables that a job writes meanwhile.

It needs Chromium on PATH (Debian: `apt-get install chromium`); without it the tests say so and are skipped. Nothing but
127.0.0.1 is asked: the browser has no other way out.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.clock import wall_ms
from pipeline.job.status import job_lock
from pipeline.process import ProcessLock
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.throttles import running_throttles
from tests.pipeline.dashboard.shop import HOSTILE, LivedTables, lived_shop, quota
from tests.waiting import PATIENCE_SECONDS, wait_until

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE_MS = PATIENCE_SECONDS * 1_000
VIEWS = (
    "/",
    "/client",
    "/client?user=alice&client_id=etl",
    f"/client?user=guest&client_id={HOSTILE}",
    "/client?user=kiosk&client_id=till",
    "/client?user=nowhere",
    "/quotas",
    "/pipeline",
)
WIDTHS = (1440, 768, 360)

no_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")
pytestmark = [no_chromium, pytest.mark.long]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> LivedTables:
    folder, start_ms = tmp_path_factory.mktemp("page"), wall_ms() - 60_000
    return lived_shop(folder, start_ms, seconds=60, at_once=False, has_tenant=True)


def lock_of(tables: LivedTables) -> ProcessLock:
    """Who holds it is the job that writes the tables."""
    return job_lock(Path(tables.root), "kquota", tables.root)


@pytest.fixture(scope="module")
def running(tables: LivedTables) -> Iterator[ExitStack]:
    """This process is the job, until the stack is closed."""
    with ExitStack() as stack:
        stack.enter_context(lock_of(tables))
        yield stack


@pytest.fixture(scope="module")
def address(tables: LivedTables, running: ExitStack) -> Iterator[str]:
    with dashboard(tables.root) as found:
        yield found


@contextmanager
def dashboard(root: str, **environ: str) -> Iterator[str]:
    """`kquota dashboard` as its own process; yields the page's address. It ends with the block."""
    command = [sys.executable, "-m", "pipeline.cli.main", "dashboard", "--port", "0", "--tables", root]
    with (
        tempfile.NamedTemporaryFile("r+") as log,  # a pipe that is not read could fill, and stop it
        subprocess.Popen(command, stderr=log, env={**os.environ, **environ}) as child,
    ):
        told = Path(log.name).read_text
        try:
            wait_until(lambda: "\n" in told() or child.poll() is not None, "the address of the dashboard")
            assert told().startswith("dashboard: http://127.0.0.1:"), told()
            yield told().partition("\n")[0].removeprefix("dashboard: ").strip()
            child.terminate()
            assert child.wait(PATIENCE_SECONDS) == 0
        finally:
            child.kill()  # else the block would wait for a child that does not end


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield launched
        finally:
            launched.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with new_page(browser) as opened:
        yield opened


@contextmanager
def new_page(browser: Any, may_complain: bool = False, **options: Any) -> Iterator[Any]:
    """A page that has no trouble to tell at its end: no error, no refused load, no dialog.

    It `may_complain`: the browser itself notes a status, or what it can no longer load, on the console.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    opened = context.new_page()
    trouble: list[str] = []
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("dialog", lambda dialog: trouble.append(f"dialog {dialog.message}"))
    opened.on("console", lambda said: trouble.append(said.text) if said.type == "error" else None)
    opened.set_default_timeout(PATIENCE_MS)
    try:
        yield opened
    finally:
        context.close()
    assert may_complain or trouble == []


def show(page: Any, address: str, view: str) -> None:
    page.goto(address.rstrip("/") + view)
    page.wait_for_selector("main[data-ready=true]")


def go_on(tables: LivedTables) -> None:
    """The job's clock is the machine's again, and it runs a micro-batch now."""
    tables.job.clock.set_wall(wall_ms() - 1_000)
    tables.job.clock.steady_ms = tables.job.clock.wall_ms
    tables.live(1)


def until_live(page: Any, tables: LivedTables) -> None:
    """Micro-batches go on until the page has seen a new one; on a slow machine the first may be old by then."""

    def is_live() -> bool:
        go_on(tables)
        return bool(page.locator("#pulse[data-state=live]").count())

    wait_until(is_live, "a live job")


def text_of(page: Any, test_id: str) -> str:
    found: str = page.locator(f"[data-testid={test_id}]:not(:has-text('Loading'))").inner_text()
    return found


def test_the_numbers_are_those_of_the_tables(page: Any, address: str, tables: LivedTables) -> None:
    go_on(tables)
    show(page, address, "/")
    newest = read_table(table_uri(tables.root, "batches")).num_rows - 1
    told = f"micro-batch {newest},"
    wait_until(lambda: (page.locator("#pulse").get_attribute("title") or "").startswith(told), "the newest micro-batch")

    def as_shown() -> bool:
        running = {f"{row['user']} / {row['client_id']}" for row in running_throttles(tables.root, wall_ms())}
        rows = page.get_by_test_id("throttled-row").get_by_test_id("client-link").all_inner_texts()
        return set(rows) == running

    wait_until(as_shown, "the throttled clients")  # one may end just now
    assert text_of(page, "value-clients") == "7"
    assert text_of(page, "value-quotas") == f"v{QuotaTable(tables.root).read().version}"


def test_a_hostile_client_id_is_text(page: Any, address: str) -> None:
    show(page, address, f"/client?user=guest&client_id={HOSTILE}")
    assert text_of(page, "client-name") == f"guest / {HOSTILE}"
    show(page, address, "/")
    assert HOSTILE in page.locator("main").inner_text()
    show(page, address, "/pipeline")
    assert "<script>alert(1)</script>" in text_of(page, "dead-letters")


def test_a_link_leads_to_one_clients_throttle(page: Any, address: str, tables: LivedTables) -> None:
    go_on(tables)
    show(page, address, "/")
    page.get_by_test_id("talkers").get_by_role("link", name="alice / etl").click()
    page.wait_for_selector("main[data-view=client][data-ready=true][data-drawn='1']")
    assert re.search(r"/client\?user=alice&client_id=etl", page.url)
    assert "over producer_byte_rate" not in text_of(page, "explain")
    assert "X = (O − T) / T · W" in text_of(page, "explain")
    assert page.locator("[data-testid=chart-producer_byte_rate] canvas").count() == 1
    page.go_back()
    page.wait_for_selector("main[data-view=now][data-ready=true]")
    told = text_of(page, "tenant-text")
    lends, fits = "lends kiosk .* that web leaves free: it uses .*", "uses .* of its 600.0 kB/s: all .*"
    assert re.fullmatch(f"retail ({lends}|{fits})\\.", told), told
    assert page.locator("[data-testid=tenant-row] .members li").count() == 2
    show(page, address, "/client?user=kiosk&client_id=till")
    told = text_of(page, "tenant")
    assert told.endswith("kiosk shares retail's 600.0 kB/s; up to 600.0 kB/s while others are idle.")


def test_a_job_that_ends_turns_the_banner_and_one_that_comes_back_takes_it_away(
    page: Any, address: str, tables: LivedTables, running: ExitStack
) -> None:
    show(page, address, "/")
    until_live(page, tables)
    assert page.get_by_test_id("banner").is_hidden()
    running.close()
    try:
        page.wait_for_selector("#banner[data-state=down]:not([hidden])")
        assert "The job has ended" in text_of(page, "banner")
        assert re.fullmatch(r"Figures as of [0-9:]{8} UTC\.", text_of(page, "as-of"))
        assert page.locator("main[data-stale=true]").count() == 1
        assert violations(page) == []
    finally:
        running.enter_context(lock_of(tables))
    until_live(page, tables)
    page.wait_for_selector("#banner", state="hidden")
    page.wait_for_selector("main[data-stale=false]")


def test_a_dashboard_that_ends_is_told(browser: Any, tables: LivedTables) -> None:
    with new_page(browser, may_complain=True) as page:
        with dashboard(tables.root) as address:
            show(page, address, "/")
        page.wait_for_selector("#banner[data-state=lost]:not([hidden])")


def test_with_a_token_the_page_asks_for_it(browser: Any, tables: LivedTables) -> None:
    with (
        dashboard(tables.root, KQUOTA_DASHBOARD_TOKEN="secret") as address,  # noqa: S106 - of this test
        new_page(browser) as page,
    ):
        for view in ("", "client?user=alice&client_id=etl"):
            page.goto(address + view)
            page.get_by_test_id("needs-token").filter(has_text="This dashboard needs a token").wait_for()
        for _ in range(2):
            page.get_by_test_id("token").fill("wrong")
            page.keyboard.press("Enter")
            page.get_by_test_id("needs-token").filter(has_text="not the one of this dashboard").wait_for()
        assert page.get_by_test_id("needs-token").get_by_role("link").count() == 1
        fits_at_every_width(page, "the form for the token")
        page.get_by_test_id("token").fill("secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("main[data-ready=true]")
        page.goto("about:blank")


@pytest.mark.parametrize(
    ("view", "sentence", "link"),
    [
        ("/nowhere", "There is no view at /nowhere.", "Go to Now"),
        ("/quotas?standing=far", "Unknown standing 'far';", "Open Quotas without it"),
    ],
)
def test_the_unknown_is_a_sentence_with_a_link(browser: Any, address: str, view: str, sentence: str, link: str) -> None:
    with new_page(browser, may_complain=True) as page:
        page.goto(address.rstrip("/") + view)
        page.get_by_test_id("failed").filter(has_text=sentence).wait_for()
        assert violations(page) == []
        page.get_by_test_id("failed").get_by_role("link", name=link).click()
        page.wait_for_selector("main[data-ready=true]:not(:has([data-testid=failed]))")


def test_a_name_is_completed_and_a_client_without_usage_is_stated(page: Any, address: str) -> None:
    show(page, address, "/client")
    page.get_by_test_id("find-client").fill("tracker")
    wait_until(lambda: page.get_by_test_id("client-row").count() == 2, "the two clients with that name")
    assert page.locator("datalist option").evaluate_all("(all) => all.map((one) => one.value)") == [
        "web / tracker",
        "web / tracker-ios",
    ]
    page.get_by_test_id("find-client").fill("web / trackers")
    page.get_by_test_id("find-client").press("Enter")
    page.get_by_test_id("never-seen").get_by_role("link", name="web / tracker", exact=True).wait_for()


def test_quotas_are_chosen_by_how_near_they_are(page: Any, address: str) -> None:
    show(page, address, "/quotas")
    wait_until(lambda: page.get_by_test_id("quota-row").count() == 5, "all quotas")
    page.select_option("[data-testid=choose-standing]", "over")
    wait_until(lambda: page.get_by_test_id("quota-row").count() < 5, "those over their bounds; one is in shadow mode")
    assert page.url.endswith("/quotas?standing=over")


def test_a_quota_has_the_command_that_changes_it_and_it_is_copied(page: Any, address: str, tables: LivedTables) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    show(page, address, "/quotas?search=alice")
    change = page.get_by_test_id("commands")
    change.locator("summary").click()
    alter, what_if = change.get_by_test_id("command").all_inner_texts()
    assert alter.endswith("kquota quotas alter --user alice --client-id etl --add-config producer_byte_rate=150000")
    assert what_if.endswith("kquota what-if -f candidate.yaml --since 15m")
    fits_at_every_width(page, "the commands of a quota")
    change.get_by_test_id("copy").first.click()
    change.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == alter
    version = page.get_by_test_id("history").locator("li b").first.inner_text()
    tables.edit([quota("ml", "", consumer_byte_rate=40_000.0, mode="shadow")], "another row")
    page.get_by_test_id("history").locator(f"li b:text-is('v{int(version[1:]) + 1}')").wait_for()
    assert change.get_attribute("open") is not None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_accessible_and_fits_and_runs_no_name(browser: Any, address: str, theme: str) -> None:
    with new_page(browser, color_scheme=theme) as page:
        for view in VIEWS:
            show(page, address, view)
            fits_at_every_width(page, view)
            assert page.locator("img, main script").count() == 0


def fits_at_every_width(page: Any, view: str) -> None:
    """The narrowest comes last: there all that is accessible elsewhere is still there, and some parts scroll."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (view, width)
    assert violations(page) == [], view


def violations(page: Any) -> list[tuple[str, list[str]]]:
    """What is seriously wrong for somebody who cannot see or use the page as others do, with the first places."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe.Axe().axe_script)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        (one["id"], [node["html"] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


def test_the_page_is_small_and_loads_nothing_from_elsewhere(page: Any, address: str) -> None:
    answers: list[Any] = []
    page.on("requestfinished", lambda request: answers.append(request.response()))
    show(page, address, "/client?user=alice&client_id=etl")
    page.wait_for_selector("main[data-drawn='1']")
    sizes = {answer.url: len(answer.body()) for answer in answers if "/api/" not in answer.url}
    assert all(url.startswith(address) for url in sizes)
    assert 50_000 < sum(sizes.values()) <= 170_000
