"""`kquota run`: the job against your cluster."""

from contextlib import nullcontext
from typing import Annotated

import typer

from pipeline.allocator import return_memory_at_once
from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, TablesRoot, flags


def run(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    tables: TablesRoot = None,
    checkpoint: Annotated[str | None, typer.Option(help="Spark's checkpoint folder.", show_default=False)] = None,
    run_dir: Annotated[str | None, typer.Option(help="Folder of the lock file.", show_default=False)] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job.", show_default=False)] = None,
    trigger_ms: Annotated[
        int | None, typer.Option(help="Shortest time between the starts of two micro-batches.", show_default=False)
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End with exit code 6 when the cluster does not answer.")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Keep the brokers' own quotas too, as `kquota quotas sync` does.")
    ] = False,
) -> None:
    """Run the job until SIGTERM or Ctrl-C: read usage, decide, throttle, release, record.

    Missing tables are created; topics are checked and never changed (see `kquota topics create`). With --sync, the end
    of one of the two is the end of both.
    """
    return_memory_at_once()
    from pipeline.cli.console import log_batch, log_throttles
    from pipeline.cli.signals import call_on_signals
    from pipeline.job.job import Job, Listeners
    from pipeline.log import set_up_logging
    from pipeline.settings.loading import load_settings
    from pipeline.sync.beside import sync_beside
    from pipeline.tables.from_settings import create_tables

    given = flags(
        bootstrap_server,
        command_config,
        tables,
        stream={"trigger_ms": trigger_ms, "checkpoint": checkpoint},
        job=job,
        run_dir=run_dir,
    )
    settings = load_settings(config, given)
    set_up_logging(settings.log_level)
    running = Job(settings, Listeners(log_throttles, log_batch), waits=not no_wait)
    with call_on_signals(running.stop):
        create_tables(settings.tables)
        with sync_beside(settings, running.stop) if sync else nullcontext():
            running.run()
