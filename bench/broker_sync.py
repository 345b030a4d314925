"""What a period of the sync of the brokers' quotas costs: CPU time of `quota.broker_sync`, for 10 000 entities.

    python -m bench broker_sync

Each entity is a user with a quota, and has usage on every broker in every second. Without changes all stay far below
their quotas, or near them. With all changing, every one exceeds its quota by half for a minute, and then is idle.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.machine import machine_line
from quota.alter_budget import AlterBudget
from quota.broker_sync import BrokerSync
from quota.snapshot import QuotaSnapshot

ENTITIES: Final = 10_000
BOUND: Final = 1_000_000.0
START_MS: Final = 1_700_000_000_000
WARM_UP: Final = 14
ROUNDS: Final = 9

Load = Callable[[int, int], float]
"""What each entity uses per second and broker, as a part of T: by second and number of brokers."""

LOADS: Final[dict[str, Load]] = {
    "without changes, a fifth of T is used": lambda second, brokers: 0.2 / brokers,
    "without changes, 0.9 of T is used": lambda second, brokers: 0.9 / brokers,
    "all changing: 1.5 T for a minute, nothing for two": lambda second, brokers: 1.5 / brokers * (second % 180 < 60),
}


def usage(users: pa.Array, broker_ids: list[str], now_ms: int, amount: float) -> pa.Table:
    """A second in which every user uses so many bytes on every broker."""
    rows = len(users) * len(broker_ids)
    user_of_row = np.repeat(np.arange(len(users), dtype=np.int32), len(broker_ids))
    broker_of_row = np.tile(np.arange(len(broker_ids), dtype=np.int32), len(users))
    nothing = pa.nulls(rows, pa.int64())
    return pa.table(
        {
            "sample_start_ms": np.full(rows, now_ms),
            "broker_id": pa.DictionaryArray.from_arrays(pa.array(broker_of_row), pa.array(broker_ids)).cast(
                pa.string()
            ),
            "user": pa.DictionaryArray.from_arrays(pa.array(user_of_row), users).cast(pa.string()),
            "client_id": pa.repeat("app", rows),
            "produced_bytes": np.full(rows, int(amount)),
            "fetched_bytes": nothing,
            "io_time_ns": nothing,
            "network_time_ns": nothing,
            "last_event_ms": np.full(rows, now_ms + 900),
        }
    )


def seconds_of(brokers: int, load: Load, seconds: int) -> tuple[NDArray[np.float64], int]:
    """CPU time of every second in ms: to record its usage, and of its period with the answers; and how many writes."""
    broker_ids = [str(broker) for broker in range(brokers)]
    users = pa.array([f"user-{number:05}" for number in range(ENTITIES)])
    rows = [{"user": user, "client_id": "", "producer_byte_rate": BOUND} for user in users.to_pylist()]
    sync = BrokerSync(budget=AlterBudget(alters_per_second=2 * ENTITIES))
    sync.load_quotas(QuotaSnapshot.from_rows(rows, 1), mirror=False)
    sync.set_brokers(broker_ids, START_MS)
    sync.observe({}, START_MS)
    sync.confirm(sync.period(START_MS, START_MS), START_MS)
    spent, writes = np.zeros((seconds, 2)), 0
    for second in range(seconds):
        now_ms = START_MS + second * 1000
        amount = load(second, brokers) * BOUND
        table = usage(users, broker_ids, now_ms, amount) if amount else None
        began = time.process_time()
        if table is not None:
            sync.record(table)
        recorded = time.process_time()
        changes = sync.period(now_ms + 999, now_ms + 1000)
        sync.confirm(changes, now_ms + 1000)
        spent[second] = (recorded - began) * 1000, (time.process_time() - recorded) * 1000
        writes += len(changes)
    return spent, writes


def main() -> None:
    """Print the table."""
    print(
        f"CPU time of a second, {ENTITIES:,} entities with usage on all brokers, in ms (target without changes: 50)\n"
    )
    print("| brokers | load | record, median | period, median | period, longest | writes |")
    print("| --- | --- | --- | --- | --- | --- |")
    for brokers in (3, 30):
        for name, load in LOADS.items():
            seconds = 150 if name.startswith("all") and brokers == 3 else WARM_UP + ROUNDS
            spent, writes = seconds_of(brokers, load, seconds)
            after = spent if name.startswith("all") else spent[WARM_UP:]
            recorded, period = (median(after[:, column].tolist()) for column in (0, 1))
            print(f"| {brokers} | {name} | {recorded:.0f} | {period:.1f} | {after[:, 1].max():.0f} | {writes} |")
    print(f"\n{machine_line()}")


if __name__ == "__main__":
    main()
