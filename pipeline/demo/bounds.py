"""What each client of the demo may use now, by the quotas in force."""

import pyarrow as pa

from pipeline.demo.plan import DEMO_CLIENTS, STOCK_CLIENTS
from pipeline.settings.model import TablesSettings
from pipeline.tables.from_settings import open_quota_table
from pipeline.tables.quotas.source import QuotaSource
from quota.engine import QuotaEngine

_TYPE_OF_ROLE = {"produce": "producer_byte_rate", "consume": "consumer_byte_rate"}


def client_bounds(tables: TablesSettings) -> dict[tuple[str, str], float | None]:
    """The byte rate that each client is held to, in bytes per second; None if no quota bounds it.

    Returns:
        (user, client_id) -> its bound for what it does: produce or consume.
    """
    engine = QuotaEngine()
    engine.load_quotas(QuotaSource(open_quota_table(tables)).pin())
    clients = (*DEMO_CLIENTS, *STOCK_CLIENTS)
    names = {"user": [one.user for one in clients], "client_id": [one.client_id for one in clients]}
    resolved = {
        (row["user"], row["client_id"], row["quota_type"]): row["bound"]
        for row in engine.resolve(pa.table(names)).to_pylist()
    }
    return {(one.user, one.client_id): resolved[one.user, one.client_id, _TYPE_OF_ROLE[one.role]] for one in clients}
