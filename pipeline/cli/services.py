"""Programs that run until they are stopped: `kquota run`, `dashboard`, `gate` and `alerts`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipeline.cli.options import (
    BootstrapServers,
    CommandConfig,
    ConfigFile,
    MetricsClients,
    MetricsPort,
    Output,
    TablesRoot,
    flags,
    metrics_flags,
)
from pipeline.command_line import not_installed
from pipeline.errors import Unreachable, UsageError
from pipeline.process import do_without_pandas, return_memory_at_once, return_query_memory_soon, share_one_allocator

if TYPE_CHECKING:
    from pipeline.settings.model import Settings


# `kquota dashboard`.

DEFAULT_PORT: Final = 8788
_NICENESS: Final = 10


def dashboard(
    port: Annotated[int, typer.Option(help="0 means any free one.", min=0, max=65_535)] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(help="Where to listen; without a token only on this machine.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Its first line is the bearer token that requests must carry; else KQUOTA_DASHBOARD_TOKEN.",
            show_default=False,
        ),
    ] = None,
    allow_edits: Annotated[
        bool, typer.Option("--allow-edits", help="Quotas may be edited in the page; needs a token.")
    ] = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
) -> None:
    """Show on a web page who is throttled, why, until when, and whether the pipeline works.

    Reads the Delta tables and nothing else: no Kafka, no JVM, nothing from elsewhere.
    Prints the page's address when it answers. Runs until SIGTERM or Ctrl-C.
    """
    share_one_allocator()
    return_query_memory_soon()
    import os
    import sys

    from pipeline.cli.options import call_on_signals
    from pipeline.job.status import signs_of
    from pipeline.log import set_up_logging
    from pipeline.settings.loading import load_settings

    try:
        from pipeline.dashboard.http import TOKEN_VARIABLE, DashboardServer
        from pipeline.web import Listen, read_token
    except ModuleNotFoundError as exc:
        raise not_installed(exc.name or "starlette", "dashboard") from exc
    settings = load_settings(config, flags(tables=tables))
    set_up_logging(settings.log_level)
    token = read_token(token_file, TOKEN_VARIABLE)
    signs = signs_of(settings.run_dir, settings.job, settings.tables.root)
    server = DashboardServer(settings, signs, Listen(host, port), token, allow_edits)
    with call_on_signals(server.stop):
        sys.stderr.write(f"dashboard: {server.address}\n")
        sys.stderr.flush()
        do_without_pandas()
        # A job on the same machine goes first.
        os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
        server.run()


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
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Run `kquota dashboard`, too.")] = False,
    dashboard_port: Annotated[
        int, typer.Option(help="Where that listens, on this machine only; 0 means any free one.", min=0, max=65_535)
    ] = DEFAULT_PORT,
    alerts: Annotated[
        bool, typer.Option("--alerts", help="Run `kquota alerts run`, too, for the receivers of the settings.")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Keep the brokers' own quotas too, as `kquota quotas sync` does.")
    ] = False,
) -> None:
    """Run the job until SIGTERM or Ctrl-C: read usage, decide, throttle, release, record.

    Missing tables are created; topics are checked and never changed (see `kquota topics create`). With --sync, both end
    together.
    """
    return_memory_at_once()
    from pipeline.brokers.running import sync_beside
    from pipeline.cli.console import log_batch, log_throttles
    from pipeline.cli.options import call_on_signals
    from pipeline.job.job import Job
    from pipeline.job.metrics import Listeners, job_metrics
    from pipeline.job.take_over import refuse_state_on_one_node
    from pipeline.log import set_up_logging
    from pipeline.metrics import metrics_endpoint
    from pipeline.settings.loading import load_settings
    from pipeline.settings.places import is_in_catalog
    from pipeline.stream.session import refuse_without_connectors, runs_in_the_cluster
    from pipeline.tables.from_settings import create_tables, refuse_other_division

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
        msg = f"--sync needs the usage of all users; shard {settings.shard} has a share of them"
        raise UsageError(msg, "leave --sync out, or run one job for all users")
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


# `kquota gate`.

DEFAULT_LISTEN: Final = "127.0.0.1:8787"


def gate(
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 means any free one.")] = DEFAULT_LISTEN,
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    topic: Annotated[str | None, typer.Option(help="The throttle topic.", show_default=False)] = None,
    cluster: Annotated[str | None, typer.Option(help="Use only records of this cluster.", show_default=False)] = None,
    pool_bytes: Annotated[
        int, typer.Option(help="Bound of waiting requests; each is charged 16 KiB.", min=16_384)
    ] = 67_108_864,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Its first line is the bearer token that requests must carry; else KQUOTA_GATE_TOKEN.",
            show_default=False,
        ),
    ] = None,
    metrics_clients: MetricsClients = False,
) -> None:
    """Answer over HTTP whether a client is throttled, until when and why. Requests may wait until it is not.

    GET /v1/throttle?user=&client_id=[&wait_ms=] is answered with 200, or with 429 and Retry-After. GET /v1/throttles
    lists all running throttles. GET /healthz returns ok, catching-up or stale; GET /metrics is for Prometheus.

    It also starts while the broker is away: then no client is throttled, and it keeps trying to reach the broker. Runs
    until SIGTERM or Ctrl-C.
    """
    import sys

    from pipeline.cli.options import call_on_signals
    from pipeline.cluster.access import ClusterAccess
    from pipeline.gate.follower import KafkaFollower
    from pipeline.gate.gate import Gate
    from pipeline.gate.http import gate_metrics
    from pipeline.gate.waiting_room import GateLimits
    from pipeline.log import set_up_logging
    from pipeline.metrics import ReadAtScrape, new_registry
    from pipeline.settings.loading import load_settings

    try:
        from pipeline.gate.http import TOKEN_VARIABLE, GateServer
        from pipeline.web import parse_listen, read_token
    except ModuleNotFoundError as exc:
        raise not_installed(exc.name or "starlette", "gate") from exc
    metrics = metrics_flags(None, metrics_clients)
    settings = load_settings(config, flags(bootstrap_server, command_config, cluster=cluster, metrics=metrics))
    set_up_logging(settings.log_level)
    access = ClusterAccess.from_settings(settings.kafka)
    throttle_topic = topic or settings.kafka.throttle_topic
    follower = KafkaFollower(access.bootstrap_servers, throttle_topic, access.client_options())
    side_car_gate = Gate(follower, GateLimits(pool_bytes, max_request_bytes=16_384), settings.cluster)
    registry = new_registry("gate")
    by_client = settings.metrics.clients
    registry.register(ReadAtScrape(lambda: gate_metrics(side_car_gate, by_client)))
    server = GateServer(side_car_gate, parse_listen(listen), read_token(token_file, TOKEN_VARIABLE), registry)
    with call_on_signals(server.stop):
        side_car_gate.start()
        sys.stderr.write(f"listening on port {server.port}, following {throttle_topic} at {access.bootstrap_servers}\n")
        sys.stderr.flush()
        server.run()


# The dashboard and the alerts of a job: processes of their own, which end with it.


def free_port(wanted: int | None) -> int | None:
    """The port for a page, or a free one if it is taken; None for no page, or if its libraries are not installed."""
    from pipeline.demo.process import free_ports, is_free

    if wanted is None or find_spec("uvicorn") is None or find_spec("starlette") is None:
        return None
    return wanted if is_free(wanted) else free_ports(1)[0]


@contextmanager
def dashboard_beside(wanted: bool, port: int, config: Path | None, tables_root: str) -> Iterator[None]:
    """Within the block the dashboard runs, if it is wanted. It prints its address itself, on stderr.

    Args:
        config: The job's settings file; None = none.

    Raises:
        PipelineError: Its libraries are not installed.
    """
    if not wanted:
        yield
        return
    from pipeline.demo.process import spawn, terminate

    for library in ("starlette", "uvicorn"):
        if find_spec(library) is None:
            raise not_installed(library, "dashboard")
    command = [sys.executable, "-m", "pipeline.cli.main", "dashboard", "--port", str(port), "--tables", tables_root]
    command += [] if config is None else ["--config", str(config)]
    child = spawn(command, cwd=Path.cwd(), output=sys.stderr.fileno())
    try:
        yield
    finally:
        terminate(child, 5.0)


@contextmanager
def alerts_beside(
    wanted: bool, settings: "Settings", config: Path | None, command_config: Path | None
) -> Iterator[None]:
    """Within the block `kquota alerts run` runs, if it is wanted. Its metrics, if the job has some, get a free port.

    Args:
        config: The job's settings file; None = none.
        command_config: The job's client.properties; None = none.

    Raises:
        UsageError: No receiver is set, or one cannot be used.
    """
    if not wanted:
        yield
        return
    from pipeline.alerts.receivers import receivers_of
    from pipeline.demo.process import spawn, terminate

    receivers_of(settings)  # refused here, where the operator sees it
    command = [sys.executable, "-m", "pipeline.cli.main", "alerts", "run", "--tables", settings.tables.root]
    for option, value in (
        ("--config", config),
        ("--command-config", command_config),
        ("--bootstrap-server", settings.kafka.bootstrap_servers),
        ("--metrics-port", None if settings.metrics.port is None else 0),
    ):
        command += [] if value is None else [option, str(value)]
    child = spawn(command, cwd=Path.cwd(), output=sys.stderr.fileno())
    try:
        yield
    finally:
        terminate(child, 5.0)


# `kquota alerts`.

_NICER: Final = 5

alerts_app = typer.Typer(help="Send alerts of throttles, clients near their bounds, and trouble.", no_args_is_help=True)


@alerts_app.command("run")
def run_alerts_command(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    tables: TablesRoot = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Read the tables and send alerts to the receivers of the settings, until SIGTERM or Ctrl-C.

    An alert is sent when it begins, when it ends, and again after alerts.repeat_ms. Alerts that last and messages that
    have not arrived are kept in a file, so a restart repeats little and loses nothing. Ends with 2 without receivers,
    and with 4 if another process sends the same alerts.
    """
    from pipeline.process import do_without_pandas, return_memory_at_once

    return_memory_at_once()
    import os

    from pipeline.alerts.alerter import run_alerts
    from pipeline.cli.options import wait_until_stopped
    from pipeline.job.status import signs_of
    from pipeline.log import set_up_logging
    from pipeline.metrics import metrics_endpoint, new_registry
    from pipeline.settings.loading import load_settings

    settings = load_settings(config, flags(bootstrap_server, command_config, tables, metrics={"port": metrics_port}))
    set_up_logging(settings.log_level)
    do_without_pandas()
    os.nice(_NICER)  # a job on the same machine goes first
    signs = signs_of(settings.run_dir, settings.job, settings.tables.root)
    registry = new_registry("alerts")
    with wait_until_stopped() as wait, metrics_endpoint(settings.metrics, registry):
        run_alerts(settings, signs, registry, wait)


@alerts_app.command("test")
def send_test(
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    output: Output = "table",
) -> None:
    """Send one test alert to each receiver of the settings, once, and print what it answered.

    Ends with 6 if one does not take it.
    """
    from pipeline.alerts.alerter import try_receivers
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
            "answer": trial.answer.text,
            "took_ms": trial.took_ms,
        }
        for trial in trials
    ]
    print_rows(rows, output)
    failed = [trial.receiver for trial in trials if trial.answer.verdict != "taken"]
    if failed:
        msg = f"the test alert did not arrive at {', '.join(failed)}"
        raise Unreachable(msg, "the column answer has the reason")
