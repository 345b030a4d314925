"""`kquota demo`: a noisy client is throttled before your eyes; `make run` calls it."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.allocator import give_back_at_once


def demo(
    duration: Annotated[
        float | None, typer.Option(help="End by itself after so many seconds of load.", min=1, show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what earlier runs have left, and start over.")] = False,
    folder: Annotated[Path, typer.Option(help="Where broker, tables and checkpoint are kept.")] = Path(".kquota/demo"),
    trigger_ms: Annotated[int, typer.Option(help="A micro-batch starts at most this often.", min=50)] = 250,
) -> None:
    """Start a real Kafka broker, eight clients, a meter and the job; show who is throttled, why, until when.

    Two of the clients use 2 and 5 times their quota. Ctrl-C stops everything. Data is kept for the next run.
    """
    give_back_at_once()
    from pipeline.cli.console import DemoConsole
    from pipeline.cli.signals import call_on_signals
    from pipeline.demo.run import Demo, DemoFolder, start_over
    from pipeline.log import set_up_logging
    from pipeline.settings.loading import load_settings

    set_up_logging("INFO")
    place = DemoFolder(folder.resolve())
    if fresh:
        start_over(place)
    settings = load_settings(flags={"stream": {"trigger_ms": trigger_ms}})
    console = DemoConsole()
    running = Demo(place, settings, console.listeners(), console.client_report)
    with call_on_signals(running.stop):
        running.run(duration)
    console.summary()
