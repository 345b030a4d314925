"""What a page takes as given: tables and files that its reader has from elsewhere."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.what_if import write_quotas, write_usage
from pipeline.clock import wall_ms
from tests.pages.blocks import blocks_of
from tests.pages.transcript import exchanges
from tests.pipeline.reports.minutes_kept import KeptMinutes

_DAY: Final = 1_440
_WEEK: Final = 7 * _DAY
_CLIENTS: Final = 8
_SECONDS: Final = 1_200
_CYCLE_MS: Final = 120_000
"""Usage repeats itself so often, so a start at a multiple of it gives the same answers every time."""

Names = Mapping[str, str]
"""What stands in the page, and what stands for it here."""


def give(page: Path, folder: Path) -> Names:
    """Put into a reader's folder what a page takes as given."""
    return _GIVEN[page.name](page, folder) if page.name in _GIVEN else {}


def _recorded_usage(page: Path, folder: Path) -> Names:
    """Twenty minutes of usage under live quotas, and each file that the page shows with `cat`."""
    root = str(folder / ".kquota" / "tables")
    write_quotas(root, _CLIENTS)
    # After the edit: a replay takes for each instant the quotas that were in force then.
    start_ms = (wall_ms() // _CYCLE_MS + 2) * _CYCLE_MS
    write_usage(root, start_ms, _SECONDS, _CLIENTS)
    for block in blocks_of(page.read_text(encoding="utf-8")):
        for shown in exchanges(block) if block.how == "pure" else ():
            if shown.command.startswith("cat "):
                (folder / shown.command.split()[1]).write_text("".join(f"{line}\n" for line in shown.answer))
    ends = ("2026-11-22T17:10:00", start_ms), ("2026-11-22T17:30:00", start_ms + _SECONDS * 1_000)
    return {shown: f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}" for shown, at_ms in ends}


def _minutes(_page: Path, folder: Path) -> Names:
    """Two weeks of usage by minute, without a job for a weekend, and what was held; of three users two have owners."""
    kept = KeptMinutes.create(folder / ".kquota")
    kept.quota("alice", producer_byte_rate=1_000_000.0, owner="team-data")
    kept.quota("bob", consumer_byte_rate=50_000_000.0, owner="team-web")
    kept.quota("<default>", producer_byte_rate=200_000.0)
    runs = [minute for minute in range(-_WEEK, _WEEK) if not -2 * _DAY <= minute < 0]
    night = [minute for minute in runs if minute % _DAY < 180]
    for minutes, used in ((night, 54_000_000), (night[::3], 21_000_000)):
        kept.use(*((minute, "alice", "etl") for minute in minutes), produced_bytes=used, io_time_ns=2 * 10**9)
    kept.use(*((minute, "bob", "web-1") for minute in runs[::5]), fetched_bytes=240_000_000, network_time_ns=10**9)
    kept.use(*((minute, "carol", "notebook") for minute in runs[::400]), produced_bytes=7_000_000, request_count=90)
    kept.hold(*((minute, "alice", "etl", 9_500) for minute in night[::20]), owner="team-data", throttle_count=1)
    kept.hold((700, "carol", "notebook", 4_000), throttle_count=1, renewal_count=1)
    return {}


_GIVEN: Final[Mapping[str, Callable[[Path, Path], Names]]] = {"what-if.md": _recorded_usage, "reports.md": _minutes}
