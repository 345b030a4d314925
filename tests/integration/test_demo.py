"""The demo from outside, as a new user runs it: who is throttled, what it prints, how it ends.

The reader here is independent of the pipeline. It counts bytes on the usage topic and knows only the quotas.
"""

import json
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

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

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
        records: Values of the throttle topic, each with when it was appended as `"appended_at_ms"`.
        usage: Events of the usage topic.
        folder: All its data.
    """

    output: str
    talk: str
    exit_code: int
    records: list[dict[str, Any]]
    usage: list[dict[str, Any]]
    folder: Path

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
    return Outcome(out_path.read_text(), err_path.read_text(), exit_code, records, usage, folder)


def start_demo(folder: Path, *options: str, **popen: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pipeline.cli.main", "demo", "--folder", str(folder), *options]
    return subprocess.Popen(command, start_new_session=True, **popen)


def has_happened(folder: Path) -> bool:
    """Whether there is enough to look at: both noisy clients were throttled and released, and a throttle renewed."""
    table = folder / "tables" / "throttle_events"
    if not (table / "_delta_log").exists():
        return False
    rows = read_table(str(table), ["user", "client_id", "action", "cause"]).to_pylist()
    released = {(row["user"], row["client_id"]) for row in rows if row["action"] == "release"}
    return released >= HELD and any(row["cause"] == "renewed" for row in rows)


def test_only_the_two_noisy_clients_are_throttled_and_the_output_tells_it(outcome: Outcome) -> None:
    stock = {(client.user, client.client_id) for client in STOCK_CLIENTS}
    assert {(record["user"], record["client_id"]) for record in outcome.records} - stock == HELD
    for user, client_id in HELD:
        assert f"throttle {user}/{client_id or '*'}" in outcome.output
    used = {(event["user"], event["client_id"]) for event in outcome.usage}
    assert {(client.user, client.client_id) for client in DEMO_CLIENTS} | stock <= used
    assert {user for user, _ in stock} <= set(outcome.table("broker_quotas")["user"].to_pylist())


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


def test_ctrl_c_ends_it_with_a_summary_without_a_trace_or_a_process_left(outcome: Outcome) -> None:
    assert outcome.exit_code == 0
    assert "micro-batches" in outcome.output.splitlines()[-1]
    assert [word for word in ("Traceback", "Exception", "WARN", "SLF4J") if word in outcome.talk] == []
    assert not _processes_of(outcome.folder), "no broker, meter or client is left behind"


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
