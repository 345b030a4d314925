"""Edits from the page: what they plan and what they write is what the command line plans and writes."""

import asyncio
import http.client
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pipeline.clock import wall_ms
from pipeline.command_line import TABLES_ROOT, carry
from pipeline.dashboard.api import Query
from pipeline.dashboard.editing import Editing
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.views import quotas_document
from pipeline.errors import Conflict, Refused
from pipeline.process import JobSigns
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.quotas.table import QuotaTable
from pipeline.web import Listen
from tests.pipeline.cli.running import kquota
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS, lived_shop, quota
from tests.waiting import PATIENCE_SECONDS, wait_until

ALICE: dict[str, Any] = {"user": "alice", "client_id": "etl"}


@pytest.fixture(scope="module")
def until_now(tmp_path_factory: pytest.TempPathFactory) -> LivedTables:
    """Tables that were used until now; only looked at."""
    return lived_shop(tmp_path_factory.mktemp("until_now"), wall_ms() - 40_000, seconds=40)


def settings_of(lived: LivedTables) -> Settings:
    return Settings(tables=TablesSettings(root=lived.root))


def changed(**values: Any) -> dict[str, Any]:
    return {**ALICE, "values": values}


def test_a_plan_is_the_dry_run_of_the_command_line(shop: LivedTables) -> None:
    found = Editing(settings_of(shop), may_write=False).plan(changed(producer_byte_rate="60B/s"))
    dry = ("quotas", "alter", "--user", "alice", "--client-id", "etl", "--dry-run", "--add-config")
    printed = json.loads(kquota(*dry, "producer_byte_rate=60B/s", "-o", "json", "--tables", shop.root).stdout)
    assert found["changes"] == printed["changes"]
    assert found["clients"] == printed["clients"]
    assert found["version"] == printed["version"]
    assert found["warnings"] == printed["warnings"] != []
    assert [(one["old_bound"], one["new_bound"]) for one in found["clients"]] == [(150_000.0, 60.0)]


def test_an_edit_is_one_commit_with_its_reason_and_changes_nothing_else(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    before = QuotaTable(tables.root).read()
    body = {**changed(producer_byte_rate="60kB/s", owner="etl team"), "if_version": before.version, "reason": " peak "}
    written = Editing(settings_of(tables), may_write=True).write(body)
    after = QuotaTable(tables.root).read()
    assert written["version"] == after.version == before.version + 1
    assert [row for row in after.rows if row["user"] != "alice"] == [
        row for row in before.rows if row["user"] != "alice"
    ]
    assert [(row["producer_byte_rate"], row["owner"], row["note"]) for row in after.rows if row["user"] == "alice"] == [
        (60_000.0, "etl team", "nightly loads")
    ]
    audit = QuotaTable(tables.root).history(1)[0].audit
    assert audit is not None
    assert audit.reason == "peak"
    with pytest.raises(Conflict):
        Editing(settings_of(tables), may_write=True).write(body)


@pytest.mark.parametrize("body", [changed(producer_byte_rate="1MB/s"), {**changed(mode="shadow"), "if_version": 5}])
def test_without_a_reason_nothing_is_written(shop: LivedTables, body: dict[str, Any]) -> None:
    version = QuotaTable(shop.root).read().version
    with pytest.raises(Refused, match="an edit needs a reason"):
        Editing(settings_of(shop), may_write=True).write(body)
    assert QuotaTable(shop.root).read().version == version


def test_without_the_version_that_was_looked_at_nothing_is_written(shop: LivedTables) -> None:
    with pytest.raises(Refused, match="an edit needs 'if_version'"):
        Editing(settings_of(shop), may_write=True).write({**changed(mode="shadow"), "reason": "try"})


def test_rows_are_told_with_their_own_version_also_right_after_an_edit(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    reader = TablesReader(tables.root, JobSigns(lambda: "7"))
    state = reader.look(tables.now_ms)
    tables.edit([quota("web", "", producer_byte_rate=390_000.0)], "less")
    found = quotas_document(reader, state, Query())
    (web,) = (row for row in found["rows"] if row["user"] == "web")
    assert web["bounds"]["producer_byte_rate"]["bound"] == 390_000.0
    assert found["version"] == QuotaTable(tables.root).read().version


def test_a_dashboard_that_only_reads_gives_the_command_that_makes_the_edit(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    before = QuotaTable(tables.root).read().version
    editing = Editing(settings_of(tables), may_write=False)
    carry(TABLES_ROOT, str(tmp_path / "of another cluster"))
    with pytest.raises(Conflict, match="dashboard is read-only") as refused:
        editing.write({**changed(mode="shadow"), "reason": "it's a try", "if_version": 5})
    assert QuotaTable(tables.root).read().version == before
    _, _, command = refused.value.fix.partition(", or make the edit by ")
    subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True)
    assert editing.plan(changed(mode="shadow"))["changes"] == []
    with pytest.raises(Conflict) as refused:
        editing.write(changed())
    assert refused.value.fix == "start it with --allow-edits"


def test_what_is_done_of_a_what_if_is_heard_before_its_answer(shop: LivedTables, until_now: LivedTables) -> None:
    with dashboard_of(until_now) as server:
        answer = post_what_if(server.address, "text/event-stream").getresponse()
        assert answer.status == 200
        names, shares = [], []
        for event in answer.read().decode().strip().split("\n\n"):
            name, data = event.split("\ndata: ")
            names.append(name)
            shares += [json.loads(data)["percent"]] if name == "event: progress" else []
        assert names == ["event: progress"] * len(shares) + ["event: answer"]
        assert shares == sorted(shares)
        assert (len(shares) >= 3, shares[-1]) == (True, 100)
        assert json.loads(data)["totals"]["throttle_seconds_change"] > 0
    with dashboard_of(shop) as server:
        told = post_what_if(server.address, "text/event-stream").getresponse().read().decode()
        assert told.strip().rpartition("\n\n")[2].startswith('event: error\ndata: {"error":"what-if failed: ')


@pytest.mark.parametrize(
    ("body", "mistake"),
    [
        (changed(producer_byte_rate="1mb"), "unknown unit"),
        (changed(producer_byte_rat="1MB"), "unknown value 'producer_byte_rat'; values are producer_byte_rate"),
        (changed(owner=7), "'owner' is not a text: 7"),
        ({**ALICE, "values": []}, "'values' is not valid: Input should be a valid dictionary"),
        ({**ALICE, "user": 7}, "'user' is not valid: Input should be a valid string"),
        ({**ALICE, "if_version": "5"}, "'if_version' is not valid: Input should be a valid integer"),
        ({**ALICE, "force": True}, "unknown field 'force'; fields are user"),
    ],
)
def test_a_body_that_is_no_edit_is_refused(shop: LivedTables, body: dict[str, Any], mistake: str) -> None:
    with pytest.raises(Refused) as refused:
        Editing(settings_of(shop), may_write=False).plan(body)
    assert mistake in refused.value.message


def test_an_edit_that_leaves_an_invalid_table_is_refused(shop: LivedTables) -> None:
    with pytest.raises(Refused):
        Editing(settings_of(shop), may_write=False).plan({"user": "", "client_id": "", "values": {"mode": "exempt"}})


def test_a_candidate_is_tried_on_recorded_usage(until_now: LivedTables) -> None:
    found = asyncio.run(Editing(settings_of(until_now), may_write=False).what_if(changed(producer_byte_rate="50kB/s")))
    assert found["totals"]["throttle_seconds_change"] > 0
    assert found["clients"][0]["user"] == "alice"
    assert found["about"]["baseline"] == "with today's quotas"
    assert found["command"].endswith(" quotas alter --user alice --client-id etl --add-config producer_byte_rate=50000")


def test_an_edit_can_be_copied_as_the_command_that_makes_it(tmp_path: Path) -> None:
    tables = lived_shop(tmp_path, wall_ms() - 10_000, seconds=4)
    editing = Editing(settings_of(tables), may_write=False)
    body = {**changed(producer_byte_rate="60kB/s", mode="shadow", note="a, b=c"), "reason": "it's less"}
    planned = editing.plan(body)
    command = ["/bin/sh", "-c", f"{planned['command']} --tables {tables.root}"]
    subprocess.run(command, check=True, capture_output=True)
    (row,) = (row for row in QuotaTable(tables.root).read().rows if (row["user"], row["client_id"]) == ("alice", "etl"))
    assert (row["producer_byte_rate"], row["mode"], row["note"]) == (60_000.0, "shadow", "a, b=c")
    assert editing.plan(body)["changes"] == []


class Replays:
    """Stands in for the process of a replay: it begins, has done 40 %, and does not end by itself."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun = folder / "begun"
        program = folder / "replay.sh"
        said = "echo 'replaying usage: 40 %' >&2"
        program.write_text(f"#!/bin/sh\necho $$ >>{self._begun}\n{said}\nexec sleep 1000\n")
        program.chmod(0o755)
        monkeypatch.setattr("pipeline.dashboard.editing.sys.executable", str(program))

    def begun(self) -> list[int]:
        return [int(line) for line in self._begun.read_text().split()] if self._begun.exists() else []

    def wait_for_one(self) -> int:
        wait_until(lambda: bool(self.begun()), "a replay to begin")
        return self.begun()[0]


@contextmanager
def dashboard_of(shop: LivedTables, process: str | None = "7") -> Iterator[Any]:
    """A running dashboard, without a right to edit."""
    module = pytest.importorskip("pipeline.dashboard.http", reason="the extra dashboard is not installed")
    settings = Settings(tables=TablesSettings(root=shop.root))
    server = module.DashboardServer(settings, JobSigns(lambda: process), Listen("127.0.0.1", 0), None)
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server._clusters.first.feed.state is not None, "the first look at the tables")
        yield server
    finally:
        server.stop()
        thread.join()


def post_what_if(address: str, accept: str = "application/json") -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=PATIENCE_SECONDS)
    body = json.dumps(changed(producer_byte_rate="50kB/s"))
    headers = {"Content-Type": "application/json", "Accept": accept}
    connection.request("POST", "/api/v1/quotas/what-if", body, headers)
    return connection


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_one_what_if_runs_at_a_time_and_everything_else_is_answered(
    shop: LivedTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = Replays(tmp_path, monkeypatch)
    with dashboard_of(shop) as server:
        first = post_what_if(server.address)
        pid = replays.wait_for_one()
        for _ in range(4):
            refused = post_what_if(server.address).getresponse()
            assert refused.status == 409
            assert json.load(refused)["error"] == "another what-if is running; only one can run at a time"
        for path in ("", "metrics", "healthz", "static/edit.js", "api/v1/quotas"):
            with urllib.request.urlopen(server.address + path, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
                assert answer.status == 200
        first.close()
        wait_until(lambda: not is_alive(pid), "the replay to end, as its client has gone")
        another = post_what_if(server.address)
        wait_until(lambda: len(replays.begun()) == 2, "the next replay to begin")
        another.close()


def test_a_what_if_ends_with_the_dashboard(shop: LivedTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays = Replays(tmp_path, monkeypatch)
    with dashboard_of(shop) as server:
        waiting = post_what_if(server.address)
        pid = replays.wait_for_one()
    assert not is_alive(pid)
    waiting.close()


def test_writing_without_a_token_is_refused_at_the_start(tmp_path: Path) -> None:
    server = pytest.importorskip("pipeline.dashboard.http", reason="the extra dashboard is not installed")
    answer = kquota("dashboard", "--allow-edits", "--port", "0", "--tables", str(tmp_path))
    assert (answer.exit_code, answer.stderr.partition(",")[0]) == (2, "kquota: --allow-edits needs a token")
    assert server.TOKEN_VARIABLE in answer.stderr
