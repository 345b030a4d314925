"""Chargeback on real tables: its bytes are those of the raw usage, to the byte."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable

from pipeline.reports.periods import OwnerTimes
from pipeline.tables.address import table_uri
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from quota.entity import Owners
from tests.pipeline.cli.running import kquota
from tests.pipeline.reports.minutes_kept import MINUTE_MS, MONDAY_MS, KeptMinutes
from tests.pipeline.tables.rollups.rolled_usage import RolledMinutes, full

HOUR_MS = 3_600_000


def owners(**by_user: str) -> Owners:
    return Owners([{"user": user, "client_id": "", "owner": owner} for user, owner in by_user.items()])


def test_a_range_is_cut_where_owners_change_and_the_first_owner_named_holds_before() -> None:
    times = OwnerTimes((100, 200, 300), (owners(), owners(a="one"), owners(a="two", b="two")))
    spans = [(begin, end, owner_of("a", ""), owner_of("b", "")) for begin, end, owner_of in times.spans(50, 400)]
    assert spans == [(50, 200, "one", "two"), (200, 300, "one", "two"), (300, 400, "two", "two")]
    assert [one[:2] for one in times.spans(200, 300)] == [(200, 300)]


def test_versions_that_name_the_same_owners_are_one(tmp_path: Path) -> None:
    kept = KeptMinutes.create(tmp_path)
    kept.quota("a", producer_byte_rate=1.0, owner="one")
    kept.quota("a", producer_byte_rate=2.0)
    kept.quota("a", owner="two")
    found = OwnerTimes.of(QuotaTable(kept.root), 0)
    assert [one.of("a", "") for one in found.owners] == [None, "one", "two"]
    assert len(OwnerTimes.of(QuotaTable(kept.root), found.from_ms[-1]).owners) == 1


def report(root: str, *words: str) -> list[dict[str, object]]:
    span = ("--since", "2020-01-01", "--until", "2040-01-01")
    answer = kquota("report", "chargeback", *span, *words, "-o", "json", "--tables", root)
    assert answer.exit_code == 0, answer.stderr
    rows: list[dict[str, object]] = json.loads(answer.stdout)
    return rows


def test_periods_owners_and_clients_without_one_are_rows_of_their_own(tmp_path: Path) -> None:
    kept = KeptMinutes.create(tmp_path)
    kept.quota("alice", producer_byte_rate=1.0, owner="one")
    kept.use((-1, "alice", "a"), (0, "alice", "a"), (1, "alice", "b"), produced_bytes=5, io_time_ns=3)
    kept.use((0, "carol", ""), fetched_bytes=7, network_time_ns=2, exempt_time_ns=1, request_count=4)
    rows = report(kept.root, "--by", "week")
    assert [(row["period"], row["owner"], row["clients"], row["produced_bytes"]) for row in rows] == [
        ("2026-W47", "one", 1, 5),
        ("2026-W48", "one", 2, 10),
        ("2026-W48", None, 1, 0),
    ]
    assert [rows[2][name] for name in ("fetched_bytes", "request_time_ns", "exempt_time_ns", "request_count")] == [
        7,
        2,
        1,
        4,
    ]
    clients = report(kept.root, "--by", "month", "--clients")
    assert [(row["user"], row["client_id"], row["produced_bytes"]) for row in clients] == [
        ("alice", "a", 10),
        ("alice", "b", 5),
        ("carol", "", 0),
    ]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_its_bytes_are_those_of_the_raw_usage_whatever_interrupts_the_roll_up(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    rolled = RolledMinutes(tmp_path)
    create_missing(rolled.root)
    table = QuotaTable(rolled.root)
    table.alter([QuotaChange("u", "", {"owner": "one", "mode": "exempt"})], EditAudit("a", "h", "0", "r"))
    now_ms = MONDAY_MS
    for _ in range(25):
        now_ms += chance.choice([500, 20_000, MINUTE_MS, HOUR_MS])
        rows = [
            full(
                now_ms - chance.choice([0, 0, 900, 15_000, 2 * MINUTE_MS, 5 * HOUR_MS]),
                user=chance.choice("uvw"),
                client_id=chance.choice("ab"),
                produced_bytes=chance.choice([None, 0, chance.randrange(2**40)]),
                fetched_bytes=chance.choice([None, chance.randrange(2**40)]),
                io_time_ns=chance.choice([None, chance.randrange(2**30)]),
            )
            for _ in range(chance.randrange(4))
        ]
        rolled.use(full(now_ms, user="u", produced_bytes=1), *rows)
        rolled.writer.fail_next = chance.choice([None, "before", "after"])
        rolled.minutes.step()
        if chance.random() < 0.2:
            rolled.restart()
    rolled.use(full(now_ms + HOUR_MS, user="clock", produced_bytes=0))
    rolled.step()
    rolled.step()
    wanted: Counter[str | None] = Counter()
    names = ("produced_bytes", "fetched_bytes", "io_time_ns")
    for row in DeltaTable(table_uri(rolled.root, "usage")).to_pyarrow_table(columns=[*names, "user"]).to_pylist():
        for name in names:
            wanted[f"{'one' if row['user'] == 'u' else None} {name.replace('io', 'request')}"] += row[name] or 0
    got: Counter[str | None] = Counter()
    for charge in report(rolled.root, "--by", "day"):
        for name in ("produced_bytes", "fetched_bytes", "request_time_ns"):
            got[f"{charge['owner']} {name}"] += charge[name]  # type: ignore[operator]
    assert got == wanted
    assert sum(wanted.values()) > 2**40
