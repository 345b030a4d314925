"""How soon kquota tells a client that is over its quota, under the same load: from the produce call to the record."""

import sys
import time
from pathlib import Path
from typing import Final

from bench.peers.roster import TRIGGER_MS
from bench.probe import prepare
from bench.prober import Prober
from bench.stage import child, job
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings

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
        prepare(settings, broker.bootstrap_servers, round(seconds * _PROBES_PER_SECOND))
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
