"""The range of a report: what was asked for, and what of it the tables have."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.clock import wall_ms
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.tables.reading.minute_sums import Minutes

Since = Annotated[str, typer.Option(help="Begin of the range: 30d (ago), ISO 8601 in UTC, or epoch ms.")]
Until = Annotated[str, typer.Option(help="End of the range, in the same formats.")]
Html = Annotated[Path | None, typer.Option("--html", help="Also write the report to this file, as a page with charts.")]


class NothingRecorded(PipelineError):
    """No minute of a range is in a roll-up."""

    exit_code = 3

    def __init__(self, since_ms: int, until_ms: int, kept: tuple[int, int] | None) -> None:
        from pipeline.cli.instants import as_iso

        have = f"usage_by_minute has {as_iso(kept[0])} to {as_iso(kept[1])} UTC" if kept else "usage_by_minute is empty"
        super().__init__(
            f"no usage from {as_iso(since_ms)} to {as_iso(until_ms)} UTC: {have}",
            "ask for another time with --since and --until; a running job writes a minute some 10 s after its end, "
            "every `stream.rollup_interval_ms`",
        )


def asked_range(since: str, until: str) -> tuple[int, int]:
    """The range in epoch ms.

    Raises:
        UnknownInstant: One of its ends can not be read.
    """
    from pipeline.cli.instants import parse_instant

    now_ms = wall_ms()
    return parse_instant("--since", since, now_ms), parse_instant("--until", until, now_ms)


def kept_range(asked: tuple[int, int], usage: "Minutes") -> tuple[int, int]:
    """What of a range `usage_by_minute` has. Says on stderr which range that is.

    Raises:
        NothingRecorded: It has none of it.
    """
    from pipeline.cli.instants import as_iso
    from pipeline.reports.periods import whole_minutes
    from quota.units import age_text

    since_ms, until_ms = whole_minutes(*asked)
    kept = usage.span()
    begin_ms, end_ms = (max(since_ms, kept[0]), min(until_ms, kept[1])) if kept else (0, 0)
    if begin_ms >= end_ms:
        raise NothingRecorded(*asked, kept)
    missing = [f"begins {age_text(begin_ms - since_ms)} after --since"] if begin_ms > since_ms else []
    missing += [f"ends {age_text(until_ms - end_ms)} before --until"] if end_ms < until_ms else []
    told = f"; it {' and '.join(missing)}" if missing else ""
    sys.stderr.write(f"usage from {as_iso(begin_ms)} to {as_iso(end_ms)} UTC{told}\n")
    return begin_ms, end_ms


def write_page(path: Path, html: str) -> None:
    """Write a page and say so."""
    path.write_text(html, encoding="utf-8")
    sys.stderr.write(f"written: {path}\n")
