"""What `kquota quotas sync` costs on a real broker: the first sync of many entities, and periods without changes.

The sync runs in this process, on tables and a broker of its own. Each entity is a user with one bound, in scope
`cluster`. "First" is the start with no value on the broker, until all are stored as applied; "again" the start after
it, with all of them owned. A period without changes has a commit of `usage` with rows of all entities, below their
bounds; every tenth compares with all that the broker holds. CPU is that of this process.

    python -m bench.sync_on_broker [--entities 10000] [--periods 30] [--active 1000]

The targets: first sync within 10 s, a period without changes for 0.5 s of CPU.
"""

import statistics
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

from bench.machine import arguments as options
from bench.stage import bound, staged
from pipeline.brokers.changes import KafkaQuotas
from pipeline.brokers.running import new_control, open_sources
from pipeline.brokers.sync import BrokerQuotaSync
from pipeline.clock import SystemClock
from pipeline.cluster.access import ClusterAccess
from pipeline.jvm.jars import fetch
from pipeline.settings.model import KafkaSettings, Settings
from pipeline.tables.address import table_uri
from pipeline.tables.broker_quotas import BrokerQuotasTable
from pipeline.tables.delta_rs import DeltaRsWriter
from schemas.arrow import conform
from schemas.usage import UsageRow

_BOUND = 1e6


def main() -> None:
    arguments = options(__doc__, entities=10_000, periods=30, active=1_000)
    fetch()
    with staged([bound(f"user-{n}", _BOUND) for n in range(arguments.entities)]) as stage:
        kafka = KafkaSettings(bootstrap_servers=stage.servers)
        settings = stage.settings.model_copy(update={"kafka": kafka})
        _tell("first sync", *_started(settings, arguments.entities))
        _tell("start again, all owned", *_started(settings, 0))
        _tell_periods(settings, arguments.periods, arguments.active)


def _opened(settings: Settings, cluster: KafkaQuotas) -> BrokerQuotaSync:
    table = BrokerQuotasTable(settings.tables.root, "bench")
    control = new_control(settings, adopt=False)
    sync = BrokerQuotaSync(
        control, open_sources(settings), table, cluster, SystemClock(), settings.sync.describe_every_ms
    )
    sync.take_over()
    return sync


def _started(settings: Settings, changes: int) -> tuple[float, float]:
    """Wall time and CPU until so many changes are stored as applied, with one period a second."""
    began, cpu_began = time.perf_counter(), time.process_time()
    with KafkaQuotas(ClusterAccess.from_settings(settings.kafka)) as cluster:
        sync, left = _opened(settings, cluster), changes
        while (left := left - sync.step()) > 0:
            time.sleep(settings.sync.period_ms / 1000)
        return time.perf_counter() - began, time.process_time() - cpu_began


def _tell_periods(settings: Settings, periods: int, active: int) -> None:
    writer = DeltaRsWriter(table_uri(settings.tables.root, "usage"), "bench")
    writer.raise_epoch(1)
    costs: list[tuple[float, float]] = []
    with KafkaQuotas(ClusterAccess.from_settings(settings.kafka)) as cluster:
        sync = _opened(settings, cluster)
        sync.step()
        for batch_id in range(periods):
            writer.append(_usage(batch_id, active), {"batch": batch_id}, {})
            began, cpu_began = time.perf_counter(), time.process_time()
            if sync.step():
                sys.exit("a period without changes changed something")
            costs.append((time.perf_counter() - began, time.process_time() - cpu_began))
            time.sleep(max(1.0 - costs[-1][0], 0.0))
    walls, cpus = zip(*costs, strict=True)
    _tell(f"period, {active} active, median of {periods}", statistics.median(walls), statistics.median(cpus))
    _tell("the longest of them", max(walls), max(cpus))


def _usage(batch_id: int, active: int) -> pa.Table:
    now_ms = time.time_ns() // 1_000_000
    rows = pa.table(
        {
            "user": [f"user-{n}" for n in range(active)],
            "client_id": ["app"] * active,
            "broker_id": ["1"] * active,
            "produced_bytes": np.full(active, 1_000),
            "request_count": np.ones(active, np.int64),
        }
    )
    about: dict[str, Any] = {"cluster": "bench", "query_id": "bench", "batch_id": batch_id, "quota_version": 1}
    times = {"sample_start_ms": now_ms // 1000 * 1000, "last_event_ms": now_ms, "evaluated_at_ms": now_ms}
    return conform(rows, UsageRow, **about, **times)


def _tell(what: str, wall_seconds: float, cpu_seconds: float) -> None:
    print(f"{what:<40}{wall_seconds:>9.3f} s{cpu_seconds:>9.3f} s of CPU")


if __name__ == "__main__":
    main()
