"""How many files a reader has to open to follow a story: counted on runs of the real classes.

Who needs one more first asks which of them should hold the new part; only then the number is raised.
"""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.faults.hand_job import HandJob
from tests.waiting import wait_until

ROOT = f"{Path(__file__).parents[1]}/"
ROOMS = ("pipeline/", "quota/", "purgatory/", "schemas/")
# It writes every library's lines once an earlier test of this process has begun a program: no part of a story.
LOG = "pipeline/log.py"


def files_entered(run: Callable[[], object]) -> set[str]:
    """The files of kquota in which a function was called meanwhile, on any thread that began meanwhile too."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename.removeprefix(ROOT)
        if event == "call" and frame.f_code.co_name != "<module>" and name.startswith(ROOMS) and name != LOG:
            found.add(name)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return found


def use(job: HandJob, produced_bytes: int) -> None:
    event = {"event_time_ms": job.clock.wall_ms - 50, "user": "alice", "client_id": "etl", "broker_id": "1"}
    job.send(json.dumps([{**event, "produced_bytes": produced_bytes}]).encode())
    job.step()


def test_from_usage_to_a_record_and_from_an_edit_to_a_release(tmp_path: Path) -> None:
    """Without Spark, whose part is `stream/query` and `session`."""
    job = HandJob(tmp_path, {"producer_byte_rate": 1_000.0})
    job.start()
    for _ in range(3):
        use(job, 10)
        job.clock.advance(200)
    files = files_entered(lambda: use(job, 500_000))
    assert job.broker.records[-1].cause == "violation"
    assert len(files) <= 30, sorted(files)

    def edit() -> None:
        job.edit({"producer_byte_rate": 1e12})
        job.clock.advance(100)
        job.step()

    files = files_entered(edit)
    assert job.broker.records[-1].action == "release"
    assert len(files) <= 33, sorted(files)


def test_from_a_request_to_the_page_of_a_client(tmp_path: Path) -> None:
    from tests.pipeline.dashboard.shop import START_MS, lived_shop  # noqa: PLC0415
    from tests.pipeline.dashboard.test_api import client_of  # noqa: PLC0415

    client = client_of(lived_shop(tmp_path, START_MS))
    client.app.state.feed.start()
    wait_until(lambda: client.app.state.feed.state is not None, "the first look at the tables")
    answers: list[Any] = []
    asked = {"user": "alice", "client_id": "etl"}
    files = files_entered(lambda: answers.append(client.get("/api/v1/client", params=asked)))
    client.app.state.feed.close()
    assert answers[0].status_code == 200
    assert len(files) <= 24, sorted(files)
