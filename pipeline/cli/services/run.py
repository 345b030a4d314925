"""`kquota run`: the job against your cluster."""

from contextlib import nullcontext
from typing import Annotated

import typer

from pipeline.allocator import return_memory_at_once
from pipeline.cli.options import (
    BootstrapServers,
    CommandConfig,
    ConfigFile,
    MetricsClients,
    MetricsPort,
    TablesRoot,
    flags,
    metrics_flags,
)
from pipeline.cli.services.dashboard import DEFAULT_PORT
from pipeline.errors import PipelineError


class SyncNeedsAllUsers(PipelineError):
    """`--sync` beside a shard: it needs the usage of all users."""

    exit_code = 2

    def __init__(self, shard: str) -> None:
        super().__init__(
            f"'--sync' must be without a shard, as it needs the usage of all users; got shard {shard}",
            "leave --sync out, or run one job for all users",
        )


def run(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    tables: TablesRoot = None,
    checkpoint: Annotated[str | None, typer.Option(help="Spark's checkpoint folder.", show_default=False)] = None,
    run_dir: Annotated[str | None, typer.Option(help="Folder of the lock file.", show_default=False)] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job.", show_default=False)] = None,
    shard: Annotated[
        str | None,
        typer.Option(help="i/n, as 0/2: decide for one of n shares of the users (docs/shards.md).", show_default=False),
    ] = None,
    trigger_ms: Annotated[
        int | None, typer.Option(help="Shortest time between the starts of two micro-batches.", show_default=False)
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End with exit code 6 when the cluster does not answer.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_clients: MetricsClients = False,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Run `kquota dashboard` beside it.")] = False,
    dashboard_port: Annotated[
        int, typer.Option(help="Where that listens, on this machine only; 0 means any free one.", min=0, max=65_535)
    ] = DEFAULT_PORT,
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Run `kquota alerts run` beside it: tell the receivers of the settings.")
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
    from pipeline.cli.services.beside import alerts_beside, dashboard_beside
    from pipeline.cli.services.console import log_batch, log_throttles
    from pipeline.cli.signals import call_on_signals
    from pipeline.job.job import Job
    from pipeline.job.listeners import Listeners
    from pipeline.job.metrics import job_metrics
    from pipeline.job.state_place import refuse_state_on_one_node
    from pipeline.log import set_up_logging
    from pipeline.metrics.endpoint import metrics_endpoint
    from pipeline.settings.catalog import is_in_catalog
    from pipeline.settings.loading import load_settings
    from pipeline.stream.spark.submitted import refuse_without_connectors, runs_in_the_cluster
    from pipeline.sync.beside import sync_beside
    from pipeline.tables.from_settings import create_tables
    from pipeline.tables.shards import refuse_other_division

    given = flags(
        bootstrap_server,
        command_config,
        tables,
        stream={"trigger_ms": trigger_ms, "checkpoint": checkpoint},
        job=job,
        shard=shard,
        run_dir=run_dir,
        metrics=metrics_flags(metrics_port, metrics_clients),
    )
    settings = load_settings(config, given)
    set_up_logging(settings.log_level)
    if sync and settings.shard is not None:
        raise SyncNeedsAllUsers(settings.shard)
    refuse_other_division(settings)
    refuse_without_connectors()
    if runs_in_the_cluster():
        refuse_state_on_one_node(settings)
    listeners, registry = job_metrics(settings, Listeners(log_throttles, log_batch))
    running = Job(settings, listeners, waits=not no_wait)
    with call_on_signals(running.stop), metrics_endpoint(settings.metrics, registry):
        if not is_in_catalog(settings.tables.root):  # those the job creates, when it has Spark
            create_tables(settings.tables)
        with (
            dashboard_beside(dashboard, dashboard_port, config, settings.tables.root),
            alerts_beside(alerts, settings, config, command_config),
            sync_beside(settings, running.stop) if sync else nullcontext(),
        ):
            running.run()
