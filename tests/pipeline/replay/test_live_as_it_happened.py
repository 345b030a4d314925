"""A replay with the quotas that were in force finds what the job really did, throttle by throttle."""

import json
from random import Random
from typing import Any

import pytest

from pipeline.replay.request import Coverage, Plan, ReplayRequest, live_timeline
from pipeline.replay.run import run
from pipeline.replay.usage_batches import Outcome, recorded_outcomes
from pipeline.throttle.assembly import nominal_slicing
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
    job = HandJob(tmp_path_factory.mktemp("job"), {"producer_byte_rate": RATE})
    job.start()
    draw = Random(1)
    for step in range(160):
        if step in {60, 120}:
            job.edit({"producer_byte_rate": RATE * (0.5 if step == 60 else 2)})
        held = {ClientKey(**row) for row in job.purgatory.held().select(ClientKey._fields).to_pylist()}
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
    return job


def event(job: HandJob, key: ClientKey, share: float) -> dict[str, Any]:
    produced = round(RATE * share * TRIGGER_MS / 1000)
    at_ms = job.clock.wall_ms + TRIGGER_MS - 1
    return {"event_time_ms": at_ms, "user": key.user, "client_id": key.client_id, "produced_bytes": produced}


def replayed_and_recorded(job: HandJob) -> tuple[dict[ClientKey, Outcome], dict[ClientKey, Outcome]]:
    settings, root = job.settings, job.settings.tables.root
    covered = Coverage.of(root, "usage", 0, 10**14)
    request = ReplayRequest(
        root,
        "usage",
        "cluster",
        settings.engine,
        nominal_slicing(settings),
        covered.since_ms,
        covered.until_ms,
        (live_timeline(job.quota_table, job.quotas, 0),),
    )
    ((live,), _) = run(Plan.of(request), lambda done, whole: None)
    window_ms = settings.engine.sample_window_ms
    return live.outcomes, recorded_outcomes(root, covered.since_ms, covered.until_ms, window_ms)


def test_clients_are_held_as_long_as_they_were(job: HandJob) -> None:
    live, happened = replayed_and_recorded(job)
    assert {client for client, outcome in happened.items() if outcome.throttle_ms} == {ALICE, BOB, CAROL}
    for client, outcome in happened.items():
        assert live[client].throttle_ms == pytest.approx(outcome.throttle_ms, rel=0.01), client
        assert live[client].windows == outcome.windows
    assert live[DAVE].throttle_ms == 0
