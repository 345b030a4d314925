"""Every command that prints a table has the same formats, and its table fits 80 columns, with names of any length."""

import csv
import io
import json
import re
import time
from functools import cache
from pathlib import Path

import pytest
from rich.cells import cell_len

from pipeline.tables.quotas.edit import QuotaChange
from quota.entity import QUOTA_TYPES
from tests.pipeline.cli.running import Answer, kquota
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.event_table import EventTable
from tests.quota.factories import usage_row

USER = "service-of-the-team-that-loads-the-warehouse-0007"
CLIENT = "夜間バッチ-夜間バッチ-夜間バッチ-nightly-etl"
RATES = dict.fromkeys(QUOTA_TYPES, 1_000.0)
SPAN = ("--since", "2023-11-14T22:00:00", "--until", "2023-11-14T22:20:00")

COMMANDS = {
    "throttles list": (),
    "throttles list --all": (),
    "quotas history": (),
    "quotas diff": ("1", "3"),
    "quotas describe": (),
    "quotas at": ("-0s",),
    f"quotas effective {USER} {CLIENT}": (),
    f"quotas alter --user {USER} --client-id {CLIENT}": ("--add-config", "producer_byte_rate=5", "--dry-run"),
    "quotas rollback 1": ("--dry-run",),
    "what-if": ("-f", "CANDIDATE", "--from", "usage", *SPAN),
    "tables create": (),
    "jars list": (),
    "config show": (),
}
WITHOUT_TABLES = ("jars", "config")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tables with two quotas, an edit, some decisions and a running throttle of a client with long names."""
    root = tmp_path_factory.mktemp("tables")
    (root / "candidate.yaml").write_text(
        f"quotas:\n- entity: [{{type: user, name: {USER}}}]\n  values: [{{key: producer_byte_rate, value: '7'}}]\n"
    )
    job = KeptJob(str(root), QuotaChange(USER, CLIENT, RATES), QuotaChange(USER, "", {**RATES, "owner": "dana"}))
    job.batch([usage_row(job.clock.wall_ms, user=USER, client_id=CLIENT, produced_bytes=50_000_000)])
    job.edit(QuotaChange(USER, "", {"producer_byte_rate": 123_456_789.0, "note": "until May, then " + "less " * 30}))
    job.flush()
    about = {"user": USER, "quota_type": QUOTA_TYPES[1], "decision_id": "0123456789abcdef", "cause": "quota_changed"}
    now_ms = time.time_ns() // 1_000_000
    events = EventTable(root, epoch=2)  # that of the job is 1
    events.write((CLIENT, "throttle", now_ms, 86_400_000), **about, observed=123.4e6, bound=999.9e3, window_ms=10_925)
    return str(root)


@cache
def run(command: str, output: str, root: str) -> Answer:
    """The answer of a command; none of them changes what another one shows."""
    candidate = str(Path(root) / "candidate.yaml")
    rest = [candidate if word == "CANDIDATE" else word for word in COMMANDS[command]]
    tables = [] if command.startswith(WITHOUT_TABLES) else ["--tables", root]
    answer = kquota(*command.split(), *rest, "-o", output, *tables)
    assert answer.exit_code == 0, answer.stderr
    return answer


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_fits_80_columns(command: str, root: str) -> None:
    lines = run(command, "table", root).stdout.splitlines()
    if command == "what-if":
        lines.pop()  # a sentence
    assert len(lines) > 1
    assert [line for line in lines if cell_len(line) > 80] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_wide_leaves_nothing_out_and_shortens_nothing(command: str, root: str) -> None:
    narrow, wide = run(command, "table", root), run(command, "wide", root)
    assert "-o wide" not in wide.stderr
    assert ("…" in wide.stdout) is ("… and" in wide.stdout)
    left_out = re.search(r"no room for: (.*); see them", narrow.stderr)
    for name in left_out[1].split(", ") if left_out else ():
        assert name in wide.stdout.replace(" ", "_"), "the hint tells where it is"


@pytest.mark.parametrize("command", COMMANDS)
def test_csv_and_json_can_be_read(command: str, root: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run(command, "csv", root).stdout, newline="")))
    assert rows
    assert all(None not in row and None not in row.values() for row in rows), "as many cells as names"
    json.loads(run(command, "json", root).stdout)
