"""`kquota top`: who is near a bound and who is throttled, live in the terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.clock import wall_ms
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.job.overview import Overview

    Show = Callable[[Overview, str | None], None]
    """Shows a state, and what has kept it from being read anew."""

_DRAW_SECONDS: Final = 0.25


class OnceOnly(PipelineError):
    """`-o` asks for a document of something that goes on."""

    exit_code = 2

    def __init__(self, given: str) -> None:
        super().__init__(f"'--output' must be table, or be given with --once; got {given}", f"write --once -o {given}")


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the state now, and end.")] = False,
    every_ms: Annotated[
        int, typer.Option("--every", metavar="MS", help="How often the tables are read.", min=100)
    ] = 1_000,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Most lines [default: as many as the terminal has room for; without a terminal all].",
            show_default=False,
            min=0,
        ),
    ] = None,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Show who is throttled, and how near everybody is to a bound, until Ctrl-C.

    Throttled clients come first, then those that are nearest to their bound. The rates are those of the newest
    micro-batch; its age is in the first line, and is loud when no new batch comes. Without a terminal the state is
    printed again each time the tables are read. Ends with 0 on Ctrl-C and SIGTERM. Reads tables only; asks no cluster.
    """
    from pipeline.cli.closed_pipe import until_reader_goes
    from pipeline.cli.output import is_table, print_rows
    from pipeline.cli.signals import wait_until_stopped
    from pipeline.job.overview import overview_of
    from pipeline.settings.loading import load_settings

    if not once and not is_table(output):
        raise OnceOnly(output)
    settings = load_settings(config, flags(tables=tables))

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
    read: Callable[[], Any],
    show: "Show",
    wait: Callable[[float], bool],
    read_seconds: float,
    draw_seconds: float,
) -> None:
    """Read a state, show it, and show it again while time goes on, until told to stop.

    Args:
        read: Reads the state. What it raises the first time ends it; later it is shown beside the last state.
        show: Shows it.
        wait: Waits some seconds; True = stop.
        read_seconds: How long a state is shown.
        draw_seconds: How often it is shown, as its clocks go on.
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
    """What programs get: all of it, and whether it can be relied on."""
    from dataclasses import asdict

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
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from pipeline.cli.top_view import view

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:

        def show(state: "Overview", trouble: str | None) -> None:
            width, height = console.size
            most = height if limit is None else None
            lines = view(state, wall_ms(), None if output == "wide" else width, limit, most, trouble)
            text = Text("\n", no_wrap=True, overflow="crop").join(Text(line, style) for style, line in lines)
            live.update(text, refresh=True)

        yield show, _DRAW_SECONDS


def _printed(limit: int | None, output: str) -> "Show":
    import shutil

    from pipeline.cli.output import UNKNOWN_WIDTH
    from pipeline.cli.top_view import view

    width = None if output == "wide" else shutil.get_terminal_size((UNKNOWN_WIDTH, 0)).columns
    has_printed = False

    def show(state: "Overview", trouble: str | None) -> None:
        nonlocal has_printed
        lines = view(state, wall_ms(), width, limit, None, trouble)
        gap = "\n" if has_printed else ""
        sys.stdout.write(gap + "".join(f"{line}\n" for _, line in lines))
        sys.stdout.flush()
        has_printed = True

    return show
