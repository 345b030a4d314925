"""From a quota edit to the release on the topic, without traffic.

A client is throttled because it is far above its quota. Then its bound is raised so that it owes nothing. The time is
measured from the moment the edit's commit is durable until a `read_committed` consumer has the release record. No usage
is sent meanwhile.

    python -m bench.edit [--edits 20] [--trigger-ms 500]

The target is one trigger plus 150 ms.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from bench.machine import machine_line
from bench.stage import create_topics_and_tables, job, throttle_reader, wait_for
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import open_quota_table
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable
from schemas.names import USAGE_TOPIC

_LOW, _HIGH = 1_000.0, 1e12


def main() -> None:
    """Run the edits and print the latencies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=20)
    parser.add_argument("--trigger-ms", type=int, default=500)
    arguments = parser.parse_args()
    print(machine_line())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        settings = Settings(tables=TablesSettings(root=str(folder / "tables")))
        create_topics_and_tables(settings, broker.bootstrap_servers)
        quotas = open_quota_table(settings.tables)
        stack.enter_context(job(folder, broker.bootstrap_servers, arguments.trigger_ms, lambda _: None))
        latencies_ms = [_edit(broker.bootstrap_servers, quotas, number) for number in range(arguments.edits)]
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    print(f"trigger {arguments.trigger_ms} ms, {len(latencies_ms)} edits, commit durable -> release readable")
    print(f"p50 {cuts[49]:.0f}   p95 {cuts[94]:.0f}   max {max(latencies_ms):.0f} ms", end="")
    print(f"   (one trigger + 150 ms = {arguments.trigger_ms + 150} ms)")


def _edit(bootstrap_servers: str, quotas: QuotaTable, number: int) -> float:
    """Throttle a client that no other round uses, raise its bound, wait for its release. Returns the latency in ms."""
    user = f"edit-{number}"
    consumer = throttle_reader(bootstrap_servers)
    _alter(quotas, user, _LOW)
    producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
    event = {"event_time_ms": time.time_ns() // 1_000_000, "user": user, "client_id": "e", "produced_bytes": 10**6}
    time.sleep(1)
    producer.send(USAGE_TOPIC, json.dumps(event).encode())
    producer.close()
    wait_for(consumer, user, "throttle")
    time.sleep(0.5 + (number * 0.137) % 1)  # edits happen at any time between two triggers
    _alter(quotas, user, _HIGH)
    began = time.perf_counter()
    wait_for(consumer, user, "release")
    latency_ms = (time.perf_counter() - began) * 1000
    consumer.close()
    return latency_ms


def _alter(quotas: QuotaTable, user: str, bound: float) -> None:
    quotas.alter([QuotaChange(user, "", {"producer_byte_rate": bound})], local_audit("bench"))


if __name__ == "__main__":
    main()
