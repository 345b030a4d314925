"""Programs that run until they are stopped: `kquota run`, `dashboard`, `gate` and `demo`."""

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import (
    ClusterSource,
    JobSource,
    MetricsPort,
    TablesSource,
)
from pipeline.cli.output import remark
from pipeline.command_line import JOB, RUN_DIR, carry, path_text
from pipeline.demo.folder import DemoFolder
from pipeline.log import set_up_logging
from pipeline.process import call_on_signals, ending_within, free_ports, is_free
from pipeline.settings.model import load_settings

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.stream.micro_batch import BatchReport


DEFAULT_PORT: Final = 8788
DEFAULT_LISTEN: Final = "127.0.0.1:8787"
_DASHBOARD_NICENESS: Final = 10
_LONGEST_END_SECONDS: Final = 90.0


def _token_option(variable: str) -> Any:
    text = f"Its first line is the bearer token that requests must carry; else {variable}."
    return typer.Option(help=text, show_default=False)


TokenFile = Annotated[Path | None, _token_option("KQUOTA_DASHBOARD_TOKEN")]


def dashboard(
    *,
    port: Annotated[int, typer.Option(help="0 means any free one.", min=0, max=65_535)] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(help="Where to listen; without a token only on this machine.")] = "127.0.0.1",
    token_file: TokenFile = None,
    source: TablesSource,
) -> None:
    """Show on a web page who is throttled, why, until when, and whether the pipeline works.

    Reads the Delta tables and nothing else: no Kafka, no JVM, nothing from elsewhere.
    Prints the page's address when it answers. Runs until SIGTERM or Ctrl-C.
    """
    from pipeline.dashboard.views import TOKEN_VARIABLE, DashboardServer
    from pipeline.job.status import signs_of
    from pipeline.web import Listen, read_token

    settings = source.settings()
    signs = signs_of(settings.run_dir, settings.job, settings.tables.root)
    set_up_logging(settings.log_level)
    token = read_token(token_file, TOKEN_VARIABLE)
    server = DashboardServer(settings, signs, Listen(host, port), token)
    with call_on_signals(server.stop):
        remark(f"dashboard: {server.address}")
        # A job on the same machine goes first.
        os.setpriority(os.PRIO_PROCESS, 0, max(_DASHBOARD_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
        server.run()


def run(
    source: JobSource,
    checkpoint: Annotated[str | None, typer.Option(help="Spark's checkpoint folder.")] = None,
    run_dir: Annotated[
        str | None, typer.Option(help="Folder of the lock file of a job with tables in a store.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job.")] = None,
    trigger_ms: Annotated[
        int | None, typer.Option(help="Shortest time between the starts of two micro-batches.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End with exit code 6 when the cluster does not answer.")
    ] = False,
    take_topic: Annotated[
        bool,
        typer.Option("--take-topic", help="Take the throttle topic from a job of the same name with other tables."),
    ] = False,
    metrics_port: MetricsPort = None,
) -> None:
    """Run the job until SIGTERM or Ctrl-C: read usage, decide, throttle, release, record.

    Missing tables are created; topics are checked and never changed (see `kquota topics create`).
    """
    from pipeline.stream.session import SparkStarter, refuse_without_connectors, runs_in_the_cluster

    settings = source.settings(
        stream={"trigger_ms": trigger_ms, "checkpoint": checkpoint},
        job=job,
        run_dir=run_dir,
        metrics={"port": metrics_port},
    )
    for variable, given in ((JOB, job), (RUN_DIR, run_dir)):
        if given is not None:
            carry(variable, given)
    set_up_logging(settings.log_level)
    refuse_without_connectors()
    with SparkStarter(settings) as starter:  # what is imported now is imported while the JVM starts
        from pipeline.job.job import Job
        from pipeline.job.job_run import refuse_state_on_one_node
        from pipeline.job.metrics import Listeners, job_metrics
        from pipeline.tables.layout import create_tables
        from pipeline.web import metrics_endpoint

        if runs_in_the_cluster():
            refuse_state_on_one_node(settings)
        listeners, registry = job_metrics(
            settings, Listeners(log_throttles, lambda report: log.info(status_line(report)))
        )
        running = Job(settings, listeners, waits=not no_wait, takes_topic=take_topic)
        stop = ending_within(_LONGEST_END_SECONDS, running.stop)
        with call_on_signals(stop), metrics_endpoint(settings.metrics, registry):
            create_tables(settings.tables.root)
            running.run(starter)


# What the job prints while it runs: throttles and every micro-batch, as log lines on stderr.

log = logging.getLogger("pipeline.job")

MOST_LINES: Final = 200
"""So many records that were written together get a line each. The lines of 10^5 would take longer than the records."""


def log_throttles(written: "pa.Table", quota_version: int) -> None:
    """Write one log line for each published record; of more than `MOST_LINES` the first ones, and how many follow."""
    from pipeline.throttle.shapes import line_with_command

    if not log.isEnabledFor(logging.INFO):
        return
    for row in written.slice(0, MOST_LINES).to_pylist():
        log.info(line_with_command(row, quota_version))
    if written.num_rows > MOST_LINES:
        log.info("and %d more throttle records at the same time: see throttle_events", written.num_rows - MOST_LINES)


def status_line(report: "BatchReport") -> str:
    """The facts of a micro-batch. `age_ms` is the age of its newest event at the time its records became readable."""
    facts = report.facts
    return (
        f"batch_id={facts.evaluation.batch_id} events={facts.good_count} late={facts.late_count} "
        f"clamped={facts.clamped_count} ignored={facts.ignored_count} dead_letters={facts.dead_count} "
        f"violations={report.violations} published={report.published} held={report.held} "
        f"collect_ms={report.collect_ms} append_ms={report.append_ms} "
        f"decide_ms={report.decide_ms} publish_ms={report.publish_ms} "
        f"age_ms={report.age_ms} quotas=v{facts.evaluation.quota_version}"
    )


def gate(
    *,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 means any free one.")] = DEFAULT_LISTEN,
    source: ClusterSource,
    cluster: Annotated[str | None, typer.Option(help="Use only records of this cluster.")] = None,
    pool_bytes: Annotated[
        int, typer.Option(help="Bound of waiting requests; each is charged 16 KiB.", min=16_384)
    ] = 67_108_864,
    token_file: Annotated[Path | None, _token_option("KQUOTA_GATE_TOKEN")] = None,
) -> None:
    """Answer over HTTP whether a client is throttled, until when and why. Requests may wait until it is not.

    GET /v1/throttle?user=&client_id=[&wait_ms=] is answered with 200, or with 429 and Retry-After. GET /v1/throttles
    lists all running throttles. GET /healthz returns ok, catching-up or stale; GET /metrics is for Prometheus.

    It also starts while the broker is away: then no client is throttled, and it keeps trying to reach the broker. Runs
    until SIGTERM or Ctrl-C.
    """
    from pipeline.cluster.connecting import ClusterAccess
    from pipeline.gate.follower import KafkaFollower
    from pipeline.gate.gate import Gate
    from pipeline.gate.http import TOKEN_VARIABLE, GateServer, gate_metrics
    from pipeline.gate.waiting_room import GateLimits
    from pipeline.web import ReadAtScrape, new_registry, parse_listen, read_token

    settings = source.settings(cluster=cluster)
    set_up_logging(settings.log_level)
    access = ClusterAccess.from_settings(settings.kafka)
    throttle_topic = settings.kafka.throttle_topic
    follower = KafkaFollower(access.bootstrap_servers, throttle_topic, access.client_options())
    side_car_gate = Gate(follower, GateLimits(pool_bytes, max_request_bytes=16_384), settings.cluster)
    registry = new_registry("gate")
    registry.register(ReadAtScrape(lambda: gate_metrics(side_car_gate)))
    server = GateServer(side_car_gate, parse_listen(listen), read_token(token_file, TOKEN_VARIABLE), registry)
    with call_on_signals(server.stop):
        side_car_gate.start()
        remark(f"listening on port {server.port}, following {throttle_topic} at {access.bootstrap_servers}")
        server.run()


# The page of the demo.


_DEMO_TRIGGER_MS: Final = 250


def free_port(wanted: int) -> int:
    """The port for a page, or a free one if it is taken."""
    return wanted if is_free(wanted) else free_ports(1)[0]


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
    port: Annotated[
        int, typer.Option(help="Port of the page; a free one if it is taken.", min=1, max=65_535)
    ] = DEFAULT_PORT,
) -> None:
    """Start a real Kafka broker, twelve clients and the job; show who is throttled, why, until when.

    On a terminal it is one screen, with the address of a page that shows the same; else a line for each record.

    Two of the clients use 2 and 5 times their quota, and listen to throttles. Two more do not listen: the
    broker slows them. Ctrl-C stops everything. The data stays for the next run.
    """
    place = DemoFolder(folder.absolute())
    # Before anything heavy is imported: a second demo is refused at once.
    with place.claimed():
        _run_demo(place, duration, fresh, brokers, port)


def _run_demo(
    place: "DemoFolder",
    duration: float | None,
    fresh: bool,
    brokers: int | None,
    port: int,
) -> None:
    from pipeline.cli.demo_console import DemoConsole
    from pipeline.demo.run import Demo, start_over
    from pipeline.jvm.jars import fetch

    settings = load_settings(flags={"stream": {"trigger_ms": _DEMO_TRIGGER_MS}})
    if fresh:
        start_over(place, settings.job)
    count = place.choose_brokers(brokers)
    fetch(remark)
    page_port = free_port(port)
    watched = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    console = DemoConsole(place, f"http://127.0.0.1:{page_port}/", watched)
    set_up_logging("INFO", console if watched else None)
    running = Demo(place, settings, console.listeners(), count, page_port)
    with call_on_signals(ending_within(_LONGEST_END_SECONDS, running.stop)), console.shown(lambda: running.is_stopping):
        running.run(duration)
    if not running.has_begun:
        remark("stopped before the demo had begun")
        return
    console.summary()
    where = path_text(place.root)
    remark(f"its data is left in {where}, for the next demo; delete them: rm -r {shlex.quote(where)}")
