"""`kquota top`: who is near a bound and who is throttled, live in the terminal."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import Output, TablesSource, wait_until_stopped
from pipeline.cli.output import Layout, broken, fitted, is_table, print_rows, terminal_width, until_reader_goes
from pipeline.clock import clock_time, seconds, wall_ms
from pipeline.errors import PipelineError, UsageError, printable
from quota.units import age_text, rate_text, rate_unit

if TYPE_CHECKING:
    from pipeline.job.overview import Line, Overview

    Show = Callable[[Overview, str | None], None]
    """Shows a state, and what has kept it from being read anew."""


_DRAW_SECONDS: Final = 0.25


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print the state now, and end.")] = False,
    every_ms: Annotated[
        int, typer.Option("--every", metavar="MS", help="How often the tables are read.", min=100)
    ] = 1_000,
    limit: Annotated[
        int | None,
        typer.Option(help="Most lines [default: as many as the terminal has room for; without a terminal all].", min=0),
    ] = None,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Show who is throttled, and how near everybody is to a bound, until Ctrl-C.

    Throttled clients come first, then those that are nearest to their bound. The rates are those of the newest
    micro-batch; its age is in the first line, and is loud when no new batch comes. Without a terminal the state is
    printed again each time the tables are read. Ends with 0 on Ctrl-C and SIGTERM. Reads tables only.
    """
    from pipeline.job.overview import overview_of

    if not once and not is_table(output):
        msg = f"-o {output} prints one document, so it needs --once"
        raise UsageError(msg, f"write --once -o {output}")
    settings = source.settings()

    def read() -> "Overview":
        return overview_of(settings, wall_ms())

    if once:
        found = read()
        if is_table(output):
            _printed(limit, output)(found, None)
        else:
            document = _document(found, limit)
            print_rows(document["lines"], output, document=document)
        return
    with until_reader_goes(), wait_until_stopped() as wait, _screen(limit, output) as (show, draw_seconds):
        follow(read, show, wait, every_ms / 1000, draw_seconds or every_ms / 1000)


def follow(
    read: Callable[[], Any], show: "Show", wait: Callable[[float], bool], read_seconds: float, draw_seconds: float
) -> None:
    """Read a state, show it, and show it again as time passes, until `wait` returns True.

    What `read` raises the first time ends it; later it is shown with the last state.
    """
    state, trouble = read(), None
    while True:
        waited = 0.0
        while waited < read_seconds:
            show(state, trouble)
            pause_seconds = min(draw_seconds, read_seconds - waited)
            if wait(pause_seconds):
                return
            waited += pause_seconds
        try:
            state, trouble = read(), None
        except PipelineError as exc:
            trouble = str(exc)


def _document(state: "Overview", limit: int | None) -> dict[str, Any]:
    document = asdict(state)
    lines = document.pop("lines")[:limit]
    now_ms = state.read_at_ms
    verdicts = {
        "activity": state.activity(now_ms),
        "is_stalled": state.is_stalled(now_ms),
        "is_behind": state.is_behind,
    }
    return {**document, **verdicts, "lines": lines}


@contextmanager
def _screen(limit: int | None, output: str) -> "Iterator[tuple[Show, float | None]]":
    """How the state is shown, and how often; None = once for each reading."""
    if not sys.stdout.isatty():
        yield _printed(limit, output), None
        return
    with full_screen() as draw:

        def show(state: "Overview", trouble: str | None) -> None:
            def lines(width: int, height: int) -> list[Styled]:
                most = height if limit is None else None
                return view(state, wall_ms(), None if output == "wide" else width, limit, most, trouble)

            draw(lines)

        yield show, _DRAW_SECONDS


@contextmanager
def full_screen() -> "Iterator[Callable[[Callable[[int, int], list[Styled]]], None]]":
    """Give a function that draws on the whole terminal the lines that are made for its width and height."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(made_for: Callable[[int, int], list[Styled]]) -> None:
            lines = made_for(*console.size)
            text = Text("\n", no_wrap=True, overflow="crop").join(Text(line, style) for style, line in lines)
            live.update(text, refresh=True)

        yield draw


def _printed(limit: int | None, output: str) -> "Show":
    width = None if output == "wide" else terminal_width()
    has_printed = False

    def show(state: "Overview", trouble: str | None) -> None:
        nonlocal has_printed
        lines = view(state, wall_ms(), width, limit, None, trouble)
        gap = "\n" if has_printed else ""
        sys.stdout.write(gap + "".join(f"{line}\n" for _, line in lines))
        sys.stdout.flush()
        has_printed = True

    return show


# The lines of a state, each with its style. Pure.

_COLUMNS: Final = ("client", "type", "used", "rate", "held", "until", "owner", "decision")
_LAYOUT: Final = Layout(dropped_first=("decision", "until"))
_DECISION_DIGITS: Final = 8
_BAR_CELLS: Final = 8
_EIGHTHS: Final = "▏▎▍▌▋▊▉"
_MANY: Final = 10
NEAR: Final = 0.8
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
        now_ms: The instant, by wall clock, at the reading or later.
        width: Cells in a line.
        limit: Most sensors that are shown.
        height: Most lines in all.
        trouble: Why the state could not be read anew, if it could not.
    """
    shown = [*_head(state, now_ms), *([("bold red", printable(f"not readable: {trouble}"))] if trouble else [])]
    if width is not None:
        shown = [(style, line) for style, text in shown for line in broken(text, width)]
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
    process = "up" if status.process else "down on this machine"
    title = f"{clock_time(now_ms)[:-2]} UTC  {status.job} {process} · {batch} · quotas v{status.quotas} {status.mode}"
    used = (
        f"{totals.throttled_clients} throttled, {totals.clients} clients with usage: "
        f"produced {rate_text('producer_byte_rate', totals.produced_bytes_per_second)}, "
        f"fetched {rate_text('consumer_byte_rate', totals.fetched_bytes_per_second)}, "
        f"{totals.request_percentage:.1f} %"
    )
    lines = [("bold", title), ("", used)]
    if state.is_stalled(now_ms):
        lines.append(_without_news(state, now_ms))
    elif status.ahead_ms:
        ahead = (
            f"CLOCK: the time of the rates is {age_text(status.ahead_ms)} ahead of the wall clock; a clock was set back"
        )
        lines.append(("bold white on red", ahead))
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
        used_text(line.used),
        _rate(line),
        f"{held} × {line.throttled_clients}" if line.throttled_clients > 1 else held,
        "" if until_ms is None else clock_time(until_ms),
        line.owner,
        (line.decision_id or "")[:_DECISION_DIGITS],
    ]


def used_text(used: float) -> str:
    """The share of a bound: a bar, and percent or a multiple of T; cut off, so that 100 % is not below the bound."""
    return f"{bar(used)} " + (f"{int(used * 100)} %" if used < _MANY else f"{int(used)} × T")


def _rate(line: "Line") -> str:
    if line.bound is None:
        return f"{rate_text(line.quota_type, line.observed)}, no bound"
    unit, size = rate_unit(line.quota_type, line.bound)
    return f"{line.observed / size:.1f} of {line.bound / size:.1f} {unit}"


def _style(line: "Line") -> str:
    if line.throttled_clients:
        return "bold red"
    if line.used >= _VERY_NEAR:
        return "magenta"
    return "yellow" if line.used >= NEAR else ""
