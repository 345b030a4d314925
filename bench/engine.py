"""How long the quota engine needs for one batch, compared with a plain NumPy sum of the same rows.

    python -m bench.engine [--entities 10000 100000 1000000] [--rounds 9]

Every entity has a user and a client-id of its own (12 and 18 bytes). All three quota types are bounded by the level
(default user, default client-id), so every entity has sensors of its own. A batch has one row per entity, in a new
random order, with usage of all types. No entity is above its quota, except in the line "5 % violated". The engine has
seen all entities before. The figures are CPU time of the process, the median of the rounds, after two batches that fill
the engine.

    record        a batch in the same sample window as the last one
    new window    a batch that begins a new sample window
    5 % violated  record, with every twentieth entity above all three quotas
    evaluate      what all entities owe, for all three types
    NumPy sum     only the sums: three bincounts of rows that come with the number of their entity; no rates, no quotas
"""

from collections import defaultdict
from collections.abc import Callable
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

START_MS: Final = 1_795_000_000_000
WINDOW_MS: Final = 1000
BOUNDS: Final = {"producer_byte_rate": 1e6, "consumer_byte_rate": 1e6, "request_percentage": 50.0}
OVER_QUOTA_BYTES: Final = 100_000_000
OVER_QUOTA_NS: Final = 100_000_000_000

Int64s = npt.NDArray[np.int64]


class Load:
    """Batches of one row per entity, each in a new random order."""

    def __init__(self, entities: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._users = pa.array([f"user-{i:07d}" for i in range(entities)])
        self._clients = pa.array([f"client-{i % 977:04d}-{i:06d}" for i in range(entities)])
        self._entities = entities

    def batch(self, at_ms: int, violated: float = 0.0) -> tuple[pa.Table, Int64s]:
        """A batch whose events happened in the 250 ms before an instant, and the number of each row's entity."""
        order = self._random.permutation(self._entities)
        rows = pa.array(order)
        window_ms = at_ms // WINDOW_MS * WINDOW_MS
        over = order < violated * self._entities

        def used(up_to: int, if_over: int) -> Int64s:
            return np.where(over, if_over, self._random.integers(0, up_to, self._entities))

        columns = {
            "sample_start_ms": np.full(self._entities, window_ms),
            "user": self._users.take(rows),
            "client_id": self._clients.take(rows),
            "produced_bytes": used(10_000, OVER_QUOTA_BYTES),
            "fetched_bytes": used(10_000, OVER_QUOTA_BYTES),
            "io_time_ns": used(100_000, OVER_QUOTA_NS),
            "network_time_ns": used(100_000, 0),
            "last_event_ms": np.maximum(at_ms - self._random.integers(0, 250, self._entities), window_ms),
        }
        return pa.table(columns), order


def group_sum(batch: pa.Table, entity: Int64s) -> None:
    time_ns = batch["io_time_ns"].to_numpy() + batch["network_time_ns"].to_numpy()
    for used in (batch["produced_bytes"].to_numpy(), batch["fetched_bytes"].to_numpy(), time_ns):
        np.bincount(entity, used)


def measure(entities: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    """The seconds of each round for one number of entities, and the engine's memory per sensor in bytes."""
    load = Load(entities, seed=entities)
    quota = {"user": "<default>", "client_id": "<default>", **BOUNDS}
    engine, hot = (QuotaEngine(sample_window_ms=WINDOW_MS) for _ in range(2))
    for used in (engine, hot):
        used.load_quotas(QuotaSnapshot.from_rows([quota], version=1))
        for before_ms in (2000, 1000):
            used.record(load.batch(START_MS - before_ms)[0], START_MS - before_ms)
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, call: Callable[..., object], *arguments: object) -> None:
        spent[name].append(cpu_spent(partial(call, *arguments)))

    for round_ in range(rounds):
        at_ms = START_MS + round_ * WINDOW_MS
        timed("new window", engine.record, load.batch(at_ms)[0], at_ms)
        batch, order = load.batch(at_ms + 250)
        timed("record", engine.record, batch, at_ms + 250)
        timed("NumPy sum", group_sum, batch, order)
        timed("evaluate", engine.evaluate, batch, at_ms + 250)
        hot.record(load.batch(at_ms, 0.05)[0], at_ms)
        timed("5 % violated", hot.record, load.batch(at_ms + 250, 0.05)[0], at_ms + 250)
    sensors = engine._sensors
    return spent, memory_of((sensors.by_key, sensors.numbers, sensors.entities)) / engine.num_sensors


def memory_of(part: object) -> int:
    """The memory of all columns in it, in bytes, spare room included."""
    if isinstance(part, np.ndarray | pa.Table):
        return int(part.nbytes)
    inner = part if isinstance(part, dict) else dict(enumerate(part)) if isinstance(part, list | tuple) else None
    return sum(map(memory_of, (vars(part) if inner is None and hasattr(part, "__dict__") else inner or {}).values()))


def main() -> None:
    asked = arguments(__doc__, entities=[10_000, 100_000, 1_000_000], rounds=9)
    print(f"NumPy {np.__version__}")
    print(f"milliseconds of CPU; median of {asked.rounds} rounds")
    names = ("record", "new window", "5 % violated", "evaluate", "NumPy sum")
    print(table(["entities", *names, "bytes a sensor"]))
    for entities in asked.entities:
        spent, sensor_bytes = measure(entities, asked.rounds)
        figures = (median(spent[name]) * 1000 for name in names)
        print(row([f"{entities:,}", *figures, f"{sensor_bytes:.0f}"], digits=2))


if __name__ == "__main__":
    main()
