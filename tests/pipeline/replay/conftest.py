"""A job that has had all that is hard to replay: late usage, gaps, edits, a start with other settings."""

import random
from typing import Any

import pytest

from pipeline.settings.model import EngineSettings
from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.replay.kept import KeptJob, roll_up
from tests.quota.factories import usage_row

TRIGGER_MS = 4_000


def bound(user: str, client_id: str = "", **values: Any) -> QuotaChange:
    return QuotaChange(user, client_id, values)


QUOTAS = (
    bound("alice", producer_byte_rate=40_000.0),
    bound("<default>", "<default>", producer_byte_rate=60_000.0, consumer_byte_rate=3_000.0),
    bound("bob", "etl", request_percentage=0.01, mode="shadow"),
)
EDITS = (
    bound("alice", "etl", producer_byte_rate=20_000.0),
    bound("bob", producer_byte_rate=10_000.0, request_percentage=0.02),
    bound("alice", producer_byte_rate=None),
    bound("bob", mode="exempt"),
    bound("", "etl", consumer_byte_rate=500.0, mode="shadow"),
    bound("bob", mode="enforce"),
    bound("<default>", "<default>", producer_byte_rate=15_000.0),
)


def random_rows(draw: random.Random, now_ms: int) -> list[dict[str, Any]]:
    """What some of the clients used since the last trigger, some of it late, some types not at all."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for _ in range(draw.randrange(8)):
        user, client_id = draw.choice(("alice", "bob", "carol")), draw.choice(("etl", "app", ""))
        at_ms = now_ms - draw.choice((0, 300, 900, 1_500, 5_000, 10_800, 13_000, 40_000))
        amounts: dict[str, Any] = {
            "produced_bytes": draw.choice((None, 0, 9_000, 200_000)),
            "fetched_bytes": draw.choice((None, 0, 50_000)),
            "io_time_ns": draw.choice((None, 2_000_000)),
            "network_time_ns": draw.choice((None, 1_000_000)),
        }
        rows[user, client_id, at_ms // 1_000] = usage_row(at_ms, user=user, client_id=client_id, **amounts)
    return list(rows.values())


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptJob:
    """Twenty minutes of random clients; quotas edited seven times; restarted in mid-way with other engine settings."""
    draw = random.Random(7)
    job = KeptJob(str(tmp_path_factory.mktemp("tables")), *QUOTAS)
    edits = list(EDITS)
    for trigger in range(1_200_000 // TRIGGER_MS):
        job.clock.advance(TRIGGER_MS)
        if trigger % 40 == 39:
            job.edit(edits.pop(0))
        if trigger == 150:
            job.flush()
            job.start(EngineSettings(num_samples=6, producer_byte_rate_cap=700))
        job.decided += job.batch(random_rows(draw, job.clock.wall_ms))
    job.flush()
    roll_up(job.root)
    return job
