"""The time from SIGTERM to the end of the process: during its start, idle, under load, and in a backlog.

Each round starts the job, brings it into one of these states and sends SIGTERM. The load is 20 000 events per second in
arrays. The backlog is a million events in one micro-batch, which began a second before.

    python -m bench.stop [--rounds 3] [--backlog 1000000]

The target is 5 s. Every round must end with exit code 0.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaProducer

from bench.machine import machine_line
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from tests.integration.running_job import RunningJob, running_job

_TARGET_SECONDS: Final = 5.0
_EVENTS_PER_SECOND: Final = 20_000
_CLIENTS: Final = 10_000
_ARRAY_LENGTH: Final = 100
_STARTING_SECONDS: Final = 4.0
"""After the process has begun: its JVM is up, the session is not."""


def main() -> int:
    """Measure, and print the machine and a table. Ends with 1 if a job did not end with 0."""
    parser = argparse.ArgumentParser(description="From SIGTERM to the end of the process.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backlog", type=int, default=1_000_000, help="events in the batch it is stopped in")
    given = parser.parse_args()
    fetch()
    cases: dict[str, Callable[[RunningJob], float]] = {
        "while it starts": _starting,
        "idle": _idle,
        "under load": _under_load,
        "in a backlog": lambda job: _in_a_backlog(job, given.backlog),
    }
    print(f"{machine_line()}\n{'':<16} median    max   seconds (target {_TARGET_SECONDS:g})", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedBroker(Path(folder) / "broker") as broker,
        running_job("stop", Path(folder), broker.bootstrap_servers) as job,
    ):
        for name, case in cases.items():
            seconds = [case(job) for _ in range(given.rounds)]
            print(f"{name:<16} {median(seconds):>6.1f} {max(seconds):>6.1f}", flush=True)
    return 0


def _starting(job: RunningJob) -> float:
    job.start(wait=False)
    time.sleep(_STARTING_SECONDS)
    return _stop(job)


def _idle(job: RunningJob) -> float:
    job.start()
    time.sleep(2)
    return _stop(job)


def _under_load(job: RunningJob) -> float:
    ended, since = Event(), len(job.log)
    load = Thread(target=_send_steadily, args=(job, ended), daemon=True)
    load.start()
    try:
        job.start()
        job.wait_for_line("batch_id=", since=since)
        time.sleep(3)
        return _stop(job)
    finally:
        ended.set()
        load.join()


def _in_a_backlog(job: RunningJob, events: int) -> float:
    producer = _producer(job)
    for first in range(0, events, _ARRAY_LENGTH):
        producer.send(f"{job.name}.usage", _array(first))
    producer.close()
    job.start()
    time.sleep(1)
    return _stop(job)


def _send_steadily(job: RunningJob, ended: Event) -> None:
    producer, sent = _producer(job), 0
    while not ended.wait(_ARRAY_LENGTH / _EVENTS_PER_SECOND):
        producer.send(f"{job.name}.usage", _array(sent))
        sent += _ARRAY_LENGTH
    producer.close()


def _producer(job: RunningJob) -> Any:
    return KafkaProducer(bootstrap_servers=job.bootstrap_servers, linger_ms=5)


def _array(first: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    clients = (number % _CLIENTS for number in range(first, first + _ARRAY_LENGTH))
    events = (
        f'{{"event_time_ms":{now_ms},"user":"u{one % 97}","client_id":"c{one}","produced_bytes":1}}' for one in clients
    )
    return f"[{','.join(events)}]".encode()


def _stop(job: RunningJob) -> float:
    began = time.monotonic()
    code = job.stop()
    seconds = time.monotonic() - began
    if code:
        sys.exit("\n".join([f"the job must end with 0; got {code}:", *job.log[-20:]]))
    return seconds


if __name__ == "__main__":
    sys.exit(main())
