"""How long the quota engine needs for one batch, compared with a plain NumPy sum of the same rows.

    python -m bench.engine [--entities 100000 1000000] [--rounds 9]

Every entity has a user and a client-id of its own (12 and 18 bytes). All three quota types are bounded by the level
(default user, default client-id), so every entity has sensors of its own. A batch has one row per entity, in a new
random order, with usage of all types. The engine has seen all entities before. The figures are CPU time of the process,
the median of the rounds, after two batches that fill the engine.

    record        a batch in which no entity is above its quota; every fourth one begins a new sample window
    5 % violated  a batch with every twentieth entity above all three quotas
    in tenants    as record, with every hundred entities in a tenant that lends, none of them at its bound
    10 000 of it  the same with usage of 10 000 entities alone
    NumPy sum     only the sums: three bincounts of rows that come with the number of their entity; no rates, no quotas
"""

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.machine import arguments, cpu_spent
from bench.pages import row, table
from quota.engine import QuotaEngine
from quota.snapshot import QuotaSnapshot
from quota.tenants import Tenant, read_tenants

START_MS: Final = 1_795_000_000_000
TRIGGER_MS: Final = 250
WINDOW_MS: Final = 1000
QUOTA: Final = {
    **{"user": "<default>", "client_id": "<default>"},
    **{"producer_byte_rate": 1e6, "consumer_byte_rate": 1e6, "request_percentage": 50.0},
}
OVER_QUOTA: Final = 100_000_000_000
TARGETS_MS: Final = {100_000: 20, 1_000_000: 200}

Int64s = npt.NDArray[np.int64]


class Load:
    """Batches of one row per entity, each in a new random order."""

    def __init__(self, entities: int) -> None:
        self._random = np.random.default_rng(entities)
        self._users = pa.array([f"user-{i:07d}" for i in range(entities)])
        self._clients = pa.array([f"client-{i % 977:04d}-{i:06d}" for i in range(entities)])
        self._entities = entities

    def batch(self, at_ms: int, violated: float) -> tuple[pa.Table, Int64s]:
        """A batch whose events happened in the 250 ms before an instant, and the number of each row's entity."""
        order = self._random.permutation(self._entities)
        window_ms = at_ms // WINDOW_MS * WINDOW_MS
        over = order < violated * self._entities
        columns = {
            "sample_start_ms": np.full(self._entities, window_ms),
            "user": self._users.take(pa.array(order)),
            "client_id": self._clients.take(pa.array(order)),
            "last_event_ms": np.maximum(at_ms - self._random.integers(0, TRIGGER_MS, self._entities), window_ms),
        }
        for name in ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns"):
            columns[name] = np.where(over, OVER_QUOTA, self._random.integers(0, 10_000, self._entities))
        return pa.table(columns), order


def group_sum(batch: pa.Table, entity: Int64s) -> None:
    time_ns = batch["io_time_ns"].to_numpy() + batch["network_time_ns"].to_numpy()
    for used in (batch["produced_bytes"].to_numpy(), batch["fetched_bytes"].to_numpy(), time_ns):
        np.bincount(entity, used)


def tenants_of(entities: int) -> tuple[Tenant, ...]:
    """A tenant for every hundred users of a load. Its bound is half of what their own bounds are together."""
    bounds = {"producer_byte_rate": 5e7, "consumer_byte_rate": 5e7, "request_percentage": 2_500.0, "lend": True}
    return read_tenants(
        [{"tenant": f"t{at}", "user_patterns": [f"user-{at:05d}*"], **bounds} for at in range(entities // 100)], 0
    )


def measure(entities: int, rounds: int) -> list[float]:
    """The median milliseconds of record, with violations, with tenants, a part of that, and the sum alone."""
    load, spent = Load(entities), list[list[float]]()
    calm, hot, shared = (QuotaEngine(sample_window_ms=WINDOW_MS) for _ in range(3))
    quotas = QuotaSnapshot.from_rows([QUOTA], version=1)
    for engine in (calm, hot):
        engine.load_quotas(quotas)
    shared.load_quotas(replace(quotas, tenants=tenants_of(entities), tenants_version=1))
    for turn in range(rounds + 2):
        at_ms = START_MS + turn * TRIGGER_MS
        batch, order = load.batch(at_ms, violated=0.0)
        violated, _ = load.batch(at_ms, violated=0.05)
        calls = (
            partial(calm.record, batch, at_ms),
            partial(hot.record, violated, at_ms),
            partial(shared.record, batch, at_ms),
            partial(shared.record, batch.slice(0, 10_000), at_ms),
            partial(group_sum, batch, order),
        )
        spent.append([1_000 * cpu_spent(call) for call in calls])
    return [median(figures) for figures in zip(*spent[2:], strict=True)]


def main() -> None:
    asked = arguments(__doc__, entities=list(TARGETS_MS), rounds=9)
    print(f"milliseconds of CPU; median of {asked.rounds} rounds\n")
    print(table(["entities", "record", "target", "5 % violated", "in tenants", "10 000 of it", "NumPy sum"]))
    for entities in asked.entities:
        record, *others = (f"{ms:.2f}" for ms in measure(entities, asked.rounds))
        print(row([f"{entities:,}", record, str(TARGETS_MS.get(entities, "")), *others]), flush=True)


if __name__ == "__main__":
    main()
