"""The latency of a decision, and what a job takes of the machine, under a steady load.

A probe is a client that was never seen before. Its first event puts it above its quota. The time is measured from the
produce call until a `read_committed` consumer has the throttle record. Probes come at random times, after the warm-up
and when each client of the load was seen. Broker, generator, job and prober share the machine; each is a process.

    python -m bench.probe [--clients 10000] [--events-per-second 20000] [--seconds 120] [--warm-seconds 120]

    memory    the most that driver and JVM have held, MB
    cores     CPU of both per second
    wheel     from the instant at which a look is due until the wheel hands it out, while batches run, ms
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from bench.machine import CpuMeter, arguments, memory_mb, tree
from bench.pages import percentiles, row, table
from bench.stage import Prober, probe_quotas, staged
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table

_EVENTS_PER_MESSAGE: Final = 100


@dataclass(frozen=True)
class Probed:
    """What was measured; see above."""

    latencies_ms: Sequence[float]
    memory_mb: float
    cores: float
    lateness_ms: Sequence[float]


def probed(
    events_per_second: int,
    clients: int,
    *,
    warm_seconds: float,
    seconds: float,
    trigger_ms: int,
    events_per_message: int = _EVENTS_PER_MESSAGE,
) -> Probed:
    warm_seconds = max(warm_seconds, 1.3 * clients / events_per_second)
    with (
        staged(probe_quotas(2 * int(warm_seconds + seconds))) as stage,
        stage.load(events_per_second, clients, events_per_message),
        stage.running(trigger_ms) as driver,
        closing(Prober(stage.servers)) as prober,
    ):
        prober.probe(warm_seconds)
        meter = CpuMeter(tree(driver))
        latencies_ms = prober.probe(seconds)
        return Probed(
            latencies_ms=latencies_ms,
            cores=meter.cores(),
            memory_mb=memory_mb(driver),
            lateness_ms=_lateness_ms(stage.root),
        )


def _lateness_ms(root: str) -> list[float]:
    late: list[float] = (
        read_table(table_uri(root, "throttle_events"), ["lateness_ms"])["lateness_ms"].drop_null().to_pylist()
    )
    return late


def main() -> None:
    asked = arguments(
        __doc__, clients=10_000, events_per_second=20_000, seconds=120.0, warm_seconds=120.0, trigger_ms=250
    )
    one = probed(
        asked.events_per_second,
        asked.clients,
        warm_seconds=asked.warm_seconds,
        seconds=asked.seconds,
        trigger_ms=asked.trigger_ms,
    )
    print(f"arrays of {_EVENTS_PER_MESSAGE} events, trigger {asked.trigger_ms} ms\n")
    print(table(["clients", "ev/s", "memory, MB", "cores", "wheel p50", "wheel p99"]))
    taken = one.memory_mb, f"{one.cores:.2f}"
    print(row([asked.clients, asked.events_per_second, *taken, *percentiles(one.lateness_ms)]))
    p50, p99 = percentiles(one.latencies_ms)
    probes = f"p50 {p50:.0f} ms, p99 {p99:.0f} ms of {len(one.latencies_ms)} probes"
    print(f"\nfrom minute {asked.warm_seconds / 60:g} on: {probes}")


if __name__ == "__main__":
    main()
