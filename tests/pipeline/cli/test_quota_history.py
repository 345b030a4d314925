"""`kquota quotas history|diff|at|rollback|effective`, `describe -o wide`: earlier versions, and what holds now."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.upkeep import clean, compact
from schemas.arrow import arrow_schema
from schemas.rows import QuotaRow
from tests.pipeline.cli.running import Answer, kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.quotas.test_source import GOOD, write_past_us
from tests.quota.factories import usage_row


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Four edits: alice 1000, alice 2000 and bob, bob gone, alice shadow."""
    folder = new_tables(tmp_path / "tables")

    def edit(verb: str, *arguments: str) -> None:
        assert kquota("quotas", verb, *arguments, "--tables", folder).exit_code == 0

    edit("alter", "--user", "alice", "--add-config", "producer_byte_rate=1000", "--reason", "first")
    edit("alter", "--user", "alice", "--add-config", "producer_byte_rate=2000", "--reason", "second")
    edit("alter", "--user", "bob", "--add-config", "request_percentage=5")
    edit("delete", "--user", "bob", "--reason", "left")
    return folder


def history(root: str, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        kquota("quotas", "history", *arguments, "-o", "json", "--tables", root).stdout
    )
    return rows


def described(root: str, *arguments: str) -> list[str]:
    return kquota("quotas", *(arguments or ("describe",)), "--tables", root).stdout.splitlines()


ALICE_1000 = "Quota configs for user-principal 'alice' are producer_byte_rate=1000.0"
ALICE_2000 = "Quota configs for user-principal 'alice' are producer_byte_rate=2000.0"
BOB = "Quota configs for user-principal 'bob' are request_percentage=5.0"


def test_at_shows_the_quotas_of_a_time(root: str) -> None:
    commits = {row["reason"]: row["committed_at"] for row in history(root, "-n", "4")}
    assert described(root, "at", commits["first"]) == [ALICE_1000]
    assert described(root, "at", commits[""]) == [ALICE_2000, BOB]
    assert described(root, "at", commits[""], "--user", "bob") == [BOB]
    assert described(root, "at", "2999-01-01") == [ALICE_2000]
    too_early = kquota("quotas", "at", "-52w", "--tables", root)
    assert (too_early.exit_code, too_early.stdout) == (3, "")
    assert kquota("quotas", "at", "yesterday", "--tables", root).exit_code == 2


def test_a_rollback_is_a_new_version_that_says_so(root: str) -> None:
    with_bob = history(root, "-n", "2")[1]["version"]
    assert kquota("quotas", "rollback", str(with_bob), "--dry-run", "--tables", root).exit_code == 0
    assert described(root) == [ALICE_2000]
    kquota("quotas", "rollback", str(with_bob), "--reason", "he is back", "--tables", root)
    assert described(root) == [ALICE_2000, BOB]
    newest, before = history(root, "-n", "2")
    assert newest["reason"] == f"rollback to v{with_bob}: he is back"
    assert newest["version"] == before["version"] + 1
    future = kquota("quotas", "rollback", "99", "--tables", root)
    assert future.exit_code == 3
    listed = future.stderr.partition("name one of these: ")[2]
    ran = subprocess.run(["/bin/sh", "-c", listed], capture_output=True, text=True, check=True)
    assert f"\n{newest['version']}  " in ran.stdout, "the fix runs as printed"


def test_a_rollback_restores_rows_that_only_sql_could_write(root: str) -> None:
    row = {"user": "dora", "client_id": "", "producer_byte_rate": 1.5, "mode": "enforce"}
    write_deltalake(f"{root}/quotas", pa.Table.from_pylist([row], schema=arrow_schema(QuotaRow)), mode="append")
    version = history(root, "-n", "1")[0]["version"]
    assert kquota("quotas", "delete", "--user", "dora", "--tables", root).exit_code == 0
    assert kquota("quotas", "rollback", str(version), "--tables", root).exit_code == 0
    assert described(root, "describe", "--user", "dora") == [
        "Quota configs for user-principal 'dora' are producer_byte_rate=1.5"
    ]


def test_history_outlives_compaction_vacuum_and_clean_up(root: str) -> None:
    before = history(root, "-n", "100")
    compact(f"{root}/quotas", many_files=0)
    assert clean(f"{root}/quotas") == 0, "every file is needed for 400 days"
    with pytest.raises(Exception, match=r"(?i)retention"):
        DeltaTable(f"{root}/quotas").vacuum(retention_hours=1, dry_run=False)
    after = [row for row in history(root, "-n", "100") if row["operation"] != "OPTIMIZE"]
    assert after == before
    first = next(row for row in after if row["reason"] == "first")
    assert described(root, "at", first["committed_at"]) == [ALICE_1000]


def test_a_refused_version_is_not_shown_as_in_force(root: str) -> None:
    invalid = write_past_us(QuotaTable(root), {**GOOD, "user": "zoe", "producer_byte_rate": 0.0})
    for command in (
        ("quotas", "describe"),
        ("quotas", "describe", "-o", "json"),
        ("quotas", "at", "0s"),
        ("quotas", "export"),
        ("mode",),
    ):
        answer = kquota(*command, "--tables", root)
        assert answer.exit_code == 0
        assert "zoe" not in answer.stdout
        assert f"it is refused, and v{invalid - 1} is in force" in answer.stderr
        assert (f"kquota quotas rollback {invalid - 1}" in answer.stderr) is ("at" not in command)
    assert "zoe" in kquota("quotas", "export", "--version", str(invalid), "--tables", root).stdout


def test_history_and_diff_tell_who_why_and_old_to_new(root: str) -> None:
    left, bob, second, first, *_creation = history(root)
    assert [row["reason"] for row in (left, bob, second, first)] == ["left", "", "second", "first"]
    assert all(second[name] for name in ("actor", "host", "tool_version"))
    (change,) = second["changes"]
    assert (change["action"], change["old"], change["new"]) == ("alter", 1000.0, 2000.0)
    (change,) = left["changes"]
    assert (change["action"], change["column"], change["new"]) == ("remove", "request_percentage", None)
    backwards = kquota("quotas", "diff", str(left["version"]), str(first["version"]), "-o", "json", "--tables", root)
    (change,) = json.loads(backwards.stdout)
    assert (change["old"], change["new"]) == (2000.0, 1000.0)
    assert kquota("quotas", "diff", "0", "99", "--tables", root).exit_code == 3


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    """Of 10 kB/s: alice uses 5 kB/s, bob (in shadow) 20 kB/s, and eve, who has the default's, 0.1 kB/s."""
    quotas = (
        QuotaChange("alice", "", {"producer_byte_rate": 10_000.0}),
        QuotaChange("bob", "", {"producer_byte_rate": 10_000.0, "mode": "shadow"}),
        QuotaChange("<default>", "", {"producer_byte_rate": 10_000.0}),
        QuotaChange("idle", "", {"producer_byte_rate": 10_000.0}),
        QuotaChange("free", "", {"mode": "exempt"}),
    )
    job = KeptJob(str(tmp_path), *quotas)
    for _ in range(20):
        job.clock.advance(1_000)
        used = {"alice": 5_000, "bob": 20_000, "eve": 100}
        job.batch([usage_row(job.clock.wall_ms, user=user, produced_bytes=count) for user, count in used.items()])
    job.show_rates()
    return job


def describe(job: KeptJob, *words: str) -> Answer:
    return kquota("quotas", "describe", *words, "--tables", job.root)


def test_the_quota_nearest_to_its_bound_comes_first_with_its_rate(job: KeptJob) -> None:
    answer = describe(job, "-o", "wide")
    assert answer.stderr.startswith("rates at 2023-11-14T22:13:40 UTC, batch 19, ")
    header, *lines = answer.stdout.splitlines()
    assert header.split("  ")[0] == "user"
    assert [line.split()[0] for line in lines] == ["<default>", "bob", "alice", "free", "idle"]
    shown = [" ".join(line.split()) for line in lines]
    # 11 windows of one second, the newest of which has just begun: W = 10 s.
    # Until bob's own quota is enforced, the default holds for him as it does for eve.
    assert shown[0].startswith("<default> producer_byte_rate 10000 (10.0 kB/s) 22.0 kB/s 220.0 % bob 2 enforce")
    assert shown[1].startswith("bob producer_byte_rate 10000 (10.0 kB/s) 22.0 kB/s 220.0 % bob 1 shadow")
    assert shown[2].startswith("alice producer_byte_rate 10000 (10.0 kB/s) 5.5 kB/s 55.0 % alice 1 enforce")
    assert shown[4].startswith("idle producer_byte_rate 10000 (10.0 kB/s) 0.0 B/s 0.0 % 0 enforce")
    lines = describe(job, "--user", "alice", "-o", "wide").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["user", "alice"], "only those that are meant"


def test_other_formats_need_no_rates(job: KeptJob) -> None:
    shutil.rmtree(f"{job.root}/rates")
    for output in ("kafka", "table", "json"):
        assert describe(job, "-o", output).exit_code == 0
    assert describe(job, "-o", "wide").exit_code == 2


def test_before_the_first_batch_there_are_no_rates(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 1.0}))
    answer = describe(job, "-o", "wide")
    assert answer.exit_code == 0
    assert answer.stderr.startswith("no rates: the job has stored none yet\n")


def test_the_levels_and_the_live_clients_that_share_are_shown(tmp_path: Path) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("alice", "", {"producer_byte_rate": 1_048_576.0}))
    at_ms = job.clock.wall_ms
    job.batch([usage_row(at_ms, user="alice", client_id=name, produced_bytes=1) for name in ("etl", "web")])
    job.flush()
    effective = ("quotas", "effective", "alice", "etl", "--tables", job.root, "-o")
    text = kquota(*effective, "wide").stdout
    assert "1048576 (1.0 MB/s)  alice" in text, "the bound that holds, exactly and readable"
    assert ["alice/web" in line for line in text.splitlines() if line.startswith("producer_byte_rate")] == [True]
    (document,) = json.loads(kquota(*effective, "json").stdout)
    assert [row["level"] for row in document["levels"] if row["bounds"]] == [3]
    assert document["effective"][0]["shared_with"] == ["alice/web"]
    assert document["effective"][1]["bound"] is None
