"""From kill −9 until the first record is readable, with everything: process, JVM, Spark session, state, first batch.

A job has the rates of many entities. Each sends usage every second, so the windows that a restart must read are full.
The job is killed with its JVM and started again at once, as a service manager would do. All the time a probe client
above its quota sends ten events per second, and a `read_committed` reader waits for the first record about it.

    python -m bench.recovery [--entities 100000] [--seconds 14] [--rounds 3]
"""

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.machine import arguments
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from pipeline.settings.model import TablesSettings
from pipeline.tables.from_settings import create_tables, open_quota_table
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit
from tests.integration.running_job import RunningJob, running_job

_ARRAY_LENGTH: Final = 200
_PROBE: Final = "probe"
_PROBES_PER_SECOND: Final = 10
_TIME: Final = b"@"
_PATIENCE_SECONDS: Final = 120.0
_TARGETS: Final = {"state load": 2.0, "first record": 12.0}
_STEPS: Final = ("state load", "spark session", "query", "first batch", "first record")
"""What a start logs, one after the other (the session is begun before the state is loaded), and the whole."""


class Load:
    """One event per second of every entity, in arrays, and the events of the probe. Runs on a thread of its own."""

    def __init__(self, job: RunningJob, entities: int) -> None:
        self._topic = f"{job.name}.usage"
        self._producer: Any = KafkaProducer(bootstrap_servers=job.bootstrap_servers, linger_ms=5, batch_size=1 << 18)
        events = [_event(f"user-{number}", number % 900) for number in range(entities)]
        starts = range(0, entities, _ARRAY_LENGTH)
        self._arrays = [b"[" + b",".join(events[start : start + _ARRAY_LENGTH]) + b"]" for start in starts]

    def send_second(self) -> None:
        """Send one event of every entity, spread over the next second."""
        began = time.monotonic()
        for number, array in enumerate(self._arrays):
            self._send(array)
            ahead = number / len(self._arrays) - (time.monotonic() - began)
            if ahead > 0.01:
                time.sleep(ahead)
        self._producer.flush()

    def probe_until(self, stop: Event) -> None:
        """Send the events of the probe until `stop` is set."""
        event = _event(_PROBE, 900_000)
        while not stop.wait(1 / _PROBES_PER_SECOND):
            self._send(event)

    def close(self) -> None:
        self._producer.close()

    def _send(self, message: bytes) -> None:
        now_ms = str(time.time_ns() // 1_000_000).encode()
        self._producer.send(self._topic, message.replace(_TIME, now_ms))


def main() -> int:
    given = arguments(__doc__, entities=100_000, seconds=14, rounds=3)
    fetch()
    print(f"{given.entities} entities", flush=True)
    print(f"{'round':>5} {'rows read':>10} " + " ".join(f"{name:>14}" for name in _STEPS) + "   seconds", flush=True)
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        for number in range(given.rounds):
            measured = _round(f"recovery-{number}", Path(folder), broker.bootstrap_servers, given)
            steps = " ".join(f"{measured[name]:>14.1f}" for name in _STEPS)
            print(f"{number + 1:>5} {measured['rows']:>10.0f} {steps}", flush=True)
    print("target " + ", ".join(f"{name} <= {seconds:g} s" for name, seconds in _TARGETS.items()))
    return 0


def _round(name: str, folder: Path, bootstrap_servers: str, given: argparse.Namespace) -> dict[str, float]:
    with running_job(name, folder / name, bootstrap_servers) as job:
        tables = TablesSettings(root=str(job.folder / "tables"))
        create_tables(tables)
        quotas = open_quota_table(tables)
        audit = EditAudit("bench", "localhost", "0", "recovery")
        quotas.alter([QuotaChange("<default>", "", {"producer_byte_rate": 10_000.0})], audit)
        load = Load(job, given.entities)
        try:
            return _killed_and_back(job, load, given.seconds)
        finally:
            load.close()


def _killed_and_back(job: RunningJob, load: Load, seconds: int) -> dict[str, float]:
    stop = Event()
    probe = Thread(target=load.probe_until, args=(stop,), daemon=True)
    job.start()
    for _ in range(seconds):
        load.send_second()
    _await_all_read(job)
    job.kill()
    killed_at, since = time.monotonic(), len(job.log)
    probe.start()
    try:
        reader = _reader_at_end(job)
        job.start(wait=False)
        _await_record(reader)
        first_record = time.monotonic() - killed_at
        reader.close()
        return {"first record": first_record, **_logged(job, since)}
    finally:
        stop.set()
        probe.join()


def _logged(job: RunningJob, since: int) -> dict[str, float]:
    """What the log says about a start. The line of the first batch comes after the batch's record."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not any("publish_ms=" in line for line in job.log[since:]) and time.monotonic() < deadline:
        time.sleep(0.1)

    def number(pattern: str) -> float:
        return float(re.findall(pattern, "\n".join(job.log[since:]))[0])

    batch_ms = sum(number(rf"{part}_ms=(\d+)") for part in ("collect", "append", "decide", "publish"))
    return {
        "rows": number(r"(\d+) rows"),
        "state load": number(r"tables and recovery ([\d.]+) s"),
        "spark session": number(r"spark session ([\d.]+) s"),
        "query": number(r"streaming query ([\d.]+) s"),
        "first batch": batch_ms / 1000,
    }


def _event(user: str, produced_bytes: int) -> bytes:
    rest = f',"user":"{user}","client_id":"c","produced_bytes":{produced_bytes}}}'
    return b'{"event_time_ms":' + _TIME + rest.encode()


def _await_all_read(job: RunningJob) -> None:
    """Wait until a batch has read the last message."""
    topic = f"{job.name}.usage"
    consumer: Any = KafkaConsumer(bootstrap_servers=job.bootstrap_servers)
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
    ends = {str(partition.partition): end for partition, end in consumer.end_offsets(partitions).items()}
    consumer.close()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        rows = job.table("batches", ["batch_id", "end_offsets"]).sort_by("batch_id")["end_offsets"].to_pylist()
        if rows and json.loads(rows[-1]).get(topic) == ends:
            return
        time.sleep(0.1)
    raise TimeoutError("\n".join(job.log[-20:]))


def _reader_at_end(job: RunningJob) -> Any:
    consumer: Any = KafkaConsumer(bootstrap_servers=job.bootstrap_servers, isolation_level="read_committed")
    topic = f"{job.name}.throttle"
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
    consumer.assign(partitions)
    consumer.seek_to_end(*partitions)
    for partition in partitions:
        consumer.position(partition)
    return consumer


def _await_record(consumer: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=100).values():
            if any(json.loads(record.value)["user"] == _PROBE for record in records):
                return
    message = "no record about the probe"
    raise TimeoutError(message)


if __name__ == "__main__":
    sys.exit(main())
