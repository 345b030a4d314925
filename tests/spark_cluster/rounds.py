"""What is played on a cluster: the same usage locally and there, and workers that are killed under load."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.rig import Rig, rig
from tests.faults.verdict import Verdict
from tests.spark_cluster.standalone import HOST, StandaloneCluster
from tests.waiting import wait_until

TABLES: Final = ("usage", "decisions", "dead_letters")
"""What two jobs must have in common."""
_OF_ONE_JOB: Final = ("query_id", "decision_id")
"""Columns that name the job, or are made of its name."""
_PRELOAD_SECONDS: Final = 20.0
_BETWEEN_KILLS_SECONDS: Final = 4.0
_SAME_CUT: Final = {
    # The usage is there before the first job starts, so both cut it into the same batches.
    "KQUOTA_STREAM__MAX_OFFSETS_PER_TRIGGER": "150",
    "KQUOTA_STREAM__MAX_DECISION_AGE_MS": "3600000",
}
KILLED_AT_LEAST: Final = {
    **{"messages": 300, "batches": 10, "usage": 200, "dead_letters": 20},
    **{"decisions": 10, "holds": 10, "begins": 5, "renewals": 5, "checks": 10, "publish_seq": 20, "topic": 20},
}
"""What the verifier must have compared of a round with kills."""
SAME_AT_LEAST: Final = {"messages": 300, "batches": 5, "usage": 200, "dead_letters": 20, "decisions": 10}
"""What it must have compared of each of the two jobs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a local job and a job on a cluster have made of the same usage.

    Attributes:
        rows: How many rows each table has, by name.
        differing: How many rows only one of the two has, by name.
        verdicts: The verifier's: of the local job, and of the one on the cluster.
    """

    rows: dict[str, int]
    differing: dict[str, int]
    verdicts: tuple[Verdict, Verdict]


@dataclass(frozen=True, slots=True)
class Killed:
    """A job whose workers were killed: for each kill, when the first batch that began after it had ended."""

    recovery_seconds: list[float]
    verdict: Verdict


def on_cluster(cluster: StandaloneCluster) -> dict[str, str]:
    """The variables of a job on the cluster."""
    return {
        "KQUOTA_SPARK__MASTER": cluster.master,
        "KQUOTA_SPARK__CONF": json.dumps({"spark.executor.memory": "600m"}),
        "SPARK_LOCAL_IP": HOST,
    }


def play_same(cluster: StandaloneCluster, folder: Path, bootstrap_servers: str, seed: int) -> Comparison:
    """Let two jobs read the same topic, one after the other: a local one, and one on the cluster."""
    with _rig(f"local-{seed}", folder, bootstrap_servers, _SAME_CUT) as local:
        local.begin_load(seed)
        time.sleep(_PRELOAD_SECONDS)
        local.end_load()
        _run_dry(local)
        topic = {"KQUOTA_KAFKA__USAGE_TOPIC": local.job.usage_topic}
        with _rig(f"there-{seed}", folder, bootstrap_servers, {**_SAME_CUT, **topic, **on_cluster(cluster)}) as there:
            _run_dry(there)
            rows = {name: (_rows(local, name), _rows(there, name)) for name in TABLES}
            return Comparison(
                rows={name: one.total() for name, (one, _) in rows.items()},
                differing={name: ((one - other) + (other - one)).total() for name, (one, other) in rows.items()},
                verdicts=(local.verdict(SAME_AT_LEAST), there.verdict(SAME_AT_LEAST)),
            )


def play_kills(cluster: StandaloneCluster, folder: Path, bootstrap_servers: str, seed: int, kills: int) -> Killed:
    """Kill a worker with its executor under load, so many times in a row; each time a new worker takes its place."""
    recovery_seconds = []
    with _rig(f"killed-{seed}", folder, bootstrap_servers, on_cluster(cluster)) as rigged:
        job = rigged.job
        rigged.begin_load(seed)
        rigged.start()
        for _ in range(kills):
            last = len(cluster.workers) - 1
            wait_until(lambda last=last: bool(cluster.executors(last)), "an executor of the worker")  # type: ignore[misc]
            _await_batches(rigged, 20)  # the driver knows it some batches later
            began = time.monotonic()
            cluster.kill_worker(last)
            _await_batches(rigged, 1)  # the batch that ends first had begun before
            recovery_seconds.append(time.monotonic() - began)
            cluster.add_worker()
        time.sleep(_BETWEEN_KILLS_SECONDS)
        rigged.end_load()
        rigged.drain()
        job.stop()
        return Killed(recovery_seconds, rigged.verdict(KILLED_AT_LEAST))


@contextmanager
def _rig(name: str, folder: Path, bootstrap_servers: str, overrides: dict[str, str]) -> Iterator[Rig]:
    place = folder / name
    place.mkdir(parents=True)
    with rig(name, place, bootstrap_servers, **overrides) as rigged:
        yield rigged


def _run_dry(rigged: Rig) -> None:
    rigged.start()
    rigged.drain()
    code = rigged.job.stop()
    assert code == 0, "\n".join(rigged.job.log[-40:])


def _rows(rigged: Rig, name: str) -> Counter[tuple[str, ...]]:
    """All rows without what names the job."""
    table = rigged.job.table(name)
    rows = table.drop_columns([column for column in _OF_ONE_JOB if column in table.column_names]).to_pylist()
    return Counter(tuple(map(repr, row.values())) for row in rows)


def _await_batches(rigged: Rig, more_than: int) -> None:
    """Wait until more batches than this have ended from now on."""
    log, since = rigged.job.log, len(rigged.job.log)
    rigged.job.wait_until(lambda: sum(" batch_id=" in line for line in log[since:]) > more_than, "batches")
