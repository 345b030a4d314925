"""`kquota alerts`: tell people by webhook and Kafka topic, and test that they can be told."""

from typing import Final

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, MetricsPort, Output, TablesRoot, flags

_NICER: Final = 5

app = typer.Typer(help="Tell people of throttles, clients near their bounds, and trouble.", no_args_is_help=True)


@app.command("run")
def run(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    tables: TablesRoot = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Look at the tables and tell the receivers of the settings, until SIGTERM or Ctrl-C.

    An alert is told when it begins, when it ends, and again after alerts.repeat_ms. What goes on and what has not
    arrived is kept in a file, so a restart repeats little and loses nothing. Ends with 2 without receivers, and with 4
    if another process tells the same alerts.
    """
    from pipeline.allocator import do_without_pandas, return_memory_at_once

    return_memory_at_once()
    import os

    from pipeline.alerts.running import run_alerts
    from pipeline.cli.signals import wait_until_stopped
    from pipeline.job.heartbeat import signs_of
    from pipeline.log import set_up_logging
    from pipeline.metrics.endpoint import metrics_endpoint
    from pipeline.metrics.registry import new_registry
    from pipeline.settings.loading import load_settings

    settings = load_settings(config, flags(bootstrap_server, command_config, tables, metrics={"port": metrics_port}))
    set_up_logging(settings.log_level)
    do_without_pandas()
    os.nice(_NICER)  # a job on the same machine goes first
    signs = signs_of(settings.run_dir, settings.job, settings.tables.root)
    registry = new_registry("alerts")
    with wait_until_stopped() as wait, metrics_endpoint(settings.metrics, registry):
        run_alerts(settings, signs, registry, wait)


@app.command("test")
def send_test(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    output: Output = "table",
) -> None:
    """Send one test alert to each receiver of the settings, once, and print what it answered.

    Ends with 6 if one of them does not take it.
    """
    from pipeline.alerts.errors import ReceiversRefused
    from pipeline.alerts.running import try_receivers
    from pipeline.cli.output import print_rows
    from pipeline.clock import wall_ms
    from pipeline.settings.loading import load_settings

    settings = load_settings(config, flags(bootstrap_server, command_config))
    trials = list(try_receivers(settings, wall_ms()))
    rows = [
        {
            "receiver": trial.receiver,
            "at": trial.place,
            "result": "taken" if trial.answer.verdict == "taken" else "not taken",
            "answer": trial.answer.told,
            "took_ms": trial.took_ms,
        }
        for trial in trials
    ]
    print_rows(rows, output)
    failed = [trial.receiver for trial in trials if trial.answer.verdict != "taken"]
    if failed:
        raise ReceiversRefused(failed)
