"""The demo from outside, as a new user runs it: who is throttled, what is on the topic, what is in the tables.

The reader here is independent of the pipeline. It counts bytes on the usage topic and knows only the quotas.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.plan import DEMO_CLIENTS
from pipeline.demo.process import terminate
from pipeline.tables.reader import read_table
from tests.topic_reading import read_topic

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(400)]

LOAD_SECONDS = 50
BURST_SECONDS = 11
# Trigger, batch, publishing and client lag, on a machine that runs other tests at the same time.
LOOP_DELAY_SECONDS = 4.0
NOISY = {("alice", "etl"): ("produced_bytes", 100_000, 5.0), ("search", "indexer"): ("fetched_bytes", 100_000, 2.0)}


@dataclass(frozen=True)
class Outcome:
    """What one run of the demo has left."""

    output: str
    talk: str
    records: list[dict[str, Any]]
    usage: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("demo") / "data"
    command = [sys.executable, "-m", "pipeline.cli.main", "demo", "--duration", str(LOAD_SECONDS)]
    done = subprocess.run(
        [*command, "--folder", str(folder), "--fresh"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    with EmbeddedBroker(folder / "broker") as broker:
        records = [json.loads(each.value) for each in read_topic(broker.bootstrap_servers, "quota.throttle.v1")]
        messages = [json.loads(each.value) for each in read_topic(broker.bootstrap_servers, "quota.usage.v1")]
    usage = [event for message in messages for event in (message if isinstance(message, list) else [message])]
    return Outcome(done.stdout, done.stderr, sorted(records, key=lambda r: int(r["publish_seq"])), usage, folder)


def test_the_two_noisy_clients_are_throttled_and_released_again_and_again(outcome: Outcome) -> None:
    released = 0
    for client in NOISY:
        mine = [record for record in outcome.records if (record["user"], record["client_id"]) == client]
        actions = [record["action"] for record in mine]
        assert "release" in actions, client
        assert len({record["decision_id"] for record in mine}) >= 2, client
        assert f"throttle {client[0]}/{client[1]}" in outcome.output
        released += actions.count("release")
    assert released >= 3


def test_a_throttle_that_owes_more_is_renewed(outcome: Outcome) -> None:
    assert "renewed" in {record["cause"] for record in outcome.records}


def test_the_six_quiet_clients_are_never_throttled(outcome: Outcome) -> None:
    assert {(record["user"], record["client_id"]) for record in outcome.records} == set(NOISY)
    used = {(event["user"], event["client_id"]) for event in outcome.usage}
    assert {(client.user, client.client_id) for client in DEMO_CLIENTS} <= used


def test_every_record_on_the_topic_is_a_row_of_the_table_and_the_other_way_round(outcome: Outcome) -> None:
    rows = read_table(str(outcome.folder / "tables" / "throttle_events")).sort_by("publish_seq").to_pylist()
    assert [row["publish_seq"] for row in rows] == list(range(len(rows)))
    names = set(outcome.records[0]) - {"sensor"}
    assert [{name: record[name] for name in names} for record in outcome.records] == [
        {name: row[name] for name in names} for row in rows
    ]


def test_an_independent_count_of_bytes_stays_within_the_bound_at_every_instant(outcome: Outcome) -> None:
    first_throttle_ms: dict[tuple[str, str], int] = {}
    for record in outcome.records:
        if record["action"] == "throttle":
            began_ms = record["throttled_until_ms"] - record["throttle_time_ms"]
            first_throttle_ms.setdefault((record["user"], record["client_id"]), began_ms)
    events: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for event in outcome.usage:
        client = (event["user"], event["client_id"])
        if client in NOISY and event.get(NOISY[client][0]):
            events[client].append((event["event_time_ms"], event[NOISY[client][0]]))
    for client, (_, bound, overload) in NOISY.items():
        used = sorted(events[client])
        start_ms, sent_bytes, excess_seconds = used[0][0], 0, 0.0
        for at_ms, amount in used:
            sent_bytes += amount
            if at_ms >= first_throttle_ms[client]:
                excess_seconds = max(excess_seconds, sent_bytes / bound - (at_ms - start_ms) / 1000)
        allowed = 2 * BURST_SECONDS + 1.1 * overload * LOOP_DELAY_SECONDS
        assert excess_seconds <= allowed, (client, excess_seconds, allowed)


def test_what_it_prints_has_no_stack_trace_and_ends_with_a_summary(outcome: Outcome) -> None:
    assert "Traceback" not in outcome.talk
    assert "Exception" not in outcome.talk
    assert "micro-batches" in outcome.output.splitlines()[-10]


def test_ctrl_c_stops_everything_in_seconds(outcome: Outcome) -> None:
    command = [sys.executable, "-m", "pipeline.cli.main", "demo", "--folder", str(outcome.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as demo:
        try:
            assert demo.stdout is not None
            for line in demo.stdout:
                if b"clients are sending" in line:
                    break
            time.sleep(5)
            os.kill(demo.pid, signal.SIGINT)
            began = time.monotonic()
            talk = demo.stdout.read()
            assert demo.wait(30) == 0
            assert time.monotonic() - began < 15
            assert b"Traceback" not in talk
        finally:
            terminate(demo, 5)
    assert not _processes_of(outcome.folder), "no broker, meter or client is left behind"


def _processes_of(folder: Path) -> list[str]:
    commands = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in commands if str(folder) in command]
