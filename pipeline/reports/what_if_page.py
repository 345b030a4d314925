"""The page of `kquota what-if`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from pipeline.replay.report import ClientComparison, Totals, throttled_clients
from pipeline.replay.usage_batches import ReplayResult
from pipeline.reports.page import BARS, bar_chart, figures, page, paragraph, table, time_chart

_MARKS: Final = {"newly throttled": "new", "no longer throttled": "gone"}


def what_if_page(
    about: Mapping[str, Any],
    totals: Totals,
    comparisons: Sequence[ClientComparison],
    baseline: ReplayResult,
    candidate: ReplayResult,
    span_ms: tuple[int, int],
) -> str:
    """The page; `about` has the baseline's name."""
    throttled, series = throttled_clients(comparisons), (str(about["baseline"]), "candidate")
    sections = {
        "Totals": figures(asdict(totals)),
        "Time clients would be held": _time_chart(baseline, candidate, span_ms, series),
        "Clients with the largest change": _bars(throttled[:BARS], series),
        "Clients": table([_row(line) for line in throttled], _MARKS),
    }
    return page("kquota what-if", "What if these quotas had been in force?", about, sections)


def _time_chart(
    baseline: ReplayResult, candidate: ReplayResult, span_ms: tuple[int, int], series: tuple[str, str]
) -> str:
    seconds = [result.throttle_ms_by_bin / 1000 for result in (baseline, candidate)]
    known = baseline.has_batch | candidate.has_batch | (seconds[0] > 0) | (seconds[1] > 0)
    lines = [(name, values.tolist()) for name, values in zip(series, seconds, strict=True)]
    return time_chart("Time clients would be held", lines, known.tolist(), span_ms, _seconds)


def _bars(comparisons: Sequence[ClientComparison], series: tuple[str, str]) -> str:
    if not comparisons:
        return paragraph("No client is throttled, neither by the baseline nor by the candidate.")
    bars = [
        (_name(line), (line.baseline.throttle_ms / 1000, line.candidate.throttle_ms / 1000)) for line in comparisons
    ]
    return bar_chart("Clients with the largest change of the time held", series, bars, _seconds)


def _row(line: ClientComparison) -> dict[str, Any]:
    return {
        "client": _name(line),
        "change": line.change,
        "windows": line.candidate.windows,
        "windows, baseline": line.baseline.windows,
        "held s": line.candidate.throttle_ms / 1000,
        "held s, baseline": line.baseline.throttle_ms / 1000,
        "deferred MB": line.candidate.deferred_bytes / 1e6,
        "deferred MB, baseline": line.baseline.deferred_bytes / 1e6,
        "held s, happened": line.happened.throttle_ms / 1000,
        "replay": off_text(line.off_percent, line.is_off),
    }


def off_text(off_percent: float, is_off: bool) -> str:
    """How far the replay of what happened is off, in words: `exact`, `off by 3 %`, `unsure: off by 99 %`."""
    if off_percent < 1:
        return "exact"
    return f"{'unsure: ' if is_off else ''}off by {off_percent:.0f} %"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s"


def _name(line: ClientComparison) -> str:
    broker_id, user, client_id = line.client
    return f"{user}/{client_id}" + (f"@{broker_id}" if broker_id else "")
