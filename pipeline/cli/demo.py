"""`kquota demo`: shows on one machine how noisy clients are throttled; `make run` calls it."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipeline.cli.options import call_on_signals
from pipeline.cli.output import remark
from pipeline.cli.services import DEFAULT_PORT, free_port
from pipeline.command_line import not_installed, path_text
from pipeline.log import set_up_logging
from quota.units import rate_text

if TYPE_CHECKING:
    from pipeline.demo.folder import DemoFolder


_MEMORY: Final = "1.3 GB"
_DISK: Final = "60 MB"
"""What one broker, its clients and the job took, rounded up."""


def demo(
    duration: Annotated[float | None, typer.Option(help="Stop after this many seconds of load.", min=1)] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the data of earlier demos in the folder, and start over.")
    ] = False,
    brokers: Annotated[
        int | None,
        typer.Option(help="How many brokers; the same in all demos of a folder.", min=1, max=5, show_default="1"),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where all data is kept; must be new, empty or made by an earlier demo.")
    ] = Path(".kquota/demo"),
    trigger_ms: Annotated[
        int, typer.Option(help="Shortest time between the starts of two micro-batches.", min=50)
    ] = 250,
    dashboard: Annotated[bool, typer.Option(help="Show it on a web page, too.")] = True,
    port: Annotated[
        int, typer.Option(help="Port of the page; a free one if it is taken.", min=1, max=65_535)
    ] = DEFAULT_PORT,
) -> None:
    """Start a real Kafka broker, ten clients and the job; show who is throttled, why, until when.

    The second line has the address of a page that shows the same.

    Two of the clients use 2 and 5 times their quota, and listen to throttles. Two more do not listen: the
    broker slows them. Ctrl-C stops everything. The data stays for the next run.
    """
    from pipeline.demo.folder import DemoFolder

    place = DemoFolder(folder.absolute())
    # Before anything heavy is imported: a second demo is refused at once.
    with place.claimed():
        _run(place, duration, fresh, brokers, trigger_ms, port if dashboard else None)


def _run(
    place: "DemoFolder",
    duration: float | None,
    fresh: bool,
    brokers: int | None,
    trigger_ms: int,
    port: int | None,
) -> None:
    from pipeline.cli.demo_console import DemoConsole
    from pipeline.demo.run import Demo, start_over
    from pipeline.jvm.jars import fetch
    from pipeline.settings.loading import load_settings

    set_up_logging("INFO")
    settings = load_settings(flags={"stream": {"trigger_ms": trigger_ms}})
    if fresh:
        start_over(place, settings.job)
    count = place.choose_brokers(brokers)
    fetch(remark)
    where = path_text(place.root)
    remark(f"takes about {_MEMORY} of memory, and {_DISK} of disk a minute in {where}; Ctrl-C ends it")
    page_port = free_port(port)
    if port is not None and page_port is None:
        remark(f"no web page: {not_installed('starlette or uvicorn', 'dashboard')}")
    console = DemoConsole(place.candidate, watched=sys.stdout.isatty() and sys.stderr.isatty())
    running = Demo(place, settings, console.listeners(), console.client_report, count, page_port)
    with call_on_signals(running.stop):
        running.run(duration)
    if running.bounds is None:
        remark("stopped before the demo had begun")
        return
    console.summary(running.bounds())
    remark(f"left in {where}, for the next demo: {_left(place.root)}; delete it: rm -r {shlex.quote(where)}")


def _left(folder: Path) -> str:
    """The size of all files below a folder, as `84.1 MB`."""
    size_bytes = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    return rate_text("producer_byte_rate", float(size_bytes)).removesuffix("/s")
