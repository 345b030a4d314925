"""How long it takes to change and to describe the native quotas of a real broker, and what CPU.

Each entity is a pair of user and client-id with all three bounds. The time of an edit ends with its last answer; "heard
of" is until the broker describes it. CPU is that of this process (the client's thread included), and of the broker's.

    python -m bench.broker_quotas [--entities 10000] [--rounds 5]

The targets are those of a controller that keeps a cluster's quotas: a first sync of 10 000 entities within 10 s, and a
look at all of them that changes nothing for 0.5 s of CPU.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bench.cpu import cpu_seconds
from bench.machine import machine_line
from pipeline.brokers.entity import NativeEntity
from pipeline.brokers.native_quotas import NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch

_FEW: Final = 100

Values = Mapping[NativeEntity, Mapping[str, float | None]]


class Cost(NamedTuple):
    """Wall-clock time of one call, and CPU of this process and of the broker's, all in seconds."""

    wall_seconds: float
    cpu_seconds: float
    broker_cpu_seconds: float


def main() -> None:
    """Run the rounds and print a line per call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(machine_line())
    fetch()
    costs: dict[str, list[Cost]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedBroker(Path(folder)) as broker,
        NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as native,
    ):
        for number in range(arguments.rounds):
            for name, cost in _round(broker, native, arguments.entities, number):
                costs.setdefault(name, []).append(cost)
    title = f"{arguments.entities} entities, median of {arguments.rounds} rounds"
    print(f"{title:<44}{'seconds':>9}{'most':>8}{'CPU s':>8}{'broker CPU s':>14}")
    for name, measured in costs.items():
        walls = [cost.wall_seconds for cost in measured]
        figures = (statistics.median(walls), max(walls), statistics.median(cost.cpu_seconds for cost in measured))
        of_broker = statistics.median(cost.broker_cpu_seconds for cost in measured)
        print(f"{name:<44}{figures[0]:>9.3f}{figures[1]:>8.3f}{figures[2]:>8.3f}{of_broker:>14.3f}")


def _round(broker: EmbeddedBroker, native: NativeQuotas, entities: int, number: int) -> list[tuple[str, Cost]]:
    """Set all, set them again, change a few, describe, remove all. The broker has no quotas before and after."""
    every = {NativeEntity.of_row(f"user-{n}", f"client-{n}"): _bounds(n + number) for n in range(entities)}
    few = {entity: _bounds(-n) for n, entity in enumerate(list(every)[:_FEW], 1)}
    none = {entity: dict.fromkeys(bounds) for entity, bounds in every.items()}

    def alter(changes: Values, *, validate_only: bool = False) -> None:
        refused = native.alter(changes, validate_only=validate_only)
        if refused:
            sys.exit(f"no entity must be refused; got {refused[0]}")

    def heard_of(count: int) -> None:
        while len(native.describe()) != count:
            time.sleep(0.001)

    steps: list[tuple[str, Callable[[], object]]] = [
        ("ask whether all would be refused", lambda: alter(every, validate_only=True)),
        ("set all, where none is", lambda: alter(every)),
        ("until they are heard of", lambda: heard_of(entities)),
        ("set all again, nothing changes", lambda: alter(every)),
        (f"change {_FEW}", lambda: alter(few)),
        ("describe all", native.describe),
        ("remove all", lambda: alter(none)),
        ("until that is heard of", lambda: heard_of(0)),
    ]
    return [(name, _cost(broker, call)) for name, call in steps]


def _bounds(number: int) -> dict[str, float | None]:
    return {"producer_byte_rate": 1e6 + number, "consumer_byte_rate": 2e6 + number, "request_percentage": 200.0}


def _cost(broker: EmbeddedBroker, call: Callable[[], object]) -> Cost:
    broker_began, cpu_began, began = cpu_seconds(broker.pid or 0), time.process_time(), time.perf_counter()
    call()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return Cost(wall, cpu, cpu_seconds(broker.pid or 0) - broker_began)


if __name__ == "__main__":
    main()
