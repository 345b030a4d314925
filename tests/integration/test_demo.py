"""The demo from outside, as a new user runs it: who is throttled and slowed by what, what is on the topic and stored.

The reader here is independent of the pipeline. It counts bytes on the usage topic and knows only the quotas.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.folder import DEMO_CLIENTS, STOCK_CLIENTS
from pipeline.process import terminate
from pipeline.tables.queries import read_table
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BURST_SECONDS = 11
CLIENT_LAG_SECONDS = 0.5
NOISY = {("alice", "etl"): ("produced_bytes", 100_000, 5.0), ("search", "indexer"): ("fetched_bytes", 100_000, 2.0)}
HELD = {("alice", "etl"), ("search", None)}
"""The noisy clients as throttles name them: the quota of search belongs to the user."""


@dataclass(frozen=True)
class Outcome:
    """What one run of the demo left behind that was ended with Ctrl-C.

    Attributes:
        output: Its standard output.
        talk: Its standard error.
        exit_code: Its own.
        records: Values of the throttle topic, each with when it was appended as `"appended_at_ms"`.
        usage: Events of the usage topic.
        folder: All its data.
        status: Exit code and output of `kquota status` beside it, with the settings it says to use.
    """

    output: str
    talk: str
    exit_code: int
    records: list[dict[str, Any]]
    usage: list[dict[str, Any]]
    folder: Path
    status: tuple[int, str]

    def table(self, name: str) -> pa.Table:
        return read_table(str(self.folder / "tables" / name))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder, talk = tmp_path_factory.mktemp("demo") / "data", tmp_path_factory.mktemp("talk")
    out_path, err_path = talk / "out", talk / "err"
    with out_path.open("w") as out, err_path.open("w") as err:
        demo = start_demo(folder, "--fresh", stdout=out, stderr=err)
        try:
            wait_until(lambda: demo.poll() is not None or has_happened(folder), "throttles, a renewal and releases")
            status = pasted(err_path.read_text(), "status")
            demo.send_signal(signal.SIGINT)
            exit_code = demo.wait(PATIENCE_SECONDS)
        finally:
            terminate(demo, 5)
    with EmbeddedBroker(folder / "broker") as broker:
        records = [
            {**json.loads(record.value), "appended_at_ms": record.timestamp}
            for record in read_topic(broker.bootstrap_servers, "quota.throttle.v1")
        ]
        messages = [json.loads(record.value) for record in read_topic(broker.bootstrap_servers, "quota.usage.v1")]
    usage = [event for message in messages for event in (message if isinstance(message, list) else [message])]
    records.sort(key=lambda record: int(record["publish_seq"]))
    return Outcome(out_path.read_text(), err_path.read_text(), exit_code, records, usage, folder, status)


def pasted(talk: str, command: str) -> tuple[int, str]:
    """Exit code and output of a command, in a shell that has run the line with which the demo says how to use it."""
    (export,) = re.findall(r"export KQUOTA_CONFIG=.*$", talk, re.MULTILINE)
    text = f"{export}\n{shlex.quote(sys.executable)} -m pipeline.cli.main {command}"
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def start_demo(folder: Path, *options: str, **popen: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pipeline.cli.main", "demo", "--folder", str(folder), *options]
    return subprocess.Popen(command, start_new_session=True, **popen)


def has_happened(folder: Path) -> bool:
    """Whether there is enough to look at: both clients throttled and released more than once, and a renewal.

    And the brokers have held the stock clients for long enough to slow them.
    """
    table = folder / "tables" / "throttle_events"
    if not (table / "_delta_log").exists():
        return False
    rows = read_table(str(table), ["user", "client_id", "action", "cause", "decision_id"]).to_pylist()
    of_client = [[row for row in rows if (row["user"], row["client_id"]) == held] for held in HELD]
    releases = [[row["action"] for row in mine].count("release") for mine in of_client]
    return (
        all(len({row["decision_id"] for row in mine}) >= 2 for mine in of_client)
        and min(releases) >= 1
        and sum(releases) >= 3
        and any(row["cause"] == "renewed" for row in rows)
        and all(has_met_its_broker(folder, client.user) for client in STOCK_CLIENTS)
    )


def has_met_its_broker(folder: Path, user: str) -> bool:
    """Whether a user has sent for a whole window of its broker's since the sync has written its quota there."""
    changes = read_table(str(folder / "tables" / "broker_quotas"), ["user", "result", "at_ms"]).to_pylist()
    written_ms = [row["at_ms"] for row in changes if row["user"] == user and row["result"] == "applied"]
    if not written_ms:
        return False
    usage = read_table(str(folder / "tables" / "usage"), ["user", "last_event_ms"]).to_pylist()
    newest_ms = max((row["last_event_ms"] for row in usage if row["user"] == user), default=0)
    return bool(newest_ms - min(written_ms) > BURST_SECONDS * 1_000)


def test_the_two_noisy_clients_are_throttled_and_released_again_and_again(outcome: Outcome) -> None:
    released = 0
    for held in HELD:
        mine = [record for record in outcome.records if (record["user"], record["client_id"]) == held]
        actions = [record["action"] for record in mine]
        assert "release" in actions, held
        assert len({record["decision_id"] for record in mine}) >= 2, held
        assert f"throttle {held[0]}/{held[1] or '*'}" in outcome.output
        released += actions.count("release")
    assert released >= 3


def test_a_throttle_that_owes_more_is_renewed(outcome: Outcome) -> None:
    assert "renewed" in {record["cause"] for record in outcome.records}


def test_the_six_quiet_clients_are_never_throttled(outcome: Outcome) -> None:
    stock = {(client.user, client.client_id) for client in STOCK_CLIENTS}
    assert {(record["user"], record["client_id"]) for record in outcome.records} - stock == HELD
    used = {(event["user"], event["client_id"]) for event in outcome.usage}
    assert {(client.user, client.client_id) for client in DEMO_CLIENTS} | stock <= used


def test_every_record_on_the_topic_is_a_row_of_the_table_and_the_other_way_round(outcome: Outcome) -> None:
    rows = outcome.table("throttle_events").sort_by("publish_seq").to_pylist()
    assert [row["publish_seq"] for row in rows] == list(range(len(rows)))
    names = set(outcome.records[0]) - {"sensor", "appended_at_ms"}
    assert [{name: record[name] for name in names} for record in outcome.records] == [
        {name: row[name] for name in names} for row in rows
    ]


def test_an_independent_count_of_bytes_stays_within_the_bound_at_every_instant(outcome: Outcome) -> None:
    """It is ahead of its quota by two bursts and what it sent while nothing held it; many throttles make that no more.

    How long nothing held it is read from the records: on a busy machine a throttle comes late.
    """
    events: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for event in outcome.usage:
        client = (event["user"], event["client_id"])
        if client in NOISY and event.get(NOISY[client][0]):
            events[client].append((event["event_time_ms"], event[NOISY[client][0]]))
    for client, (_, bound, overload) in NOISY.items():
        used = sorted(events[client])
        throttles = [record for record in outcome.records if record["user"] == client[0]]
        start_ms, sent_bytes, excess_seconds = used[0][0], 0, 0.0
        for at_ms, amount in used:
            sent_bytes += amount
            if at_ms >= throttles[0]["appended_at_ms"]:
                excess_seconds = max(excess_seconds, sent_bytes / bound - (at_ms - start_ms) / 1000)
        free_seconds = longest_free_ms(throttles, start_ms) / 1000 + CLIENT_LAG_SECONDS
        allowed = 2 * BURST_SECONDS + 1.1 * overload * free_seconds
        assert excess_seconds <= allowed, (client, excess_seconds, allowed)


def longest_free_ms(throttles: list[dict[str, Any]], start_ms: int) -> int:
    """The longest time in which no throttle held a client, from its first event to its last throttle."""
    longest_ms, held_until_ms = 0, start_ms
    for record in throttles:
        at_ms = record["appended_at_ms"]
        longest_ms = max(longest_ms, at_ms - held_until_ms)
        held_until_ms = at_ms if record["action"] == "release" else record["throttled_until_ms"]
    return longest_ms


def test_what_it_prints_has_no_stack_trace_and_ends_with_a_summary(outcome: Outcome) -> None:
    assert "Traceback" not in outcome.talk
    assert "Exception" not in outcome.talk
    assert "micro-batches" in outcome.output.splitlines()[-1]


def test_no_jvm_writes_to_its_standard_error(outcome: Outcome) -> None:
    lines = [line for line in outcome.talk.splitlines() if "WARN" in line or "SLF4J" in line]
    assert lines == []


def test_the_line_that_says_how_to_use_it_serves_a_command_beside_it(outcome: Outcome) -> None:
    exit_code, told = outcome.status
    assert exit_code == 0, told
    assert "up, process" in told


def test_ctrl_c_ends_it_and_leaves_no_process_behind(outcome: Outcome) -> None:
    assert outcome.exit_code == 0
    assert not _processes_of(outcome.folder), "no broker, meter or client is left behind"


@pytest.mark.long
def test_it_goes_on_in_its_folder_and_ends_when_its_time_is_up(outcome: Outcome) -> None:
    newest = max(outcome.table("batches")["batch_id"].to_pylist())
    demo = start_demo(outcome.folder, "--duration", "5", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        talk, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    finally:
        terminate(demo, 5)
    assert demo.returncode == 0
    assert b"are sending and reading" in talk
    assert b"Traceback" not in talk
    assert newest in outcome.table("batches")["batch_id"].to_pylist()
    assert not _processes_of(outcome.folder), "no broker, meter or client is left behind"


def _processes_of(folder: Path) -> list[str]:
    commands = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in commands if str(folder) in command]
