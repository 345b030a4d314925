"""The dashboard's page in a real headless Chromium, beside a real broker and job: how soon it shows what is so.

First data after a load; each micro-batch after its commit; the banner after the job's process was killed (kill -9), and
after its first micro-batch when it has come back.

    python -m bench.page [--loads 10] [--seconds 30] [--kills 2]

Targets: first data 1 s, a micro-batch 2 s, the banner 5 s. It needs `chromium` on PATH.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from deltalake import DeltaTable
from playwright.sync_api import sync_playwright

from bench.machine import arguments
from bench.pages import line
from bench.stage import bound, dashboard, staged
from pipeline.tables.port import parse_commit_note

_TOKEN: Final = "bench"  # noqa: S105 - of this benchmark's own dashboard
_PATIENCE_MS: Final = 90_000
_TRIGGER_MS: Final = 500
_EVENTS_PER_SECOND: Final = 5_000
_CLIENTS: Final = 1_000
_WIDTHS: Final = (-46, 6, 8, 8, 8)
_WATCH: Final = """
window.seen = [];
sessionStorage.setItem('kquota-bench', '1');
new MutationObserver(() => {
  if (!window.readyAt && document.querySelector('main[data-ready=true]')) window.readyAt = performance.now();
  const told = /^micro-batch (\\d+),/.exec(document.querySelector('#pulse')?.title || '');
  if (told && window.seen.at(-1)?.[0] !== +told[1]) window.seen.push([+told[1], Date.now()]);
}).observe(document, { subtree: true, childList: true, attributes: true });
"""


def main() -> None:
    asked = arguments(__doc__, loads=10, seconds=30, kills=2)
    chromium = shutil.which("chromium") or sys.exit("chromium is not on PATH. Fix: apt-get install chromium")
    with ExitStack() as stack:
        stage = stack.enter_context(staged([bound("<default>", 1e9)]))
        stack.enter_context(stage.load(_EVENTS_PER_SECOND, _CLIENTS, 100))
        variables = {"KQUOTA_DASHBOARD_TOKEN": _TOKEN, "KQUOTA_RUN_DIR": str(stage.folder)}
        address, _ = stack.enter_context(dashboard(stage.root, variables=variables))
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        stack.callback(browser.close)
        page = browser.new_page()
        page.set_default_timeout(_PATIENCE_MS)
        page.add_init_script(_WATCH)
        with stage.job(_TRIGGER_MS) as running:
            _sign_in(page, address)
            page.wait_for_selector("#pulse[data-state=live]")
            figures = {"first data after a load": (_loads(page, address, asked.loads), 1_000)}
            figures["a micro-batch after its commit"] = (_updates(page, stage.root, asked.seconds), 2_000)
            kills = [_kill(page, address, running)]
        backs = []
        for number in range(asked.kills):
            before = _last_batch(stage.root)
            with stage.job(_TRIGGER_MS) as running:
                backs.append(_back(page, stage.root, before))
                if number + 1 < asked.kills:
                    kills.append(_kill(page, address, running))
        figures["the banner after kill -9 of the job"] = (kills, 5_000)
        figures["no banner after the first micro-batch again"] = (backs, 5_000)
    print(f"{_EVENTS_PER_SECOND} events a second of {_CLIENTS} clients, trigger {_TRIGGER_MS} ms")
    print(line(_WIDTHS, ["ms", "times", "median", "most", "target"]))
    for name, (times_ms, target_ms) in figures.items():
        print(line(_WIDTHS, [name, len(times_ms), statistics.median(times_ms), max(times_ms), target_ms]))


def _sign_in(page: Any, address: str) -> None:
    page.goto(address)
    page.get_by_test_id("token").fill(_TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-ready=true]")


def _loads(page: Any, address: str, times: int) -> list[float]:
    found = []
    for _ in range(times):
        page.goto(address)
        # Not by a function that is waited for: the page does not evaluate text.
        page.wait_for_selector("main[data-ready=true]")
        found.append(page.evaluate("window.readyAt"))
    return found


def _updates(page: Any, root: str, seconds: int) -> list[float]:
    """From the commit of each batch's row of `batches` until the page shows that batch, or a later one."""
    page.evaluate("window.seen = []")
    began_ms = time.time() * 1_000
    page.wait_for_timeout(seconds * 1_000)
    seen: Sequence[tuple[int, int]] = page.evaluate("window.seen")
    found = []
    for batch_id, at_ms in _commits(root, since_ms=began_ms):
        shown_ms = [shown for seen_id, shown in seen if seen_id >= batch_id]
        if shown_ms:
            found.append(min(shown_ms) - at_ms)
    return found


def _commits(root: str, since_ms: float) -> list[tuple[int, float]]:
    found = []
    for commit in DeltaTable(f"{root}/batches").history(500):
        note = parse_commit_note(commit.get("userMetadata"))
        if note is not None and commit["timestamp"] >= since_ms:
            versions = json.loads(note["versions"])
            found.append((max(map(int, versions.values())), float(commit["timestamp"])))
    return found


def _kill(page: Any, address: str, running: "subprocess.Popen[bytes]") -> float:
    page.goto(address)
    page.wait_for_selector("#pulse[data-state=live]")
    began = time.perf_counter()
    os.killpg(running.pid, signal.SIGKILL)
    page.wait_for_selector("#banner[data-state=down]:not([hidden])")
    return (time.perf_counter() - began) * 1_000


def _last_batch(root: str) -> int:
    return max(batch_id for batch_id, _ in _commits(root, since_ms=0))


def _back(page: Any, root: str, before: int) -> float:
    """From the commit of the first micro-batch after the one before a start until the page has no banner."""
    page.wait_for_selector("#banner", state="hidden")
    hidden_ms = time.time() * 1_000
    commits = [at_ms for batch_id, at_ms in _commits(root, since_ms=0) if batch_id > before]
    return max(hidden_ms - min(commits, default=hidden_ms), 0.0)


if __name__ == "__main__":
    main()
