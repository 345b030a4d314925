"""A replay with the quotas that were in force finds what the job really did, throttle by throttle."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from pipeline.replay.request import Coverage, ReplayRequest, Timeline, live_timeline, newest_start
from pipeline.replay.usage_batches import Outcome, Source, recorded_outcomes
from pipeline.replay.what_if import run
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey
from tests.faults.hand_job import HandJob

TRIGGER_MS, TICK_MS = 200, 10
ALICE, BOB, CAROL, DAVE = (ClientKey("", user, "etl") for user in ("alice", "bob", "carol", "dave"))
RATE = 10_000.0


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> HandJob:
    """Thirty-two seconds of a job: alice at five times her quota while nothing holds her, bob always at 1.3 times his,
    carol in bursts, dave within his quota. The quotas are lowered and raised on the way.
    """
    job = HandJob(tmp_path_factory.mktemp("job"), {"producer_byte_rate": RATE}, in_memory=True)
    job.start()
    draw = Random(1)
    for step in range(160):
        if step in {60, 120}:
            job.edit({"producer_byte_rate": RATE * (0.5 if step == 60 else 2)})
        held = {ClientKey("", user, "etl") for user in job.purgatory.held()["user"].to_pylist()}
        used = {
            ALICE: 0 if ALICE in held else 5.0,
            BOB: 1.3,
            CAROL: 8.0 if step % 100 < 12 else 0,
            DAVE: draw.choice((0.1, 0.3)),
        }
        job.send(json.dumps([event(job, key, share) for key, share in used.items() if share]).encode())
        for _ in range(TRIGGER_MS // TICK_MS):
            job.clock.advance(TICK_MS)
            job.purgatory.tick()
        job.step()
    job.store()
    return job


def event(job: HandJob, key: ClientKey, share: float, span_ms: int = TRIGGER_MS) -> dict[str, Any]:
    produced = round(RATE * share * span_ms / 1000)
    at_ms = job.clock.wall_ms + span_ms - 1
    return {"event_time_ms": at_ms, "user": key.user, "client_id": key.client_id, "produced_bytes": produced}


def replayed_and_recorded(
    job: HandJob, since_ms: int = 0, until_ms: int = 10**14, source: Source = "usage", has_start: bool = False
) -> tuple[dict[ClientKey, Outcome], dict[ClientKey, Outcome]]:
    settings, root = job.settings, job.settings.tables.root
    covered = Coverage.of(root, source, since_ms, until_ms)
    # Seconds have no version of the quotas, and commits are dated by the clock of this machine.
    timeline = (
        live_timeline(job.quota_table, job.quotas, 0) if source == "usage" else Timeline((0,), (job.quotas.pin(),))
    )
    request = ReplayRequest(
        root,
        source,
        "cluster",
        settings,
        covered.since_ms,
        covered.until_ms,
        (timeline,),
        time_epoch=covered.time_epoch,
        start=newest_start(root, settings.engine, covered.since_ms) if has_start else None,
    )
    (live,) = run(request, lambda done, whole: None)
    return live.outcomes, recorded_outcomes(request, live.outcomes)


def test_clients_are_held_as_long_as_they_were(job: HandJob) -> None:
    live, happened = replayed_and_recorded(job)
    assert {client for client, outcome in happened.items() if outcome.throttle_ms} == {ALICE, BOB, CAROL}
    for client, outcome in happened.items():
        assert live[client].throttle_ms == pytest.approx(outcome.throttle_ms, rel=0.01), client
        assert live[client].windows == outcome.windows
    assert live[DAVE].throttle_ms == 0


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
def test_a_range_that_begins_while_clients_are_held_is_replayed_to_the_ms(
    indebted: tuple[HandJob, int], second: int
) -> None:
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


def test_a_start_is_the_same_for_replays_together_and_alone(indebted: tuple[HandJob, int]) -> None:
    job, since_ms = indebted
    settings, root = job.settings, job.settings.tables.root
    row = {"user": "<default>", "client_id": "", "mode": "enforce", "producer_byte_rate": 2 * RATE}
    quotas = [Timeline((0,), (one,)) for one in (job.quotas.pin(), QuotaSnapshot.from_rows([row], 0))]
    rule = settings, since_ms, since_ms + 20_000
    start = newest_start(root, settings.engine, since_ms)
    requests = [
        ReplayRequest(root, "usage", "cluster", *rule, timelines, start=start)
        for timelines in (tuple(quotas), tuple(quotas[:1]), tuple(quotas[1:]))
    ]
    replays = (run(request, lambda done, whole: None) for request in requests)
    together, *alone = ([one.outcomes for one in found] for found in replays)
    assert together == [found for (found,) in alone]
    assert 0 < together[1][BOB].throttle_ms < 0.7 * together[0][BOB].throttle_ms, "a raise halves what he owes"


def spend(job: HandJob, seconds: float, share: float) -> None:
    """Let time pass: alice uses so many times her quota, dave a tenth of it."""
    for _ in range(round(seconds * 1000 / TRIGGER_MS)):
        job.send(json.dumps([event(job, ALICE, share), event(job, DAVE, 0.1)]).encode())
        for _ in range(TRIGGER_MS // TICK_MS):
            job.clock.advance(TICK_MS)
            job.purgatory.tick()
        job.step()


def test_where_a_clock_was_set_back_what_came_since_is_replayed(tmp_path: Path) -> None:
    job = HandJob(tmp_path, {"producer_byte_rate": RATE}, in_memory=True)
    job.start()
    spend(job, 5, 4)
    job.set_clocks(-20_000, -20_000)
    spend(job, 4, 4)
    spend(job, 5, 0.1)
    job.store()
    decided = job.rows("decisions").filter((pc.field("client_id") == "etl") & (pc.field("throttle_time_ms") > 0))
    window_ms = job.settings.engine.sample_window_ms
    of_epoch = [{row["evaluated_at_ms"] // window_ms for row in decided.to_pylist() if row["time_epoch"] == epoch}
                for epoch in (0, 1)]  # fmt: skip
    live, happened = replayed_and_recorded(job)
    assert live[ALICE].windows == happened[ALICE].windows == len(of_epoch[1])
    assert min(map(len, of_epoch)) > 0
    assert live[ALICE].throttle_ms > 5_000
    assert live[DAVE].throttle_ms == 0
