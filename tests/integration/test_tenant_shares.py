"""Two stock producers of one tenant, on two real brokers that hold them by what the sync writes.

The producers know nothing of kquota. Together they get the tenant's bound, and one gets all of it when the other stops.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from bench.stage import Stage
from pipeline.brokers import metering
from pipeline.demo.broker import BrokerOptions
from pipeline.meter.reporter import REPORTER_PREFIX
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from pipeline.tables.quotas.table import TenantTable, local_audit
from pipeline.tables.quotas.tenants import TenantChange
from schemas.names import USAGE_TOPIC
from tests.integration.stock_clients import StockProducer, stock_cluster, stock_producers, stock_work, topic_on_each

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)),
    pytest.mark.usefixtures("made_reporter"),
]

_OWN: Final = 100_000.0
_TOGETHER: Final = 200_000.0
QUOTAS: Final[Sequence[Mapping[str, Any]]] = tuple(
    {"user": user, "client_id": "", "producer_byte_rate": _OWN} for user in ("ann", "ben")
)
_SECONDS: Final = 150.0
"""Until a minute has passed in which nothing changed any more."""
_TOPIC: Final = "data"


@contextmanager
def a_team(folder: Path) -> Iterator[tuple[str, dict[str, StockProducer]]]:
    """Brokers, job and sync with a tenant that lends, and two producers far above their own bounds; root of tables."""
    cluster = stock_cluster(folder, 2, ("ann", "ben"))
    for broker in cluster.brokers:
        broker.options = BrokerOptions(
            usage_topic=USAGE_TOPIC, settings={f"{REPORTER_PREFIX}exclude.users": "ANONYMOUS"}
        )
    with ExitStack() as stack:
        stack.enter_context(cluster)
        topic_on_each(cluster.brokers, _TOPIC)
        stage = Stage.of(folder / "job", cluster.brokers[0], QUOTAS)
        team = TenantChange(
            "team", {"producer_byte_rate": _TOGETHER, "lend": True}, added={"user_patterns": ("ann", "ben")}
        )
        TenantTable(stage.root).alter([team], local_audit("test"))
        metering.write(stage.job.settings, metering.planned(stage.job.settings, by="pair"))
        stack.enter_context(stage.running(500))
        stack.enter_context(stage.sync({"KQUOTA_SCOPE": "cluster"}))
        works = {
            user: stock_work(cluster, user, _TOPIC, shares, 5e5, 20.0)
            for user, shares in (("ann", (0.5, 0.5)), ("ben", (0.7, 0.3)))
        }
        producers = stack.enter_context(stock_producers(works))
        for producer in producers.values():
            producer.start()
        yield stage.root, producers


def rates(root: str) -> dict[str, float]:
    """Bytes per second of each in the last minute, by the events of what the brokers took."""
    rows = read_table(table_uri(root, "usage"), ["user", "produced_bytes", "last_event_ms"]).to_pylist()
    since_ms = max(row["last_event_ms"] for row in rows) - 60_000
    found = dict.fromkeys(("ann", "ben"), 0.0)
    for row in rows:
        if row["user"] in found and row["last_event_ms"] > since_ms:
            found[row["user"]] += (row["produced_bytes"] or 0) / 60
    return found


def test_two_producers_share_their_tenants_bound_and_one_gets_all_of_it(tmp_path: Path) -> None:
    with a_team(tmp_path) as (root, producers):
        time.sleep(_SECONDS)
        both = rates(root)
        producers["ben"].shares = (0.0, 0.0)
        time.sleep(_SECONDS)
        alone = rates(root)
    assert sum(both.values()) == pytest.approx(_TOGETHER, rel=0.15), both
    assert alone["ann"] == pytest.approx(_TOGETHER, rel=0.15), alone
