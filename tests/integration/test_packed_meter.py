"""Two real meters read one log, one of them writes packed messages; a real job reads the same usage from both."""

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.demo.broker import EmbeddedBroker
from tests.integration.running_job import running_job
from tests.pipeline.meter.metered_broker import events_of
from tests.pipeline.meter.request_lines import START_MS, RequestLines
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

LINES = 6_000
AGE_MS = 2_000 * 86_400_000


def meter(log: Path, topics: dict[str, str], codec: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pipeline.cli.main", "meter", "request-log", str(log), "--from-beginning"]
    command += ["--broker-id", codec, "--time-zone", "UTC"]
    environment = {**os.environ, **topics, "KQUOTA_METER__CODEC": codec}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def test_a_job_reads_from_a_packed_meter_what_it_reads_from_one_with_json(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers, log, lines = broker.bootstrap_servers, tmp_path / "kafka-request.log", RequestLines()
    log.write_text("".join(lines.take(LINES)), encoding="utf-8")
    with running_job("packedmeter", tmp_path / "job", servers) as job:
        # The lines have a date of their own.
        job.overrides = {
            "KQUOTA_STREAM__MAX_EVENT_AGE_MS": str(AGE_MS),
            "KQUOTA_TABLES__USAGE_RETENTION_MS": str(AGE_MS),
        }
        for codec in ("json", "packed"):
            with meter(log, job.environment, codec) as running:
                read = partial(is_stored, servers, job.usage_topic, codec)
                wait_until(read, f"the {codec} meter to store all")
                running.send_signal(signal.SIGTERM)
                _, said = running.communicate(timeout=PATIENCE_SECONDS)
                assert running.returncode == 0, said
        job.start()
        job.wait_until(lambda: sum(job.table("batches")["good_count"].to_pylist()) == 2 * LINES, "all usage to be read")
        rows = job.table("usage").to_pylist()

    by_json, by_packed = (rows_of(rows, codec) for codec in ("json", "packed"))
    assert by_packed == by_json
    assert sum(row["request_count"] for row in by_json) == LINES
    for name in ("produced_bytes", "fetched_bytes"):
        found: Counter[tuple[str, str]] = Counter()
        for row in by_json:
            found[row["user"], row["client_id"]] += row[name] or 0
        assert found == getattr(lines.used, name), name
    assert {datetime.fromtimestamp(row["sample_start_ms"] / 1000, UTC).date() for row in by_json} == {
        datetime.fromtimestamp(START_MS / 1000, UTC).date()
    }


def is_stored(servers: str, topic: str, broker_id: str) -> bool:
    """Whether all events of a meter are on the topic, each message in the codec that it was told."""
    count = 0
    for record in read_topic(servers, topic):
        events = events_of(record.value)
        assert {event["broker_id"] for event in events} == {"json" if record.value.startswith(b"[") else "packed"}
        count += len(events) * (events[0]["broker_id"] == broker_id)
    return count == LINES


def rows_of(rows: list[dict[str, Any]], broker_id: str) -> list[dict[str, Any]]:
    """The rows of a meter, without its name."""
    found = [{**row, "broker_id": ""} for row in rows if row["broker_id"] == broker_id]
    return sorted(found, key=lambda row: (row["sample_start_ms"], row["user"], row["client_id"]))
