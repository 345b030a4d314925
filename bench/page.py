"""The dashboard's page in a real headless Chromium, beside a real broker and job: how soon it shows what is so.

First data after a load; each micro-batch after its commit; the banner after the job's process was killed (kill -9), and
after its first micro-batch when it has come back; the release on the topic after a quota was edited in the page.

    python -m bench.page [--loads 10] [--seconds 30] [--kills 2] [--edits 5]

Targets: first data 1.5 s, a micro-batch 2 s, the banner 5 s. It needs `chromium` on PATH.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from kafka import KafkaProducer
from playwright.sync_api import sync_playwright

from bench.machine import machine_line
from bench.stage import child, dashboard, job, throttle_reader, wait_for
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.append_guard import parse_commit_note
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import create_tables, open_quota_table
from pipeline.tables.quotas.edit import QuotaChange
from schemas.names import USAGE_TOPIC

_TOKEN: Final = "bench"  # noqa: S105 - of this benchmark's own dashboard
_PATIENCE_MS: Final = 90_000
_TRIGGER_MS: Final = 500
_EVENTS_PER_SECOND: Final = 5_000
_CLIENTS: Final = 1_000
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
    """Run all of it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("loads", 10), ("seconds", 30), ("kills", 2), ("edits", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    print(machine_line())
    chromium = shutil.which("chromium") or sys.exit("'chromium' must be on PATH: apt-get install chromium")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        _prepare(folder, broker.bootstrap_servers, asked.edits)
        load = (broker.bootstrap_servers, str(_EVENTS_PER_SECOND), str(_CLIENTS), "100")
        stack.enter_context(child([sys.executable, "-m", "bench.load", *load]))
        environment = {"KQUOTA_DASHBOARD_TOKEN": _TOKEN, "KQUOTA_RUN_DIR": str(folder)}
        shown = dashboard(str(folder / "tables"), "--allow-edits", environment=environment)
        address, _ = stack.enter_context(shown)
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        stack.callback(browser.close)
        page = browser.new_page()
        page.set_default_timeout(_PATIENCE_MS)
        page.add_init_script(_WATCH)
        with job(folder, broker.bootstrap_servers, _TRIGGER_MS, lambda _: None) as running:
            _sign_in(page, address)
            page.wait_for_selector("#pulse[data-state=live]")
            figures = {"first data after a load": (_loads(page, address, asked.loads), 1_500)}
            figures["a micro-batch after its commit"] = (_updates(page, folder, asked.seconds), 2_000)
            edits = [_edit(page, address, broker.bootstrap_servers, number) for number in range(asked.edits)]
            figures["a release after an edit in the page"] = (edits, _TRIGGER_MS + 150)
            kills = [_kill(page, address, running)]
        backs = []
        for number in range(asked.kills):
            before = _last_batch(folder)
            with job(folder, broker.bootstrap_servers, _TRIGGER_MS, lambda _: None) as running:
                backs.append(_back(page, folder, before))
                if number + 1 < asked.kills:
                    kills.append(_kill(page, address, running))
        figures["the banner after kill -9 of the job"] = (kills, 5_000)
        figures["no banner after the first micro-batch again"] = (backs, 5_000)
    print(f"{_EVENTS_PER_SECOND} events a second of {_CLIENTS} clients, trigger {_TRIGGER_MS} ms")
    print(f"{'ms':<46}{'times':>6}{'median':>8}{'most':>8}{'target':>8}")
    for name, (times_ms, target_ms) in figures.items():
        row = (len(times_ms), statistics.median(times_ms), max(times_ms), target_ms)
        print(f"{name:<46}{row[0]:>6}" + "".join(f"{figure:>8.0f}" for figure in row[1:]))


def _prepare(folder: Path, bootstrap_servers: str, edits: int) -> None:
    settings = Settings(tables=TablesSettings(root=str(folder / "tables")))
    with ClusterAccess(bootstrap_servers).admin() as admin:
        create_topics(admin, wanted_topics(settings))
    create_tables(settings.tables)
    rows = [QuotaChange(f"edit-{number}", "", {"producer_byte_rate": 1_000.0}) for number in range(edits)]
    open_quota_table(settings.tables).alter(
        [*rows, QuotaChange("<default>", "", {"producer_byte_rate": 1e9})], local_audit("bench")
    )


def _sign_in(page: Any, address: str) -> None:
    page.goto(address)
    page.get_by_test_id("token").fill(_TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-ready=true]")


def _loads(page: Any, address: str, times: int) -> list[float]:
    found = []
    for _ in range(times):
        page.goto(address)
        # Not by a function that is waited for: the page lets nobody evaluate text.
        page.wait_for_selector("main[data-ready=true]")
        found.append(page.evaluate("window.readyAt"))
    return found


def _updates(page: Any, folder: Path, seconds: int) -> list[float]:
    """From the commit of each batch's row of `batches` until the page shows that batch, or a later one."""
    page.evaluate("window.seen = []")
    began_ms = time.time() * 1_000
    page.wait_for_timeout(seconds * 1_000)
    seen: Sequence[tuple[int, int]] = page.evaluate("window.seen")
    found = []
    for batch_id, at_ms in _commits(folder, since_ms=began_ms):
        shown_ms = [shown for seen_id, shown in seen if seen_id >= batch_id]
        if shown_ms:
            found.append(min(shown_ms) - at_ms)
    return found


def _commits(folder: Path, since_ms: float) -> list[tuple[int, float]]:
    """(batch id, instant of the commit), the newest first."""
    found = []
    for commit in DeltaTable(folder / "tables" / "batches").history(500):
        note = parse_commit_note(commit.get("userMetadata"))
        if note is not None and commit["timestamp"] >= since_ms:
            versions = json.loads(note["versions"])
            found.append((max(map(int, versions.values())), float(commit["timestamp"])))
    return found


def _edit(page: Any, address: str, bootstrap_servers: str, number: int) -> float:
    """Throttle a user, raise its bound in the page, wait for its release. Returns ms from the press of the button."""
    user = f"edit-{number}"
    consumer = throttle_reader(bootstrap_servers)
    producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
    event = {"event_time_ms": time.time_ns() // 1_000_000, "user": user, "client_id": "e", "produced_bytes": 10**6}
    producer.send(USAGE_TOPIC, json.dumps(event).encode())
    producer.close()
    wait_for(consumer, user, "throttle")
    page.goto(f"{address}quotas?search={user}")
    page.get_by_test_id("edit-row").first.click()
    page.get_by_test_id("field-producer_byte_rate").fill("1GB/s")
    page.get_by_test_id("field-reason").fill("for the benchmark")
    page.get_by_test_id("edit-plan").click()
    page.wait_for_selector("[data-testid=edit-write]:not([disabled])")
    began = time.perf_counter()
    page.get_by_test_id("edit-write").click()
    wait_for(consumer, user, "release")
    latency_ms = (time.perf_counter() - began) * 1_000
    consumer.close()
    return latency_ms


def _kill(page: Any, address: str, running: "subprocess.Popen[bytes]") -> float:
    page.goto(address)
    page.wait_for_selector("#pulse[data-state=live]")
    began = time.perf_counter()
    os.killpg(running.pid, signal.SIGKILL)
    page.wait_for_selector("#banner[data-state=down]:not([hidden])")
    return (time.perf_counter() - began) * 1_000


def _last_batch(folder: Path) -> int:
    return max(batch_id for batch_id, _ in _commits(folder, since_ms=0))


def _back(page: Any, folder: Path, before: int) -> float:
    """From the commit of the first micro-batch after the one before a start until the page has no banner."""
    page.wait_for_selector("#banner", state="hidden")
    hidden_ms = time.time() * 1_000
    commits = [at_ms for batch_id, at_ms in _commits(folder, since_ms=0) if batch_id > before]
    return max(hidden_ms - min(commits, default=hidden_ms), 0.0)


if __name__ == "__main__":
    main()
