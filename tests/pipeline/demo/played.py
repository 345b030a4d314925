"""The folder of a demo in which a job has run: real tables, without a broker and Spark."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.demo.folder import DemoFolder, write_candidate, write_settings
from pipeline.settings.model import EngineSettings, KafkaSettings
from tests.fakes.clock import ManualClock
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob

OFFENDER = ("alice", "etl")


def new_job(root: Path) -> HandJob:
    job = HandJob(root, RATES)
    job.settings = job.settings.model_copy(
        update={"engine": EngineSettings(), "run_dir": root, "kafka": KafkaSettings(bootstrap_servers="127.0.0.1:1")}
    )
    job.clock = ManualClock(time.time_ns() // 1_000_000 - 60_000)
    job.start()
    return job


def throttle_one(job: HandJob) -> None:
    for _ in range(3):
        user, client_id = OFFENDER
        event = f'{{"event_time_ms":{job.clock.wall_ms},"user":"{user}","client_id":"{client_id}"'
        job.send(f'{event},"produced_bytes":100000000}}'.encode())
        job.step()
        job.clock.advance(1_000)


@contextmanager
def played_demo(root: Path) -> Iterator[tuple[DemoFolder, HandJob]]:
    """A demo's folder as it is while the demo runs, and its job."""
    folder = DemoFolder(root)
    with folder.claimed():
        job = new_job(root)
        write_settings(folder, job.settings)
        write_candidate(folder)
        yield folder, job
