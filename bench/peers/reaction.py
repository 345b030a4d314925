"""How soon kquota tells a client that is over its quota, under the same load: from the produce call to the record."""

import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.peers.roster import TRIGGER_MS
from bench.prober import PROBE_BOUND, Prober
from bench.stage import child, job
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import create_tables, open_quota_table

_PROBES_PER_SECOND: Final = 2


def first_told_ms(
    folder: Path, events_per_second: int, clients: int, warm_seconds: float, seconds: float
) -> list[float]:
    """Milliseconds of each probe; see `bench.probe`.

    Args:
        folder: for broker, job and tables; empty.
        events_per_second: of the load, in object messages.
        clients: of the load.
        warm_seconds: of the job's life before the first probe.
        seconds: of probes.
    """
    settings = Settings(tables=TablesSettings(root=str(folder / "tables")))
    with EmbeddedBroker(folder / "broker") as broker:
        with ClusterAccess(broker.bootstrap_servers).admin() as admin:
            create_topics(admin, wanted_topics(settings))
        create_tables(settings.tables)
        rows: list[dict[str, Any]] = [{"user": "<default>", "client_id": "<default>", "producer_byte_rate": 1e9}]
        rows += [
            {"user": f"probe-{number}", "client_id": "", "producer_byte_rate": PROBE_BOUND}
            for number in range(round(seconds * _PROBES_PER_SECOND))
        ]
        open_quota_table(settings.tables).edit(lambda _: rows, local_audit("bench"))
        load = [sys.executable, "-m", "bench.load", broker.bootstrap_servers, str(events_per_second), str(clients), "1"]
        with (
            child(load),
            job(folder, broker.bootstrap_servers, TRIGGER_MS, lambda _line: None),
            Prober(broker.bootstrap_servers) as prober,
        ):
            time.sleep(warm_seconds)
            latencies_ms = prober.probe(seconds)
    if prober.missing:
        message = f"the job must publish a record for each probe; got none for {prober.missing}"
        raise RuntimeError(message)
    return latencies_ms
