"""What docs/teams.md shows is so: its sentences are those of the page, and its command brings one line into a chat."""

import json
import shutil
import subprocess
from threading import Thread

import pytest

from pipeline.clock import wall_ms
from pipeline.dashboard.links import About, link_text
from pipeline.dashboard.teams import Held, Use, standing_of
from pipeline.process import JobSigns
from pipeline.settings.model import Settings, TablesSettings
from pipeline.web import Listen
from tests.pages.blocks import ROOT, blocks_of
from tests.pipeline.alerts.receiving import receiving
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.waiting import PATIENCE_SECONDS

PAGE = (ROOT / "docs" / "teams.md").read_text(encoding="utf-8")
TOKEN = "0123456789abcdef" * 2
NOW_MS = 1_700_045_184_000


def test_the_page_has_the_beginning_of_every_sentence() -> None:
    held = Held("producer_byte_rate", 5e5, 1e5, NOW_MS - 20_000, NOW_MS + 36_000)
    used = {part: [Use("producer_byte_rate", part * 1e5, 1e5)] for part in (1.2, 0.9, 0.5)}
    sentences = [
        standing_of([], held, True, NOW_MS)[1],
        *(standing_of(uses, None, True, NOW_MS)[1].partition(":")[0] for uses in used.values()),
        standing_of([Use("consumer_byte_rate", 2e5, 1e5, "shadow")], None, True, NOW_MS)[1].partition(":")[0],
        standing_of([], None, True, NOW_MS)[1],
        standing_of([], None, False, NOW_MS)[1],
    ]
    shown = {
        row.split("|")[1].strip() for row in PAGE.splitlines() if row.startswith("| You") or row.startswith("| No ")
    }
    assert shown == set(sentences)


def test_the_command_brings_one_line_into_a_chat(shop: LivedTables, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("pipeline.dashboard.http", reason="the extra dashboard is not installed")
    for program in ("curl", "jq"):
        if shutil.which(program) is None:
            pytest.skip(f"plays the command of the page: no {program} on PATH")
    (command,) = (block.text for block in blocks_of(PAGE) if block.language == "sh")
    settings = Settings(tables=TablesSettings(root=shop.root))
    server = module.DashboardServer(settings, JobSigns(lambda: "7"), Listen("127.0.0.1", 0), TOKEN)
    thread = Thread(target=server.run)
    thread.start()
    try:
        with receiving() as inbox:
            link = link_text(server.address, TOKEN, About(None, "alice", "etl"), wall_ms() + 3_600_000)
            monkeypatch.setenv("QUOTA_LINK", link)
            monkeypatch.setenv("CHAT_WEBHOOK", inbox.url)
            done = subprocess.run(["/bin/sh", "-c", command], check=False, timeout=PATIENCE_SECONDS)
            assert done.returncode == 0
            (request,) = inbox.requests
    finally:
        server.stop()
        thread.join()
    text = json.loads(request.body)["text"]
    assert text.startswith("alice/etl: ")
    assert text.endswith("of the last 7 days.")
