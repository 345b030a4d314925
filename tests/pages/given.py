"""What a page takes as given: tables and files that its reader has from elsewhere."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.what_if import write_quotas, write_usage
from pipeline.clock import wall_ms
from tests.pages.blocks import blocks_of
from tests.pages.transcript import exchanges

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


_GIVEN: Final[Mapping[str, Callable[[Path, Path], Names]]] = {"what-if.md": _recorded_usage}
