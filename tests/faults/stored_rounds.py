"""One round with the tables in an object store: load, a job that is killed at random moments, and a verdict."""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.faults.rig import Rig, rig
from tests.object_store import BUCKET, ObjectStore

KILLS: Final = 2
LIFE_SECONDS: Final = (6.0, 14.0)
AT_LEAST: Final = {
    **{"messages": 100, "batches": 10, "usage": 50, "dead_letters": 3, "ledger": 100},
    **{"decisions": 5, "renewals": 3, "releases": 3, "publish_seq": 10, "topic": 10},
}
"""What the verifier must have compared of a round."""


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """The result of one round.

    Attributes:
        recovery_seconds: From the start after a kill to the end of the first micro-batch, the longest.
        verdict: The verifier's JSON.
    """

    recovery_seconds: float
    verdict: dict[str, Any]


def play_stored(
    folder: Path, store: ObjectStore, bootstrap_servers: str, seed: int, is_checkpoint_stored: bool
) -> StoredOutcome:
    """Run one round.

    Args:
        folder: For the ledger, the lock and a local checkpoint.
        store: For the tables.
        bootstrap_servers: Of a broker that others may share.
        seed: Of the load, and of the moments of the kills.
        is_checkpoint_stored: The checkpoint is in the store too.

    Raises:
        AssertionError: The job did not come to rest.
    """
    draw, name = random.Random(seed), f"stored-{seed}-{'s3' if is_checkpoint_stored else 'local'}"
    place = folder / name
    place.mkdir(parents=True)
    overrides = {**store.environment, "KQUOTA_TABLES__ROOT": f"s3://{BUCKET}/{name}/tables"}
    if is_checkpoint_stored:
        overrides["KQUOTA_STREAM__CHECKPOINT"] = f"s3://{BUCKET}/{name}/checkpoint"
    with rig(name, place, bootstrap_servers, None, **overrides) as rigged:
        # The verifier knows nothing of kquota's settings.
        rigged.environment = {**os.environ, **store.aws_environment}
        rigged.begin_load(seed)
        rigged.start()
        recoveries = [_kill_and_start(rigged, draw) for _ in range(KILLS)]
        time.sleep(LIFE_SECONDS[0])
        rigged.end_load()
        rigged.drain()
        rigged.job.stop()
        return StoredOutcome(max(recoveries), rigged.verdict(AT_LEAST))


def _kill_and_start(rigged: Rig, draw: random.Random) -> float:
    time.sleep(draw.uniform(*LIFE_SECONDS))
    rigged.job.kill()
    return rigged.start()
