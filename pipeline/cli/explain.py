"""Prints one decision: its numbers in words, its samples as a small chart."""

import sys
from typing import TYPE_CHECKING, Final

from pipeline.clock import clock_time
from pipeline.errors import printable
from pipeline.reports.story import words_of
from pipeline.tables.quotas.history import QuotaOrigin
from pipeline.tables.throttles import Story, Unpublished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.settings.model import Settings
    from pipeline.tables.enforced import Enforced

_BAR_WIDTH: Final = 40


def print_story(
    story: Story,
    settings: "Settings",
    origin: QuotaOrigin | None,
    unpublished: Unpublished | None,
    on_brokers: "Sequence[Enforced]" = (),
) -> None:
    """Print a story on stdout; the arguments are those of `words_of`."""
    words = words_of(story, settings, origin, unpublished, on_brokers)
    facts = [f"  {name:<9} {text}" for name, text in words.facts]
    bars = _bars(story, settings.engine.sample_window_ms)
    lines = [words.title, *facts, "", words.samples, *bars, "", *words.published]
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def _bars(story: Story, sample_window_ms: int) -> list[str]:
    row = story.decision
    if not story.samples:
        return []
    is_time = row["quota_type"] == "request_percentage"
    limit, of = row["bound"] * (1e7 if is_time else 1) * sample_window_ms / 1000, 1e6 if is_time else 1e3
    most = max(limit, *(amount for _, amount in story.samples))
    lines = []
    mark = min(round(limit / most * _BAR_WIDTH), _BAR_WIDTH - 1)
    for start_ms, amount in story.samples:
        filled = round(amount / most * _BAR_WIDTH)
        bar = "".join("│" if place == mark else "█" if place < filled else " " for place in range(_BAR_WIDTH))
        lines.append(f"  {clock_time(start_ms)}  {bar} {amount / of:.1f}")
    return lines
