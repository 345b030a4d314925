"""The commands of the pages that need neither broker nor Spark are played, each page from its top, as a reader would.

`make pages RENEW=1` writes what was printed into the pages.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from bench.what_if import write_quotas, write_usage
from pipeline.clock import wall_ms
from pipeline.demo.process import free_ports
from tests.object_store import INSTALL, versitygw
from tests.pages.blocks import PAGES, ROOT, blocks_of
from tests.pages.demo import EVENTS
from tests.pages.transcript import Reader, events_of, exchanges

_CLIENTS: Final = 8
_SECONDS: Final = 1_200
_CYCLE_MS: Final = 120_000
"""Usage repeats itself so often, so a start at a multiple of it gives the same answers every time."""

PURE = [page for page in PAGES if any(block.how.startswith("pure") for block in blocks_of(page.read_text("utf-8")))]


def recorded_usage(page: Path, folder: Path) -> dict[str, str]:
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


def test_every_event_that_a_page_waits_for_is_one_of_the_demo() -> None:
    named = {event for page in PAGES for _, event in events_of(page.read_text("utf-8"))}
    assert named
    assert named <= set(EVENTS)


@pytest.mark.parametrize("page", PURE, ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    names = recorded_usage(page, tmp_path) if page.name == "what-if.md" else {}
    with Reader(tmp_path, names) as reader:
        assert reader.play(page, "pure") == []


def test_the_commands_of_the_page_lead_to_quotas_in_a_store(tmp_path: Path) -> None:
    program = versitygw()
    if program is None:
        pytest.skip(f"needs versitygw, a server that speaks S3: {INSTALL}")
    page = ROOT / "docs" / "object-stores.md"
    assert INSTALL in page.read_text("utf-8")
    (port,) = free_ports(1)
    names = {"7070": str(port), "/tmp/store": str(tmp_path / "store"), "~/go/bin/versitygw": program}  # noqa: S108
    with Reader(tmp_path, names) as reader:
        assert reader.play(page, "store") == []
    assert len(list((tmp_path / "store" / "kquota" / "tables" / "quotas" / "_delta_log").glob("*.json"))) > 1
