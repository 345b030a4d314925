"""A replay with the quotas that were in force finds what the job really did, throttle by throttle."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from pipeline.replay.request import Coverage, ReplayRequest, live_timeline, newest_start
from pipeline.replay.usage_batches import Outcome, recorded_outcomes
from pipeline.replay.what_if import run
from schemas.names import ClientKey
from tests.faults.hand_job import HandJob

TRIGGER_MS, TICK_MS = 200, 10
ALICE, BOB, DAVE = (ClientKey("", user, "etl") for user in ("alice", "bob", "dave"))
RATE = 10_000.0


def event(job: HandJob, key: ClientKey, share: float, span_ms: int = TRIGGER_MS) -> dict[str, Any]:
    produced = round(RATE * share * span_ms / 1000)
    at_ms = job.clock.wall_ms + span_ms - 1
    return {"event_time_ms": at_ms, "user": key.user, "client_id": key.client_id, "produced_bytes": produced}


def replayed_and_recorded(
    job: HandJob, since_ms: int = 0, has_start: bool = False
) -> tuple[dict[ClientKey, Outcome], dict[ClientKey, Outcome]]:
    settings, root = job.settings, job.settings.tables.root
    covered = Coverage.of(root, "usage", since_ms, 10**14)
    timelines = (live_timeline(job.quota_table, job.quotas, 0),)
    start = newest_start(root, settings.engine, covered.since_ms) if has_start else None
    ends = covered.since_ms, covered.until_ms
    request = ReplayRequest(
        root, "usage", "cluster", settings, *ends, timelines, time_epoch=covered.time_epoch, start=start
    )
    (live,) = run(request, lambda done, whole: None)
    return live.outcomes, recorded_outcomes(request, live.outcomes)


@pytest.fixture(scope="module")
def indebted(tmp_path_factory: pytest.TempPathFactory) -> tuple[HandJob, int]:
    """A job without an edit, and the instant at which bob stops: for so long he was 6 % over his quota that he owes
    more than a warm-up finds. Alice spends 50 s of her quota shortly before it, then waits.
    """
    job = HandJob(tmp_path_factory.mktemp("indebted"), {"producer_byte_rate": RATE}, in_memory=True)
    job.start()
    stopped_ms = 0
    for second in [*range(230), *np.arange(230, 265, TRIGGER_MS / 1_000)]:
        span_ms = 1_000 if second < 230 else TRIGGER_MS
        used = {ALICE: 25.0 if 236 <= second < 238 else 0, BOB: 1.06 if second < 240 else 0, DAVE: 0.2}
        job.send(json.dumps([event(job, key, share, span_ms) for key, share in used.items() if share]).encode())
        end_ms = job.clock.steady_ms + span_ms
        while (left_ms := end_ms - job.clock.steady_ms) > 0:  # each look at its very instant
            due_ms = job.purgatory.next_due_ms()
            job.clock.advance(left_ms if due_ms is None else min(max(due_ms - job.clock.steady_ms, 1), left_ms))
            job.purgatory.tick()
        job.step()
        stopped_ms = job.decider.last.evaluated_at_ms if second < 240 else stopped_ms
    job.store()
    return job, stopped_ms


@pytest.mark.parametrize("second", [-3, -1, 0])
def test_a_range_that_begins_in_a_hold_is_replayed_to_the_ms(indebted: tuple[HandJob, int], second: int) -> None:
    job, stopped_ms = indebted
    since_ms = stopped_ms + second * 1_000
    live, happened = replayed_and_recorded(job, since_ms, has_start=True)
    assert min(happened[ALICE].throttle_ms, happened[BOB].throttle_ms) > 5_000
    for client in (ALICE, BOB):
        assert live[client].throttle_ms == happened[client].throttle_ms, client
        assert live[client].windows == happened[client].windows
    assert live[DAVE].throttle_ms == 0
    without, _ = replayed_and_recorded(job, since_ms)
    assert without[BOB].throttle_ms < 0.9 * happened[BOB].throttle_ms


def test_where_a_clock_was_set_back_what_came_since_is_replayed(tmp_path: Path) -> None:
    job = HandJob(tmp_path, {"producer_byte_rate": RATE}, in_memory=True)
    job.start()
    for seconds, share in ((5, 4), (0, 0), (4, 4), (5, 0.1)):
        if not seconds:
            job.set_clocks(-20_000, -20_000)
        for _ in range(seconds * 1000 // TRIGGER_MS):
            job.send(json.dumps([event(job, key, used) for key, used in ((ALICE, share), (DAVE, 0.1))]).encode())
            for _ in range(TRIGGER_MS // TICK_MS):
                job.clock.advance(TICK_MS)
                job.purgatory.tick()
            job.step()
    job.store()
    decided = job.rows("decisions").filter((pc.field("client_id") == "etl") & (pc.field("throttle_time_ms") > 0))
    window_ms = job.settings.engine.sample_window_ms
    windows: tuple[set[int], set[int]] = set(), set()
    for row in decided.to_pylist():
        windows[row["time_epoch"]].add(row["evaluated_at_ms"] // window_ms)
    live, happened = replayed_and_recorded(job)
    assert live[ALICE].windows == happened[ALICE].windows == len(windows[1])
    assert min(map(len, windows)) > 0
    assert live[ALICE].throttle_ms > 5_000
    assert live[DAVE].throttle_ms == 0
