"""The whole job with a real broker, Spark and Delta: one process, observed from outside."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.job.status import last_beat_ms
from pipeline.process import free_ports
from tests.integration.running_job import RunningJob, running_job, usage
from tests.pages.blocks import blocks_of
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BOUND = ("--user-defaults", "--add-config", "producer_byte_rate=1000", "--reason", "test")


def documented_spark_metrics(folder: Path, job: RunningJob) -> str:
    """Let the job serve Spark's own metrics as docs/metrics.md says, on a free port; returns the address."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
    (block,) = (block for block in blocks_of(page) if block.language == "toml" and "[spark.conf]" in block.text)
    (port,) = free_ports(1)
    assert block.text.count('"4040"') == 1
    (folder / "kquota.toml").write_text(block.text.replace('"4040"', f'"{port}"'), "utf-8")
    job.overrides["KQUOTA_CONFIG"] = str(folder / "kquota.toml")
    return f"http://127.0.0.1:{port}/metrics/prometheus/"


@pytest.fixture(scope="module")
def job(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    with running_job("whole", tmp_path_factory.mktemp("whole"), broker.bootstrap_servers) as running:
        assert running.command("quotas", "alter", *BOUND).returncode == 0
        running.overrides["KQUOTA_STREAM__ROLLUP_INTERVAL_MS"] = "500"
        running.start()
        yield running


def test_a_client_over_quota_is_throttled_and_the_record_is_the_stored_row(job: RunningJob) -> None:
    job.send(usage("alice", 40_000), usage("quiet", 10))
    record = job.wait_for_record(user="alice", action="throttle")
    assert (record["bound"], record["cause"]) == (1_000.0, "violation")
    assert record["observed"] == pytest.approx(4_000.0, rel=0.1)
    (stored,) = (row for row in job.table("throttle_events").to_pylist() if row["publish_seq"] == record["publish_seq"])
    assert stored.items() >= {name: record[name] for name in record if name in stored}.items()
    decisions = job.table("decisions").to_pylist()
    assert [row["user"] for row in decisions if row["decision_id"] == record["decision_id"]] == ["alice"]
    assert all(row["user"] != "quiet" for row in decisions)


def test_raising_a_quota_by_the_command_line_releases_without_traffic(job: RunningJob) -> None:
    job.send(usage("bob", 500_000))
    throttle = job.wait_for_record(user="bob", action="throttle")
    edited = job.command("quotas", "alter", "--user", "bob", "--add-config", "producer_byte_rate=1e9")
    assert edited.stdout == "Completed updating config for user bob.\n"
    release = job.wait_for_record(user="bob", action="release")
    assert (release["cause"], release["decision_id"]) == ("quota_changed", throttle["decision_id"])
    assert release["quota_version"] > throttle["quota_version"]


def test_a_job_that_waits_for_usage_says_when_it_last_did(job: RunningJob) -> None:
    settings = job.settings
    place = settings.run_dir, settings.job, settings.tables.root
    job.wait_until(lambda: last_beat_ms(*place) is not None, "the query to wait")
    first_ms = last_beat_ms(*place) or 0
    job.wait_until(lambda: (last_beat_ms(*place) or 0) > first_ms, "the query to wait again")
    told = json.loads(job.command("status", "-o", "json").stdout)
    assert told["health"]["process"]


def test_malformed_messages_are_dead_letters_and_no_good_event_is_lost(job: RunningJob) -> None:
    bad = [
        b"not json",
        b'{"event_time_ms": 1, "client_id": "c"}',
        b'{"event_time_ms": 1, "user": "u", "client_id": "c", "produced_bytes": -1}',
        b"\xff\xfe\x00",
    ]
    good = [usage(f"good-{number % 10}", 1) for number in range(250)]
    messages: list[bytes | dict[str, Any] | list[Any] | None] = []
    array = [usage("in-array", 5), {"user": 7, "event_time_ms": None}, usage("in-array", 6)]
    for one in good:
        messages += [*bad, one]
    job.send(*messages, array, None, [])

    # All have one key, so they are read in order; the last one is ignored, and its batch is written last of all.
    job.wait_until(lambda: sum(job.table("batches")["ignored_count"].to_pylist()) == 2, "the last message to be read")
    letters = job.table("dead_letters").to_pylist()
    assert all(letter["cause"] and letter["value"] is not None for letter in letters)
    assert len({(letter["partition"], letter["offset"], letter["element_index"]) for letter in letters}) == 1_001
    assert [letter["element_index"] for letter in letters if letter["element_index"] is not None] == [1]
    for name, produced_bytes in (("good-", 250), ("in-array", 11)):
        rows = [row for row in job.table("usage").to_pylist() if row["user"].startswith(name)]
        assert sum(row["produced_bytes"] for row in rows) == produced_bytes
    assert sum(job.table("batches")["dead_count"].to_pylist()) == len(letters) == 1_001


def test_seconds_are_rolled_up_and_decisions_verified_while_the_job_runs(job: RunningJob) -> None:
    at_ms = time.time_ns() // 1_000_000 - 90_000

    def seconds() -> list[tuple[int, int]]:
        job.send(usage("quiet", 1))  # which lets the roll-up go on
        rows = job.table("usage_by_second").to_pylist()
        return [(row["second_start_ms"], row["produced_bytes"]) for row in rows if row["user"] == "heidi"]

    start_ms = at_ms // 1_000 * 1_000
    job.send(usage("heidi", 20_000, event_time_ms=at_ms), usage("heidi", 3_000, event_time_ms=start_ms))
    job.wait_until(lambda: seconds() == [(start_ms, 23_000)], "its row in usage_by_second")
    verified = job.command("throttles", "verify")
    assert verified.stdout.endswith(" decisions, 0 mismatches\n"), verified.stderr
    assert verified.returncode == 0


@pytest.mark.long
def test_a_job_whose_jvm_has_ended_says_so_in_one_line_and_ends(job: RunningJob) -> None:
    assert job.process is not None
    since = len(job.log)
    subprocess.run(["/usr/bin/pkill", "-KILL", "-P", str(job.process.pid), "java"], check=True)
    assert job.process.wait(PATIENCE_SECONDS) == 1
    told = job.wait_for_line("kquota: ", since=since)
    assert told.strip() == ("kquota: Spark's JVM exited (code -9). Fix: start the job again: it goes on where it was")
    assert not [line for line in job.log[since:] if "Traceback" in line]
    since = len(job.log)
    job.start(wait=False)
    job.wait_for_line("running; trigger", since)


def test_sigterm_ends_it_without_a_stack_trace(job: RunningJob) -> None:
    assert job.stop() == 0
    last_start = max(number for number, line in enumerate(job.log) if "running; trigger" in line)
    assert not [line for line in job.log[last_start:] if "Traceback" in line or "Exception" in line]
    stored = [row["publish_seq"] for row in job.table("throttle_events").to_pylist()]
    assert sorted(stored) == list(range(len(stored)))
    assert [record["publish_seq"] for record in job.records()] == sorted(stored)


def test_sigterm_while_spark_starts_ends_it_without_a_query(job: RunningJob) -> None:
    since = len(job.log)
    job.start(wait=False)
    job.wait_for_line("tables and recovery", since=since)
    assert job.stop() == 0
    assert not [line for line in job.log[since:] if "streaming query" in line or "Traceback" in line or "rror" in line]


@pytest.mark.long
def test_after_an_outage_old_usage_is_recorded_in_small_batches_and_throttles_nobody(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with running_job("outage", tmp_path, broker.bootstrap_servers) as job:
        job.overrides["KQUOTA_STREAM__MAX_OFFSETS_PER_TRIGGER"] = "400"
        job.overrides["KQUOTA_STREAM__MAX_DECISION_AGE_MS"] = "20000"
        job.overrides["KQUOTA_METRICS__PORT"] = "0"
        spark_metrics = documented_spark_metrics(tmp_path, job)
        assert job.command("quotas", "alter", *BOUND).returncode == 0
        now_ms = time.time_ns() // 1_000_000
        ten_minutes = range(600)[::-1]
        job.send(
            *(
                usage(user, size if ago > 300 else 100, event_time_ms=now_ms - ago * 1_000)
                for ago in ten_minutes
                for user, size in (("was-noisy", 20_000), ("quiet", 100))
            )
        )
        job.start()
        job.wait_for_line("recorded, but no throttle is published")
        job.wait_until(lambda: sum(job.table("batches")["good_count"].to_pylist()) >= 1_200, "all usage to be read")
        job.send(usage("is-noisy", 40_000))
        job.wait_for_record(user="is-noisy", action="throttle")
        assert {record["user"] for record in job.records()} == {"is-noisy"}
        assert {row["user"] for row in job.table("decisions").to_pylist()} == {"was-noisy", "is-noisy"}
        assert job.table("batches").num_rows >= 4
        ages_ms = [int(age) for line in job.log for age in re.findall(r"batch_id=.* age_ms=(\d+) ", line)]
        assert ages_ms[0] > 300_000
        assert ages_ms[-1] < 20_000
        told = httpx.get(spark_metrics, timeout=PATIENCE_SECONDS).text
        for name in ("inputRate_total", "processingRate_total", "latency"):
            assert f"metrics_kquota_driver_spark_streaming_outage_{name}_Value" in told


@pytest.mark.long
def test_a_large_backlog_is_read_in_batches_of_64_mb(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with running_job("backlog", tmp_path, broker.bootstrap_servers) as job:
        job.send(*(usage("many", 1, comment="x" * 500_000) for _ in range(200)))
        job.start()
        job.wait_until(lambda: sum(job.table("batches")["good_count"].to_pylist()) >= 200, "all usage to be read")
        job.send(usage("many", 1))
        job.wait_until(lambda: sum(job.table("batches")["good_count"].to_pylist()) >= 201, "the usage after it")
        rows = job.table("batches").sort_by("batch_id").to_pylist()
        counts = [row["good_count"] for row in rows if row["good_count"]]
        assert 100 < max(counts) <= 128, "64 MB"
        assert len({row["query_id"] for row in rows}) == 1
        assert sum(job.table("usage")["produced_bytes"].to_pylist()) == 201


def test_what_stops_a_start_is_one_line_with_its_remedy(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with running_job("stopped", tmp_path, broker.bootstrap_servers) as job:
        job.overrides["KQUOTA_KAFKA__THROTTLE_TOPIC"] = "not.there"
        missing = job.command("run")
        assert missing.returncode == 5
        assert "not.there" in missing.stderr
        assert "kquota topics create" in missing.stderr
        job.overrides["KQUOTA_KAFKA__BOOTSTRAP_SERVERS"] = "127.0.0.1:1"
        away = job.command("run", "--no-wait")
        assert away.returncode == 6
        assert "127.0.0.1:1" in away.stderr
        for refusal in (missing, away):
            assert "Traceback" not in refusal.stderr
