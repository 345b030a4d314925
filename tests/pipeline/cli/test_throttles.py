"""`kquota throttles list|tail|verify`: filters, the table for people, committed records of a real topic.

alice/etl   producer  throttled T0 … T0 + 10 min      alice/web   consumer  throttled, then released
bob/        request   throttled T0 - 1 h … T0 + 9 min
"""

import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.clock import wall_ms
from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import NotFound, Refused
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.rates import Rates
from quota.entity import QUOTA_TYPES
from schemas.throttle_record import ThrottleEventRow
from tests.integration.throttle_job import ThrottleJob
from tests.pipeline.cli.running import Answer, kquota
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.factories import EventTable
from tests.quota.factories import usage_row
from tests.waiting import PATIENCE_SECONDS

PRODUCER, CONSUMER, REQUEST = QUOTA_TYPES
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
ALICE: dict[str, Any] = {"user": "alice", "decision_id": "0123456789abcdef", "bound": 1e6, "cause": "violation"}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> EventTable:
    now_ms = wall_ms()
    events = EventTable(tmp_path_factory.mktemp("events"))
    events.write(("", "throttle", now_ms - HOUR_MS, 69 * MINUTE_MS), user="bob", quota_type=REQUEST, observed=62.5)
    events.write(("etl", "throttle", now_ms, 10 * MINUTE_MS), **ALICE, quota_type=PRODUCER, observed=5.24e6)
    events.write(("web", "throttle", now_ms, 10 * MINUTE_MS), **ALICE, quota_type=CONSUMER, observed=1.2e9)
    events.write(("web", "release", now_ms, 0), **ALICE, quota_type=CONSUMER, observed=1e6)
    return events


def listed(events: EventTable, *flags: str) -> Answer:
    return kquota("throttles", "list", *flags, "--tables", events.root)


def test_the_list_shows_records_by_the_verbs_of_tail_and_explain(tmp_path: Path) -> None:
    events = EventTable(tmp_path)
    for batch_id, cause in enumerate(("violation", "extended", "renewed")):
        one: dict[str, Any] = {**ALICE, "cluster": "c", "query_id": "q", "batch_id": batch_id, "cause": cause}
        events.write(("etl", "throttle", wall_ms(), 10 * MINUTE_MS), **one, quota_type=PRODUCER)
    rows = json.loads(listed(events, "--all", "-o", "json").stdout)
    assert [row["action"] for row in rows] == ["throttle"] * 3, "for programs the record is as it was published"
    shown = listed(events, "--all", "-o", "wide").stdout.partition("\n")[2]
    assert re.findall(r" (throttle|extend|renew) ", shown) == ["renew", "extend", "throttle"]


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", ["t alice/etl", "t bob/"]),
        ("--user bob", ["t bob/"]),
        ("--client-id etl", ["t alice/etl"]),
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
    answer = listed(events, *flags.split(), "-o", "json")
    assert [f"{row['action'][0]} {row['user']}/{row['client_id']}" for row in json.loads(answer.stdout)] == found
    assert answer.exit_code == (0 if found else 3)


def test_more_records_than_shown_are_told(events: EventTable) -> None:
    assert "see more with --limit" in listed(events, "--all", "--limit", "3").stderr
    assert "--limit" not in listed(events, "--all", "--limit", "4").stderr


@pytest.mark.parametrize("command", ["list", "tail"])
@pytest.mark.parametrize(
    ("flags", "told"),
    [(("--since", "soon"), "cannot read --since soon; use an age"), (("--type", "x"), "unknown quota type x; use")],
)
def test_flags_that_can_not_be_meant_are_refused(command: str, flags: tuple[str, ...], told: str) -> None:
    answer = kquota("throttles", command, *flags)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert told in answer.stderr


BY_BROKERS = {("alice", "etl"): 12_000, ("alice", "late"): 20_000, ("bob", "app"): 57_000, ("bob", "short"): 400}
"""For how many ms of the last minute brokers held clients. kquota holds alice/etl, and all of carol."""


@pytest.fixture(scope="module")
def holds(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, now_ms = tmp_path_factory.mktemp("held"), wall_ms()
    one = KeptJob(str(folder), QuotaChange("<default>", "", {"producer_byte_rate": 1e6}))
    one.batch(
        [
            usage_row(now_ms - 59_000, user=user, client_id=client_id, produced_bytes=9, broker_throttle_ms=time_ms)
            for (user, client_id), time_ms in {**BY_BROKERS, ("carol", "app"): 3_000}.items()
        ]
    )
    one.batch([usage_row(now_ms)])
    one.flush()
    one.show_rates()
    events = EventTable(folder, epoch=9)
    events.write(("etl", "throttle", now_ms, 10 * MINUTE_MS), **ALICE, quota_type=PRODUCER, observed=5.24e6)
    events.write((None, "throttle", now_ms, 9 * MINUTE_MS), **{**ALICE, "user": "carol"}, quota_type=PRODUCER)
    return one.root


@pytest.fixture
def held_by_both(holds: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Those tables, at the instant at which they were written."""
    now_ms = Rates(holds).as_of_ms
    monkeypatch.setattr("pipeline.clock.time.time_ns", lambda: now_ms * 1_000_000)
    return holds


def brokers_text(held_seconds: int) -> str:
    return f"its brokers held it up to {held_seconds} s of the last minute"


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", [("alice", "etl", 12), ("carol", None, 3), ("bob", "app", 57), ("alice", "late", 20)]),
        ("--user bob", [("bob", "app", 57)]),
        ("--client-id late", [("alice", "late", 20)]),
        ("--client-id app", [("bob", "app", 57)]),  # carol is held with hers
        ("--client-id app --user carol", [("carol", None, 3)]),
        ("--type producer", [("alice", "etl", 12), ("carol", None, 3)]),
        ("--user dave", []),
    ],
)
def test_clients_that_only_brokers_hold_are_listed_after_those_that_kquota_holds(
    flags: str, found: list[tuple[str, str | None, int]], held_by_both: str
) -> None:
    answer = kquota("throttles", "list", *flags.split(), "-o", "json", "--tables", held_by_both)
    rows = json.loads(answer.stdout)
    shown = [(row["user"], row["client_id"], row["held_by_brokers"]) for row in rows]
    assert shown == [(user, client_id, brokers_text(held_seconds)) for user, client_id, held_seconds in found]
    assert {tuple(row) for row in rows} <= {(*ThrottleEventRow.model_fields, "held_by_brokers")}, "one shape"
    by_kquota = {(row["user"], row["client_id"]) for row in rows if row["throttled_until_ms"] is not None}
    assert by_kquota <= {("alice", "etl"), ("carol", None)}
    assert answer.exit_code == (0 if found else 3)


def test_explain_and_status_say_in_the_words_of_the_list_who_holds_a_client(held_by_both: str) -> None:
    explained = kquota("throttles", "explain", "bob/app", "--tables", held_by_both)
    assert (explained.exit_code, explained.stdout) == (3, "")
    by_brokers = f"bob/app is not held by kquota, which has no decision of it; {brokers_text(57)}. Fix: "
    assert explained.stderr.startswith(f"kquota: {by_brokers}")
    found = json.loads(kquota("status", "-o", "json", "--tables", held_by_both).stdout)
    assert found["broker_held_clients"] == 4
    assert found["longest_broker_hold"] == {"user": "bob", "client_id": "app", "held_by_brokers": brokers_text(57)}


def test_explain_says_what_to_do_about_too_large_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = KeptJob(str(tmp_path), QuotaChange("bob", "", {"consumer_byte_rate": 100_000.0}))
    now_ms = wall_ms()
    fetch = {"fetched_bytes": 500_000, "request_count": 1, "broker_throttle_ms": 5_000}
    job.batch([usage_row(now_ms - 9_000, user="bob", client_id="app", **fetch)])
    job.batch([usage_row(now_ms)])
    job.flush()
    job.show_rates()
    now_ms = Rates(job.root).as_of_ms
    monkeypatch.setattr("pipeline.clock.time.time_ns", lambda: now_ms * 1_000_000)
    explained = kquota("throttles", "explain", "bob/app", "--tables", job.root)
    found = "one fetch of bob/app had at least 500.0 kB, 5.0 s of its consumer_byte_rate 100.0 kB/s: "
    advice = (
        f"{found}set fetch.max.bytes and max.partition.fetch.bytes to at most 100000, or raise the quota to 500.0 kB/s"
    )
    assert f"; {advice}. Fix: " in explained.stderr


@pytest.mark.parametrize(("age_ms", "exit_code"), [(59_000, 0), (61_000, 3)])
def test_what_brokers_held_more_than_a_minute_ago_is_no_hold_of_now(
    age_ms: int, exit_code: int, held_by_both: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = Rates(held_by_both).as_of_ms + age_ms
    monkeypatch.setattr("pipeline.clock.time.time_ns", lambda: now_ms * 1_000_000)
    assert kquota("throttles", "list", "--user", "bob", "--tables", held_by_both).exit_code == exit_code


COMMAND = [sys.executable, "-m", "pipeline.cli.main", "throttles", "tail"]
TOPIC_VARIABLE = "KQUOTA_KAFKA__THROTTLE_TOPIC"


@pytest.fixture(scope="module")
def job(broker: EmbeddedBroker) -> Iterator[ThrottleJob]:
    """Alice and bob are throttled, alice twice; then bob is released."""
    with closing(ThrottleJob(broker.bootstrap_servers)) as made:
        made.throttle("alice", "bob")
        made.throttle("alice")
        made.release("bob")
        yield made


@pytest.fixture
def shared(tmp_path: Path) -> KeptJob:
    """alice/web has the sensor of alice alone for what it produces, and with alice/etl for what it fetches."""
    quotas = (
        QuotaChange("alice", "", {"producer_byte_rate": 1_000.0, "consumer_byte_rate": 1_000.0}),
        QuotaChange("alice", "etl", {"producer_byte_rate": 500.0}),
        QuotaChange("", "erp", {"producer_byte_rate": 500.0}),
        QuotaChange("bob", "", {"producer_byte_rate": 1_000.0, "mode": "shadow"}),
    )
    job = KeptJob(str(tmp_path), *quotas)
    at_ms = wall_ms()
    clients = [("alice", "etl"), ("alice", "web"), ("bob", "etl"), ("dave", "erp")]
    job.batch([usage_row(at_ms, user=user, client_id=name, produced_bytes=1) for user, name in clients])
    job.flush()
    return job


def forgiven(job: KeptJob, *words: str) -> tuple[Answer, list[tuple[str, str]]]:
    before = job.quota_table.read().forgiven
    answer = kquota("throttles", "forgive", *words, "--reason", "it was our fault", "--tables", job.root)
    return answer, [entity for entity, at_ms in job.quota_table.read().forgiven.items() if at_ms != before.get(entity)]


def test_forgiving_a_user_forgives_all_its_sensors_and_is_in_the_history(shared: KeptJob) -> None:
    answer, entities = forgiven(shared, "alice")
    assert (answer.exit_code, entities) == (0, [("alice", ""), ("alice", "<default>")])
    (newest,) = json.loads(kquota("quotas", "history", "-n", "1", "-o", "json", "--tables", shared.root).stdout)
    assert newest["reason"] == "it was our fault"
    described = ("quotas", "describe", "--tables", shared.root)
    assert "forgiven_until_ms=" not in kquota(*described).stdout
    every = kquota(*described, "--all").stdout.splitlines()
    with_quota, alone = (line for line in every if "forgiven_until_ms=" in line)
    assert alone.startswith("Quota configs for user-principal 'alice', the default client-id are forgiven_until_ms=")
    assert with_quota.startswith("Quota configs for user-principal 'alice' are consumer_byte_rate=1000.0, ")


def test_forgiving_a_client_names_who_shares_its_sensor_and_asks(shared: KeptJob) -> None:
    answer, entities = forgiven(shared, "alice", "etl")
    assert (answer.exit_code, entities) == (Refused.exit_code, [])
    assert "shares its sensor with alice/web" in answer.stderr
    fix = shlex.split(answer.stderr.partition("forgive them all: ")[2])
    assert kquota(*fix[fix.index("throttles") :], "--tables", shared.root).exit_code == 0
    assert [*shared.quota_table.read().forgiven] == [("alice", ""), ("alice", "etl")], "one for each quota type"
    answer, entities = forgiven(shared, "alice", "web")
    assert (answer.exit_code, entities) == (Refused.exit_code, []), "one of its types has another's sensor"
    answer, entities = forgiven(shared, "alice", "web", "--yes")
    assert (answer.exit_code, entities) == (0, [("alice", "")])
    answer, entities = forgiven(shared, "dave", "erp")
    assert (answer.exit_code, entities) == (0, [("", "erp")])


def test_who_is_held_is_forgiven_though_it_is_silent(shared: KeptJob) -> None:
    begun = {"user": "alice", "decision_id": "0123456789abcdef", "bound": 1e3, "quota_type": PRODUCER}
    now_ms = wall_ms()
    EventTable(Path(shared.root), epoch=2).write(
        (None, "throttle", now_ms, 10 * MINUTE_MS), **begun, except_client_ids=["etl"]
    )
    answer, entities = forgiven(shared, "alice", "silent")
    assert (answer.exit_code, entities) == (Refused.exit_code, [])
    assert "shares its sensor with alice/etl, alice/web." in answer.stderr
    answer, entities = forgiven(shared, "alice", "silent", "--yes")
    assert (answer.exit_code, entities) == (0, [("alice", "")])


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("bob", "etl"), "no quota is enforced on it"),
        (("bob",), "no quota is enforced on it"),
        (("dave",), "quotas of client-ids, which all users share"),
        (("alcie",), "was not seen"),
        (("alice", "wbe"), "was not seen"),
        (("<default>",), "was not seen"),
    ],
)
def test_who_owes_nothing_cannot_be_forgiven(names: tuple[str, ...], why: str, shared: KeptJob) -> None:
    answer, entities = forgiven(shared, *names)
    assert (answer.exit_code, entities) == (NotFound.exit_code, [])
    assert why in answer.stderr


@contextmanager
def tail(broker: EmbeddedBroker, job: ThrottleJob, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    command = [*COMMAND, *flags, "--bootstrap-server", broker.bootstrap_servers]
    env = {**os.environ, TOPIC_VARIABLE: job.name}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: "subprocess.Popen[str]", count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


@pytest.mark.broker
def test_tail_prints_each_committed_record_and_ends_when_nobody_reads_it_any_more(
    broker: EmbeddedBroker, job: ThrottleJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tail(broker, job, "--since", "1970-01-01") as process:
        found = lines(process, 4)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 0
    words = [(line.split()[1], line.split()[2]) for line in found]
    assert words == [("throttle", "alice/c"), ("throttle", "bob/c"), ("extend", "alice/c"), ("release", "bob/c")]
    assert found[0].rstrip().endswith(" throttles explain first")
    with tail(broker, job, "--since", "1h", "--user", "bob", "--type", "prod", "-o", "json") as process:
        records = [json.loads(line) for line in lines(process, 2)]
    assert [(one["user"], one["action"], one["publish_seq"]) for one in records] == [
        ("bob", "throttle", 1),
        ("bob", "release", 3),
    ]
    monkeypatch.setenv(TOPIC_VARIABLE, "no.such.topic")
    answer = kquota("throttles", "tail", "--bootstrap-server", broker.bootstrap_servers)
    assert answer.exit_code != 0
    assert "topic 'no.such.topic' does not exist" in answer.stderr


@pytest.mark.broker
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_from_now_on_only_new_records_are_told_until_a_signal_ends_it_with_0(
    broker: EmbeddedBroker, job: ThrottleJob, kind: signal.Signals
) -> None:
    with tail(broker, job) as process, selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        while not selector.select(0.1):  # it says nothing when it is ready: tell it something until it has heard
            job.throttle(f"new-{time.time_ns()}")
        (heard,) = lines(process, 1)
        process.send_signal(kind)
        _, told = process.communicate(timeout=PATIENCE_SECONDS)
    assert heard.split()[1] == "throttle"
    assert heard.split()[2].startswith("new-")
    assert (process.returncode, told) == (0, "")


def test_decisions_are_verified_from_their_usage(tmp_path: Path) -> None:
    """Three of them, the last one under a raised bound."""
    job = KeptJob(str(tmp_path), QuotaChange("alice", "etl", {"producer_byte_rate": 1_000.0}))
    for produced_bytes in (30_000, 0, 0):
        if len(job.decided) == 2:
            job.edit(QuotaChange("alice", "etl", {"producer_byte_rate": 2_000.0}))
        job.clock.advance(500)
        used = usage_row(job.clock.wall_ms, user="alice", client_id="etl", produced_bytes=produced_bytes)
        job.decided += job.batch([used])
    job.flush()
    explained = kquota("throttles", "explain", job.decided[-1]["decision_id"], "--tables", job.root).stdout
    (line,) = [line for line in explained.splitlines() if line.startswith("  T set")]
    assert "by quota table version 3: 1000 (1.0 kB/s) → 2000 (2.0 kB/s)" in line
    assert line.endswith("by carol at ops1: more for the nightly run")
    verify = ("throttles", "verify", "--limit", "1", "-o", "wide", "--tables", job.root)
    whole = kquota(*verify)
    assert (whole.exit_code, whole.stdout.rpartition(": ")[2]) == (0, "3 decisions, 0 mismatches\n")
    uri = table_uri(job.root, "decisions")
    stored = DeltaTable(uri).to_pyarrow_table()
    rows = [{**row, "window_ms": row["window_ms"] + 1} for row in stored.to_pylist()]
    write_deltalake(uri, pa.Table.from_pylist(rows, stored.schema), mode="overwrite")
    whole = kquota(*verify)
    assert (whole.exit_code, whole.stdout.count("window_ms: stored")) == (1, 1)
    assert "3 decisions, 3 mismatches" in whole.stdout
