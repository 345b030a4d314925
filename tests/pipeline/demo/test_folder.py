"""`kquota demo` works only in a folder of its own; the commands that it proposes work on its data as printed."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from bench.pages import write_part
from pipeline.cli.demo_console import DemoConsole, Means, lending_in
from pipeline.clock import wall_ms
from pipeline.command_line import shell_lines
from pipeline.demo.folder import (
    DEMO_CLIENTS,
    DEMO_QUOTAS,
    DEMO_TENANT,
    MARK,
    STOCK_CLIENTS,
    DemoFolder,
    at_the_end,
    while_it_runs,
)
from pipeline.demo.run import start_over
from pipeline.errors import Conflict, UsageError
from pipeline.job.metrics import RunGauges
from pipeline.job.status import job_lock, job_process
from pipeline.tables.throttles import recent_events
from quota.current_rates import COLUMNS
from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from quota.tenants import Tenant
from schemas.names import ClientKey
from tests.faults.hand_job import HandJob
from tests.pipeline.cli.running import kquota
from tests.pipeline.dashboard.shop import LivedTables, Sender
from tests.pipeline.demo.played import OFFENDER, played_demo, throttle_one
from tests.pipeline.throttle.factories import publications, violation

ROOT = Path(__file__).parents[3]
# The second demo, and then on standard output what it has loaded of what makes it slow.
SECOND_DEMO = """
import sys
from pipeline.cli.main import exit_code
sys.argv = ["kquota", *sys.argv[1:]]
code = exit_code()
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "kafka", "deltalake", "pyarrow", "numpy"}))
sys.exit(code)
"""


@pytest.fixture
def production(tmp_path: Path) -> Path:
    """What `kquota run` leaves in its run folder, which has the names of the demo's own data."""
    folder = tmp_path / ".kquota"
    for name in ("tables/usage", "checkpoint"):
        (folder / name).mkdir(parents=True)
    (folder / "kquota.lock").touch()
    (folder / "kquota.pid").write_text("1")
    return folder


@pytest.fixture
def demo(tmp_path: Path) -> DemoFolder:
    """A folder in which a demo has run."""
    folder = DemoFolder(tmp_path / "demo")
    with folder.claimed():
        folder.passwords()
    for path in (folder.broker / "data", folder.tables / "usage", folder.checkpoint):
        path.mkdir(parents=True)
    return folder


def content(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_starting_over_deletes_the_data_of_the_demo_and_nothing_else(demo: DemoFolder) -> None:
    for path in (demo.root / "notes.txt", demo.settings_file, demo.candidate, demo.sync_log):
        path.touch()
    for broker in demo.brokers(3):
        (broker / "data").mkdir(parents=True, exist_ok=True)
    assert demo.former_brokers() == 3
    start_over(demo, "kquota")
    assert {path.name for path in demo.root.iterdir()} == {MARK, "notes.txt", "demo.lock", "demo.pid"}
    assert demo.former_brokers() == 0
    with demo.claimed():
        pass


def test_starting_over_holds_the_lock_while_it_deletes(demo: DemoFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    rmtree, holders = shutil.rmtree, []

    def watched(path: Path) -> None:
        holders.append(job_process(demo.root, "kquota", str(demo.tables)))
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", watched)
    start_over(demo, "kquota")
    assert holders == [str(os.getpid())] * 3


def test_passwords_stay_and_users_of_a_later_release_get_theirs(demo: DemoFolder) -> None:
    before = demo.passwords()
    assert demo.passwords() == before
    user, *others = before
    demo.password_file.write_text(json.dumps({user: before[user]}), encoding="utf-8")
    after = demo.passwords()
    assert list(after) == [user, *others]
    assert after[user] == before[user]
    assert demo.passwords() == after


def test_starting_over_deletes_a_link_and_not_what_it_leads_to(demo: DemoFolder, production: Path) -> None:
    demo.checkpoint.rmdir()
    demo.checkpoint.symlink_to(production / "checkpoint")
    start_over(demo, "kquota")
    assert not demo.checkpoint.is_symlink()
    assert (production / "checkpoint").is_dir()


def test_a_second_demo_is_refused_before_anything_heavy_is_loaded(demo: DemoFolder) -> None:
    with demo.claimed():
        before = content(demo.root)
        command = [sys.executable, "-c", SECOND_DEMO, "demo", "--folder", str(demo.root), "--fresh"]
        second = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert content(demo.root) == before
    assert second.returncode == 4
    held = f"another demo runs in {demo.root} ({demo.root}/demo.lock is held by process {os.getpid()})"
    assert f"{held}. Fix: stop that one" in second.stderr
    assert f"KQUOTA_CONFIG={demo.settings_file} " in second.stderr
    assert second.stdout.split() == []


def test_the_folder_of_a_real_job_is_refused_and_stays_as_it_is(production: Path) -> None:
    before = content(production)
    answer = kquota("demo", "--fresh", "--folder", str(production))
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert f"{production} is not a demo's folder" in answer.stderr
    assert content(production) == before


def test_starting_over_is_refused_while_a_job_elsewhere_uses_the_tables(demo: DemoFolder, tmp_path: Path) -> None:
    with job_lock(tmp_path / "elsewhere", "other", str(demo.tables)), pytest.raises(Conflict):
        start_over(demo, "kquota")
    assert demo.tables.is_dir()


def test_a_demo_has_as_many_brokers_as_the_one_before(demo: DemoFolder, tmp_path: Path) -> None:
    assert [DemoFolder(tmp_path / "first").choose_brokers(wanted) for wanted in (None, 2)] == [1, 2]
    assert [demo.choose_brokers(wanted) for wanted in (None, 1)] == [1, 1]
    demo.brokers(2)[-1].mkdir()
    assert [demo.choose_brokers(wanted) for wanted in (None, 2)] == [2, 2]
    for wanted in (1, 3):
        with pytest.raises(UsageError, match=f"has 2 brokers; --brokers {wanted} cannot"):
            demo.choose_brokers(wanted)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[DemoFolder, HandJob]]:
    monkeypatch.chdir(tmp_path)
    with played_demo(tmp_path / "a demo") as played:
        yield played


def paste(command: str) -> str:
    """What a shell in this folder prints for a command that must end with 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the script beside this Python may be another checkout's
    shell = ["/bin/sh", "-c", command]
    answer = subprocess.run(shell, capture_output=True, text=True, check=False, env=environment)
    assert answer.returncode == 0, f"{command}\n{answer.stdout}{answer.stderr}"
    return answer.stdout


def test_a_candidate_that_its_user_has_changed_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with played_demo(tmp_path / "demo") as (folder, _job):
            assert folder.candidate.read_text().startswith(("# Quotas to try", "mine"))
            folder.candidate.write_text("mine")


def test_what_is_proposed_while_it_runs_tells_of_the_first_throttle(played: tuple[DemoFolder, HandJob]) -> None:
    _, job = played
    throttle_one(job)
    explained, effective, altered = map(paste, while_it_runs())
    assert ": alice/* is over producer_byte_rate" in explained
    assert "producer_byte_rate" in effective
    assert altered == "Completed updating config for user search.\n"


def test_the_commands_on_the_screen_run_in_any_shell_after_its_export(played: tuple[DemoFolder, HandJob]) -> None:
    throttle_one(played[1])
    export, *commands = shell_lines(while_it_runs("program"))
    assert export.startswith("export KQUOTA_CONFIG='a demo/kquota.toml'")
    assert [command.split()[0] for command in commands] == ["kquota"] * 3
    assert "Completed updating config" in paste(f"{export}; {'; '.join(commands)}")


@pytest.mark.parametrize("has_throttled", [True, False])
def test_what_is_proposed_at_the_end_works(has_throttled: bool, played: tuple[DemoFolder, HandJob]) -> None:
    folder, job = played
    if has_throttled:
        throttle_one(job)
    recent = recent_events(str(folder.tables), 1)
    decision_id = recent[0]["decision_id"][:8] if recent else None
    told = [paste(command) for command in at_the_end(decision_id, 3 if has_throttled else 0, folder.candidate)]
    if has_throttled:
        assert decision_id is not None
        explained, throttles, compared = told
        assert decision_id in explained
        assert f"{OFFENDER[0]}/*" in throttles
        assert "clients throttled" in compared


EXPORTER = "erp/exporter"


def console_with_records(root: Path, *names: str, watched: bool = False, at_ms: int | None = None) -> DemoConsole:
    console = DemoConsole(DemoFolder(root), "http://127.0.0.1:8788/", watched)
    for number, name in enumerate(names):
        news = publications(violation(ClientKey("", *name.split("/")), throttle_time_ms=60_000))
        console.listeners().announce(news.written(number, at_ms or wall_ms()), 3)
    return console


def test_of_a_client_that_does_not_listen_one_record_is_printed_all_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = console_with_records(tmp_path, "alice/etl", EXPORTER, EXPORTER, "alice/etl", EXPORTER)
    printed = capsys.readouterr()
    assert [line.split()[2] for line in printed.out.splitlines()] == ["alice/etl", EXPORTER, "alice/etl"]
    assert max(map(len, printed.out.splitlines())) <= 100
    assert printed.err.count(f"{EXPORTER} does not listen") == 1
    assert [printed.err.count(command) for command in while_it_runs()] == [1, 1, 1]
    console.summary()
    assert capsys.readouterr().out.split()[-3:] == ["5", "throttle", "records"]


def gauges_of(rows: list[dict[str, Any]], *tenants: Tenant) -> RunGauges:
    rates = Mock(rows=pa.Table.from_pylist(rows, COLUMNS))
    return RunGauges(Mock(), Mock(pin=lambda: Mock(tenants=tenants)), Mock(), rates)


def rate(user: str, client_id: str, observed: float, bound: float, **others: Any) -> dict[str, Any]:
    about = {"broker_id": "", "quota_type": "producer_byte_rate", "mode": "enforce", "level": 1}
    return about | {
        **{"user": user, "client_id": client_id, "sensor_user": user, "sensor_client_id": client_id},
        **{"observed": observed, "bound": bound, "share": observed / bound, **others},
    }


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 10)])
def test_the_screen_fits_the_terminal_and_says_who_is_held_by_whom(
    width: int, height: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = wall_ms()
    monkeypatch.setattr("pipeline.cli.demo_console.wall_ms", lambda: now_ms)
    console = console_with_records(tmp_path, *["alice/etl"] * 12, EXPORTER, watched=True, at_ms=now_ms)
    commands = ["export X=1", "kquota a", "kquota b", "kquota c"]
    assert "starting" in console.screen(width, height, "Ctrl-C ends it", commands).plain
    mobile = Tenant("mobile", ("mobile-*",), (), (120e3, None, None), (12e3, None, None), lend=True)
    lent = {"tenant": "mobile", "own_bound": 60e3, "clients": 1}
    gauges = gauges_of(
        [
            rate("alice", "etl", 199.9e3, 100e3),
            rate("erp", "exporter", 201e3, 200e3, broker_held_share=0.5),
            rate("mobile-ios", "app", 90e3, 120e3, **lent),
            rate("mobile-android", "app", 6e3, 120e3, **lent),
            rate("billing", "invoices", 1e3, 60e3, mode="shadow"),
        ],
        mobile,
    )
    console.listeners().began(gauges)
    lines = console.screen(width, height, "Ctrl-C ends it", commands).plain.split("\n")
    cells = {line.split()[0]: re.split(r" {2,}", line)[1:] for line in lines if re.match(r"\S+/\w+ {2}", line)}
    assert len(cells) == 12
    held_by = [cells[name][-1] for name in ("alice/etl", EXPORTER, "search/indexer")]
    assert held_by == ["kquota for 60 s", "broker 30/60 s", "–"]
    assert [line for line in lines if "http://127.0.0.1:8788/" in line] == lines[:1]
    assert lines[-4:] == commands
    if width >= 80:
        assert cells["mobile-ios/app"] == ["90.0 kB/s", "60.0 kB/s", "1.50", "–", "– (mobile lends)"]
        assert " ".join(lines).count("mobile lends mobile-ios/app 30.0 kB/s that mobile-android/app") == 1
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    assert sum(" throttle alice/etl " in line for line in lines) == {24: 2, 40: 7, 10: 0}[height]


def test_the_page_shows_the_screen_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With RENEW_PAGES=1 it is written there."""
    page, marks, now = ROOT / "docs" / "try.md", ("<!-- screen -->", "<!-- /screen -->"), [0.0]
    at_ms = wall_ms()
    monkeypatch.setattr("pipeline.cli.demo_console.time", Mock(monotonic=lambda: now[0]))
    monkeypatch.setattr("pipeline.cli.demo_console.wall_ms", lambda: at_ms + 58_500)
    monkeypatch.setattr(f"{__name__}.wall_ms", lambda: at_ms)
    console = console_with_records(tmp_path, "alice/etl", watched=True)
    console.listeners().report(Mock(facts=Mock(good_count=1_783, dead_count=0)))
    lends = Tenant("mobile", ("mobile-*",), (), (120e3, None, None), (12e3, None, None), lend=True)
    gauges, lent = gauges_of([], lends), {"tenant": "mobile", "own_bound": 60e3, "sensor_client_id": "", "clients": 1}
    console.listeners().began(gauges)
    first, second = (113e3, 202e3, 85.8e3, 42e3), (147.2e3, 188.1e3, 90e3, 45.7e3)
    for now[0], (alice, erp, ios, billing) in ((0.0, first), (72.0, second)):
        members = [rate("mobile-ios", "app", ios, 90e3, **lent), rate("mobile-android", "app", 6e3, 90e3, **lent)]
        others = [rate("alice", "etl", alice, 100e3), rate("erp", "exporter", erp, 200e3, broker_held_share=0.317)]
        rows = [*others, *members, rate("billing", "invoices", billing, 60e3)]
        gauges.rates.rows = pa.Table.from_pylist(rows, COLUMNS)
        screen = console.screen(160, 40, "Ctrl-C ends it", []).plain.splitlines()
    wanted = ("the page:", "client ", "alice/etl", EXPORTER, "mobile-ios/app", "billing/", "mean/quota", "mobile lends")
    shown = "\n".join(line.rstrip() for line in screen if line.startswith(wanted))
    if os.environ.get("RENEW_PAGES") == "1":
        write_part(page, *marks, f"```text\n{shown}\n```")
    assert f"{marks[0]}\n\n```text\n{shown}\n```\n\n{marks[1]}" in page.read_text("utf-8")


def test_the_mean_begins_with_the_first_full_window_and_counts_silence_as_nothing() -> None:
    means = Means()
    for now, values in ((0, {"a": 9.0}), (5, {"a": 9.0}), (11, {"a": 2.0}), (13, {"b": 4.0})):
        means.add(values, now)
        assert means.of("c") == (None if now < 13 else 0.0)
    means.add({}, 15)
    assert (means.of("a"), means.of("b")) == (1.0, 2.0)


def test_that_a_tenant_lends_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = {"tenant": "mobile", "quota_type": "producer_byte_rate", "level": 3, "sensor_client_id": "", "clients": 1}
    about |= {"broker_id": "", "mode": "enforce", "bound": 90e3}
    members = [
        {**about, "sensor_user": "mobile-ios", "observed": 93e3, "own_bound": 60e3},
        {**about, "sensor_user": "mobile-android", "observed": 6e3, "own_bound": 60e3},
        {**about, "sensor_user": "mobile-web", "observed": 500e3, "own_bound": 60e3, "mode": "shadow"},
        {**about, "tenant": None, "sensor_user": "alice", "observed": 500e3, "own_bound": None},
    ]
    tenant = Tenant("mobile", ("mobile-*",), (), (120e3, None, None), (12e3, None, None), lend=True)
    is_over = [{**about, "tenant": "strict", "sensor_user": "bob", "observed": 90e3, "own_bound": 10e3}]
    strict = Tenant("strict", ("bob",), (), (120e3, None, None), (12e3, None, None))
    console, gauges = console_with_records(tmp_path), gauges_of([], tenant, strict)
    console.listeners().began(gauges)
    for rows in ([], is_over, members, members):
        gauges.rates.rows = pa.Table.from_pylist(rows, COLUMNS)
        console.listeners().report(Mock(facts=Mock(good_count=1, dead_count=0)))
    (line,) = capsys.readouterr().out.splitlines()
    told = "mobile lends mobile-ios 30.0 kB/s that mobile-android leaves free: it uses 1.5 × its own 60.0 kB/s"
    assert line == told


CLIENTS = (*DEMO_CLIENTS, *STOCK_CLIENTS)
_MEASURE = {"produce": "produced_bytes", "consume": "fetched_bytes"}


def test_the_tenant_lends_in_the_first_minute_and_throttles_nobody(tmp_path: Path) -> None:
    senders = [
        Sender(one.user, one.client_id, lambda _, one=one: {_MEASURE[one.role]: one.bytes_per_second})  # type: ignore[misc]
        for one in CLIENTS
    ]
    tables = LivedTables(tmp_path, DEMO_QUOTAS, senders, 1_700_000_000_000, at_once=True, tenants=[DEMO_TENANT])
    told = set[str | None]()
    for _ in range(6):
        tables.live(10)
        told.add(lending_in(tables.job.gauges.rates.rows, tables.job.gauges.quotas.pin().tenants))
    lent = "mobile lends mobile-ios 30.0 kB/s that mobile-android leaves free: it uses 1.5 × its own 60.0 kB/s"
    assert lent in told
    held = {row["user"] for row in recent_events(tables.root, 1_000)}
    assert held == {"alice", "search", "erp", "archive"}


def test_each_client_resolves_to_the_quota_it_is_said_to_have() -> None:
    engine = QuotaEngine()
    engine.load_quotas(QuotaSnapshot.from_rows([dict(row) for row in DEMO_QUOTAS], version=1))
    names = {"user": [one.user for one in CLIENTS], "client_id": [one.client_id for one in CLIENTS]}
    levels = engine.resolve(pa.table({"broker_id": [""] * len(CLIENTS), **names})).to_pylist()
    resolved = {(row["user"], row["client_id"], row["quota_type"]): row for row in levels}
    rate_of = {"produce": "producer_byte_rate", "consume": "consumer_byte_rate"}
    rows = [resolved[one.user, one.client_id, rate_of[one.role]] for one in CLIENTS]
    assert [row["bound"] for row in rows] == [one.quota_bytes_per_second for one in CLIENTS]
    assert {row["level"] for row in rows} == {1, 2, 3, 4, 6, 7}
