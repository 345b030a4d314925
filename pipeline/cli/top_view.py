"""What `kquota top` shows of a state: lines of text, each with its style. Decides only; prints nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pipeline.cli.table_layout import Layout, fitted
from pipeline.errors import printable
from pipeline.throttle.shown import clock_time, seconds
from quota.units import age_text, rate_text, rate_unit

if TYPE_CHECKING:
    from pipeline.job.overview import Line, Overview

_COLUMNS: Final = ("client", "type", "used", "rate", "held", "until", "owner", "decision")
_LAYOUT: Final = Layout(dropped_first=("decision", "until"))
_DECISION_DIGITS: Final = 8
_BAR_CELLS: Final = 8
_EIGHTHS: Final = "▏▎▍▌▋▊▉"
_MANY: Final = 10
_NEAR: Final = 0.8
_VERY_NEAR: Final = 0.95

Styled = tuple[str, str]
"""A style of rich, and a line."""


def view(
    state: "Overview",
    now_ms: int,
    width: int | None,
    limit: int | None = None,
    height: int | None = None,
    trouble: str | None = None,
) -> list[Styled]:
    """The state as it is at an instant: what is throttled counts down, and the newest batch ages.

    Args:
        state: As it was read.
        now_ms: The instant, by wall clock, at the reading or later.
        width: Cells in a line; None = no limit.
        limit: Most sensors that are shown; None = all.
        height: Most lines in all; None = no limit.
        trouble: Why the state could not be read anew, if it could not.
    """
    shown = [*_head(state, now_ms), *([("bold red", printable(f"CAN NOT BE READ: {trouble}"))] if trouble else [])]
    shown = [(style, text if width is None else text[:width]) for style, text in shown]
    lines = state.lines[:limit]
    if height is not None:
        lines = lines[: max(height - len(shown) - 2, 0)]  # the header, and how many there are more
    table = _table(lines, now_ms, width)
    left = len(state.lines) - len(lines)
    return [*shown, *table, *([("dim", f"and {left} more, further from their bounds")] if left else [])]


def bar(used: float) -> str:
    """A bar of eight cells: empty at 0, full at the bound and above it; anything above 0 can be seen.

    >>> bar(0.5), bar(0.001), bar(7)
    ('████    ', '▏       ', '████████')
    """
    eighths = min(max(int(used * _BAR_CELLS * 8), 1 if used > 0 else 0), _BAR_CELLS * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest - 1] if rest else "")).ljust(_BAR_CELLS)


def _head(state: "Overview", now_ms: int) -> list[Styled]:
    status, totals = state.status, state.totals
    age_ms = state.batch_age_ms(now_ms)
    batch = "no batch yet" if age_ms is None else f"batch {status.last_batch_id}, {age_ms / 1000:.1f} s ago"
    process = f"up (process {status.process})" if status.process else "down on this machine"
    lines = [
        (
            "bold",
            f"{clock_time(now_ms)[:-2]} UTC  {status.job} {process} · {batch} · quotas v{status.quotas} {status.mode}",
        ),
        (
            "",
            f"{totals.throttled_clients} throttled, {totals.clients} clients with usage: "
            f"produced {rate_text('producer_byte_rate', totals.produced_bytes_per_second)}, "
            f"fetched {rate_text('consumer_byte_rate', totals.fetched_bytes_per_second)}, "
            f"{totals.request_percentage:.1f} %",
        ),
    ]
    if state.is_stalled(now_ms):
        lines.append(_without_news(state, now_ms))
    elif state.is_behind:
        lag = age_text(status.lag_ms or 0)
        lines.append(("bold white on red", f"BEHIND: the newest usage was {lag} old; too old to throttle by"))
    return [(style, printable(text)) for style, text in lines]


def _without_news(state: "Overview", now_ms: int) -> Styled:
    """Why no batch comes, in plain words, as far as it is known on this machine."""
    status, age_ms, activity = state.status, state.batch_age_ms(now_ms), state.activity(now_ms)
    since = "no micro-batch yet" if age_ms is None else f"no micro-batch for {age_text(age_ms)}"
    looked_ms = None if status.last_wait_age_ms is None else status.last_wait_age_ms + now_ms - state.read_at_ms
    looked = age_text(looked_ms or 0)
    if activity == "idle":
        return "bold yellow", f"IDLE: {since}; the job waits, and no client has used anything (looked {looked} ago)"
    if activity == "hung":
        return "bold white on red", f"HUNG: {since}; process {status.process} last looked for usage {looked} ago"
    if activity == "unknown":
        seen = (
            "the job has not yet looked for usage: it starts, or hangs"
            if looked_ms is None or looked_ms < 0
            else f"the job last looked for usage {looked} ago: a batch takes long, or it hangs"
        )
        return "bold white on red", f"STALLED: {since}; {seen}"
    return "bold white on red", f"STALLED: {since}; no job runs on this machine"


def _table(lines: "Sequence[Line]", now_ms: int, width: int | None) -> list[Styled]:
    if not lines:
        return [("dim", "no client with a quota has used anything")]
    cells = [[printable(cell) for cell in _cells(line, now_ms)] for line in lines]
    table = fitted(_COLUMNS, cells, _LAYOUT, width)
    header, *rows = table.lines
    return [("bold underline", header), *((_style(line), row) for line, row in zip(lines, rows, strict=True))]


def _cells(line: "Line", now_ms: int) -> list[str]:
    who = f"{line.user or '*'}/{line.client_id or '*'}" + (f"@{line.broker_id}" if line.broker_id else "")
    until_ms = line.throttled_until_ms
    held = "" if until_ms is None else seconds(max(until_ms - now_ms, 0))
    return [
        who,
        line.quota_type.partition("_")[0] + (" shadow" if line.mode == "shadow" else ""),
        f"{bar(line.used)} {_used(line.used)}",
        _rate(line),
        f"{held} × {line.throttled_clients}" if line.throttled_clients > 1 else held,
        "" if until_ms is None else clock_time(until_ms),
        line.owner,
        (line.decision_id or "")[:_DECISION_DIGITS],
    ]


def _used(used: float) -> str:
    # Cut off, so that 100 % is not below the bound.
    return f"{int(used * 100)} %" if used < _MANY else f"{int(used)} × T"


def _rate(line: "Line") -> str:
    """O of T, in the unit of T."""
    if line.bound is None:
        return f"{rate_text(line.quota_type, line.observed)}, no bound"
    unit, size = rate_unit(line.quota_type, line.bound)
    return f"{line.observed / size:.1f} of {line.bound / size:.1f} {unit}"


def _style(line: "Line") -> str:
    if line.throttled_clients:
        return "bold red"
    if line.used >= _VERY_NEAR:
        return "magenta"
    return "yellow" if line.used >= _NEAR else ""
