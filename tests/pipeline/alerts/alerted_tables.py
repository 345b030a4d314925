"""Tables of a shop whose clients are over quota, and an alerter that looks at them as time passes."""

from pathlib import Path

from tests.pipeline.alerts.told import Told
from tests.pipeline.dashboard.lived_tables import LivedTables, Sender
from tests.pipeline.dashboard.shop import START_MS, quota

QUOTAS = (
    quota("alice", "etl", producer_byte_rate=100_000.0, owner="data-platform"),
    quota("bob", "", producer_byte_rate=100_000.0, owner="data-platform"),
    quota("web", "", producer_byte_rate=100_000.0, owner="web"),
    quota("ml", "", consumer_byte_rate=50_000.0, mode="shadow", owner="ml"),
    quota("<default>", "", producer_byte_rate=100_000.0),
)


def tables_of(folder: Path, *senders: Sender) -> LivedTables:
    """With one more client, far below its quota: somebody always sends."""
    others = Sender("others", "beat", lambda _: {"produced_bytes": 1_000})
    return LivedTables(folder / "tables", QUOTAS, [*senders, others], START_MS)


def live(tables: LivedTables, told: Told, seconds: int, step: int = 1) -> None:
    """Time passes; every so many seconds there is a batch, and a look at it."""
    for _ in range(seconds // step):
        tables.live(step, step * 1_000)
        told.look(tables.now_ms)


def over_quota(user: str, client_id: str = "etl", seconds: float = 1e9) -> Sender:
    return Sender(user, client_id, lambda second: {"produced_bytes": 500_000 if second < seconds else 0})
