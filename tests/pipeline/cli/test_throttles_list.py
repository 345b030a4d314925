"""`kquota throttles list`: filters, the table for people, and `--watch`.

alice/etl   producer  throttled T0 … T0 + 10 min      alice/web   consumer  throttled, then released
bob/        request   throttled T0 - 1 h … T0 + 9 min
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.options import wait_until_stopped
from pipeline.cli.throttles import PERIOD_SECONDS, changes
from quota.entity import QUOTA_TYPES
from schemas.decisions import decision_id
from schemas.throttle_record import ThrottleEventRow
from tests.pipeline.cli.running import Answer, kquota
from tests.pipeline.tables.event_table import EventTable

PRODUCER, CONSUMER, REQUEST = QUOTA_TYPES
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
ALICE: dict[str, Any] = {"user": "alice", "decision_id": "0123456789abcdef", "bound": 1e6, "cause": "violation"}


@pytest.fixture
def events(tmp_path: Path) -> EventTable:
    now_ms = time.time_ns() // 1_000_000
    events = EventTable(tmp_path)
    events.write(("", "throttle", now_ms - HOUR_MS, 69 * MINUTE_MS), user="bob", quota_type=REQUEST, observed=62.5)
    events.write(("etl", "throttle", now_ms, 10 * MINUTE_MS), **ALICE, quota_type=PRODUCER, observed=5.24e6)
    events.write(("web", "throttle", now_ms, 10 * MINUTE_MS), **ALICE, quota_type=CONSUMER, observed=1.2e9)
    events.write(("web", "release", now_ms, 0), **ALICE, quota_type=CONSUMER, observed=1e6)
    return events


def listed(events: EventTable, *flags: str) -> Answer:
    return kquota("throttles", "list", *flags, "--tables", events.root)


def clients(events: EventTable, *flags: str) -> list[str]:
    rows = json.loads(listed(events, *flags, "-o", "json").stdout)
    return [f"{row['action'][0]} {row['user']}/{row['client_id']}" for row in rows]


def test_running_throttles_have_units_a_clock_time_and_the_beginning_of_the_decision(events: EventTable) -> None:
    answer = listed(events, "--user", "alice")
    header, line = answer.stdout.splitlines()
    assert header.split() == ["user", "client", "id", "type", "O", "T", "for", "until", "decision"]
    assert line.split()[:9] == ["alice", "etl", "producer", "5.2", "MB/s", "1.0", "MB/s", "600.0", "s"]
    assert line.split()[-1] == "01234567"
    assert len(line) <= 80
    assert answer.stderr == "no room for: W, cause; see them with -o wide\n"


def test_the_list_shows_records_by_the_verbs_of_tail_and_explain(tmp_path: Path) -> None:
    events, now_ms = EventTable(tmp_path), time.time_ns() // 1_000_000
    begun: dict[str, Any] = {"cluster": "c", "query_id": "q", "user": "alice", "quota_type": PRODUCER}
    own_id = decision_id(**begun, batch_id=1, broker_id="", client_id="etl")
    for batch_id, cause in ((1, "violation"), (2, "violation"), (3, "renewed")):
        one: dict[str, Any] = {**begun, "batch_id": batch_id, "decision_id": own_id, "cause": cause}
        events.write(("etl", "throttle", now_ms, 10 * MINUTE_MS), **one)
    rows = json.loads(kquota("throttles", "list", "--all", "-o", "json", "--tables", events.root).stdout)
    assert [row["action"] for row in rows] == ["throttle"] * 3, "for programs the record is as it was published"
    shown = kquota("throttles", "list", "--all", "-o", "wide", "--tables", events.root).stdout.splitlines()[1:]
    verbs = [next(word for word in line.split() if word in {"throttle", "extend", "renew"}) for line in shown]
    assert verbs == ["renew", "extend", "throttle"]


def test_recent_records_keep_bound_end_and_cause_in_80_columns(events: EventTable) -> None:
    answer = listed(events, "--since", "2h")
    header, *lines = answer.stdout.splitlines()
    assert header.split() == ["at", "action", "client", "type", "T", "until", "cause"]
    assert max(map(len, lines)) <= 80
    assert answer.stderr == "no room for: O, W, for, decision; see them with -o wide\n"


def test_wide_has_all_columns_with_whole_ids(events: EventTable) -> None:
    header, line = listed(events, "--user", "alice", "-o", "wide").stdout.splitlines()
    assert all(name.replace("_", " ") in header for name in ThrottleEventRow.model_fields)
    assert ALICE["decision_id"] in line.split()


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", ["t alice/etl", "t bob/"]),
        ("--user bob", ["t bob/"]),
        ("--client-id etl", ["t alice/etl"]),
        ("--entity-type clients --entity-name etl", ["t alice/etl"]),
        ("--client-id=", ["t bob/"]),
        ("--user alice --client-id web", []),
        ("--type producer_byte_rate", ["t alice/etl"]),
        ("--type req", ["t bob/"]),
        ("--type consumer", []),
        ("--all", ["r alice/web", "t alice/web", "t alice/etl", "t bob/"]),
        ("--all --type consumer", ["r alice/web", "t alice/web"]),
        ("--all --user bob --limit 1", ["t bob/"]),
        ("--since 30m", ["r alice/web", "t alice/web", "t alice/etl"]),
        ("--since 30m --user bob", []),
        ("--since 2h --type request", ["t bob/"]),
    ],
)
def test_only_what_is_wanted_is_listed(flags: str, found: list[str], events: EventTable) -> None:
    assert clients(events, *flags.split()) == found
    assert listed(events, *flags.split()).exit_code == (0 if found else 3)


def test_more_records_than_shown_are_told(events: EventTable) -> None:
    assert "the newest 3 records; see more with --limit" in listed(events, "--all", "--limit", "3").stderr
    assert "--limit" not in listed(events, "--all", "--limit", "4").stderr


def test_another_quota_type_is_refused_with_the_known_ones(events: EventTable) -> None:
    for given in ("produce_bytes", "", "x"):
        answer = listed(events, "--type", given)
        assert answer.exit_code == 2
        assert f"unknown quota type {given}; use {', '.join(QUOTA_TYPES)}, or the beginning of one" in answer.stderr


def test_a_watch_shows_what_has_changed_and_nothing_else() -> None:
    values = iter(["a", "a", "b", "b", "b", "a", "never read"])
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == 6

    assert list(changes(lambda: next(values), wait)) == ["a", "b", "a"]
    assert waited == [PERIOD_SECONDS] * 6
    assert next(values) == "never read", "after the stop nothing is read"


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_ends_the_wait_at_once_and_gives_the_signal_back(kind: signal.Signals) -> None:
    before = signal.signal(kind, signal.default_int_handler)
    try:
        with wait_until_stopped() as wait:
            assert not wait(0.001)
            os.kill(os.getpid(), kind)
            assert wait(3600)
            assert signal.getsignal(kind) is signal.default_int_handler
    finally:
        signal.signal(kind, before)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_without_a_terminal_prints_each_change_and_ends_with_0(events: EventTable, kind: int) -> None:
    command = [sys.executable, "-m", "pipeline.cli.main", "throttles", "list", "--watch", "--user", "bob"]
    with subprocess.Popen(
        [*command, "-o", "csv", "--tables", events.root], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        header, first = process.stdout.readline(), process.stdout.readline()
        now_ms = time.time_ns() // 1_000_000
        events.write(("new", "throttle", now_ms, 10 * MINUTE_MS), user="bob", quota_type=PRODUCER, cause="renewed")
        again, second, third = (process.stdout.readline() for _ in range(3))
        process.send_signal(kind)
        rest, told = process.communicate()
    assert (header, rest) == (again, "")
    assert first in {second, third}
    assert [line.split(", ")[1] for line in told.splitlines()] == ["throttles: 1", "throttles: 2"]
    assert process.returncode == 0
