"""A small shop: who may use what, who uses what, and a minute of its life."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pipeline.dashboard.reader import TablesReader
from pipeline.job.status import JobSigns
from pipeline.settings.model import Settings, StreamSettings, TablesSettings
from tests.pipeline.dashboard.lived_tables import HOSTILE, LivedTables, Sender

START_MS: Final = 1_700_000_040_000
"""On a minute's begin."""


def quota(user: str, client_id: str, **columns: Any) -> dict[str, Any]:
    """A row of `quotas`; what is not given is none."""
    bounds = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate", "request_percentage", "owner", "note"))
    return {"user": user, "client_id": client_id, **bounds, "mode": "enforce", **columns}


QUOTAS: Final = (
    quota("alice", "etl", producer_byte_rate=100_000.0, owner="data-platform", note="nightly loads"),
    quota("search", "", consumer_byte_rate=100_000.0, owner="search"),
    quota("web", "", producer_byte_rate=400_000.0, owner="web"),
    quota("ml", "", consumer_byte_rate=50_000.0, mode="shadow", owner="ml"),
    quota("<default>", "", producer_byte_rate=120_000.0, owner="platform"),
)

SENDERS: Final = (
    Sender("alice", "etl", lambda _: {"produced_bytes": 500_000}),
    Sender("search", "indexer", lambda _: {"fetched_bytes": 60_000}),
    Sender("web", "tracker", lambda _: {"produced_bytes": 200_000}),
    Sender("web", "tracker-ios", lambda _: {"produced_bytes": 100_000}),
    Sender("ml", "train", lambda _: {"fetched_bytes": 90_000}),
    Sender("guest", HOSTILE, lambda _: {"produced_bytes": 300_000}),
)


def reader_of(
    root: str,
    process: Callable[[], str | None] = lambda: "7",
    last_wait_ms: int | None = None,
    stream: StreamSettings | None = None,
) -> TablesReader:
    """A reader of tables with the job that seems to run on this machine."""
    settings = Settings(tables=TablesSettings(root=root), stream=stream or StreamSettings())
    return TablesReader(settings, JobSigns(process, lambda: last_wait_ms))


TENANT: Final = {"tenant": "retail", "user_patterns": ("web", "kiosk"), "producer_byte_rate": 600_000.0, "lend": True}
KIOSK: Final = Sender("kiosk", "till", lambda _: {"produced_bytes": 200_000})
"""It borrows what the other member of the tenant leaves free."""


def lived_shop(
    folder: Path, start_ms: int, seconds: int = 80, at_once: bool = True, has_tenant: bool = False
) -> LivedTables:
    """Tables after some seconds of it. Unless they are written at once, see `LivedTables`, that takes seconds."""
    senders, tenants = ((*SENDERS, KIOSK), (TENANT,)) if has_tenant else (SENDERS, ())
    tables = LivedTables(folder, QUOTAS, senders, start_ms, at_once=at_once, tenants=tenants)
    tables.live(20)
    tables.send_garbage()
    tables.live(seconds - 40)
    tables.edit([quota("alice", "etl", producer_byte_rate=150_000.0, owner="data-platform")], "month end")
    tables.live(20)
    tables.roll_up()
    return tables


GHOST: Final = Sender("ghost", "gone", lambda _: {"produced_bytes": 900_000})


def set_back_shop(folder: Path, step_ms: int) -> LivedTables:
    """The clocks were ahead by so much for 15 s, until 16 s ago; a ghost sent something only then."""
    tables = LivedTables(folder, QUOTAS, SENDERS, START_MS, at_once=True)
    tables.live(15)
    tables.job.clock.set_wall(tables.now_ms + step_ms)
    tables.senders = [*SENDERS, GHOST]
    tables.live(15)
    tables.job.clock.set_wall(tables.now_ms - step_ms)
    tables.senders = [*SENDERS]
    tables.live(16)
    return tables
