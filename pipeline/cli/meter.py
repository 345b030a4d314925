"""`kquota meter`: report the usage of a broker's clients, as the broker itself observes it.

The Kafka client takes 0.3 s to import. It is imported where it is used, so that `--help` does not wait for it.
"""

import signal
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from pipeline.cli.options import BootstrapServers, ClusterSource, CodecName, MetricsPort, UsageTopicName
from pipeline.clock import SystemClock
from pipeline.errors import PipelineError, Unreachable
from pipeline.log import set_up_logging
from schemas.names import MARKER_TOPIC, USAGE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.meter.log_follower import LogPlace
    from pipeline.meter.request_log import RequestLogParser
    from pipeline.meter.request_meter import MeterGauges
    from pipeline.meter.usage_topic import UsagePublisher


def request_log(
    file: Annotated[
        Path | None, typer.Argument(help="The file that kafka.request.logger writes at DEBUG; or -f FILE.")
    ] = None,
    file_option: Annotated[Path | None, typer.Option("-f", "--file", hidden=True)] = None,
    *,
    broker_id: Annotated[str, typer.Option(help="node.id of the broker; written to every event.")],
    source: ClusterSource,
    topic: UsageTopicName = None,
    marker_topic: Annotated[
        str | None, typer.Option(help="The marker topic; keeps the place in the log.", show_default=MARKER_TOPIC)
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="At the first start: read the whole file, not only new lines.")
    ] = False,
    state_file: Annotated[
        Path | None,
        typer.Option(
            help="State file of an earlier release, taken over once [default: .kquota/meter-<broker-id>.json]."
        ),
    ] = None,
    internal_listener: Annotated[
        list[str] | None, typer.Option(help="Listener that brokers use among themselves; repeatable.")
    ] = None,
    internal_principal: Annotated[
        list[str] | None, typer.Option(help="Principal of the brokers on those listeners; repeatable.")
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option(help="Time zone of the log, e.g. Europe/Berlin [default: this machine's].")
    ] = None,
    codec: CodecName = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Follow the request log of a Kafka 4 broker and send a usage event for each client request.

    Cluster, security, topics, codec and log level can also stand in the settings, as for the job; flags win.
    Requests of --internal-principal (default User:ANONYMOUS) on --internal-listener (default CONTROLLER) are the
    cluster's own. They are left out, and so are follower fetches and what any meter sends to the usage topic.

    Events and the place in the log are stored in one transaction, so each event is stored once, also after kill -9. The
    place is the offset of group kquota-meter.<broker-id>. A second meter of the same broker ends the first, with 4.
    Runs until SIGTERM or Ctrl-C, then stores the rest and ends with 0. It ends with 6 if the rest could not be stored;
    the next start does it.
    """
    from kafka import KafkaAdminClient

    from pipeline.cluster.access import ClusterAccess
    from pipeline.meter.request_log import OwnTraffic, RequestLogParser
    from pipeline.meter.request_meter import MeterGauges, meter_metrics, read_state
    from pipeline.meter.usage_messages import JSON, PACKED
    from pipeline.meter.usage_topic import KafkaUsageTopic, UsagePublisher, UsageTopic
    from pipeline.metrics import ReadAtScrape, metrics_endpoint, new_registry

    log_file = file or file_option
    if log_file is None or None not in {file, file_option}:
        message = "give FILE once, as an argument or with -f"
        raise typer.BadParameter(message)
    zone = _zone(time_zone)
    names = {"usage_topic": topic, "marker_topic": marker_topic}
    settings = source.settings(topics=names, metrics={"port": metrics_port}, meter={"codec": codec})
    set_up_logging(settings.log_level)
    access = ClusterAccess.from_settings(settings.kafka)
    topic, address = settings.kafka.usage_topic, access.bootstrap_servers
    state_path = state_file or Path(".kquota") / f"meter-{broker_id}.json"
    access.client_options()  # mistakes there are reported before anything else
    old_place = read_state(state_path)
    access = replace(access, properties={"client.id": f"kquota-meter-{broker_id}", **access.properties})
    with closing(access.open(KafkaAdminClient)) as admin:
        usage_topic = UsageTopic.described_by(admin, topic)
    own = OwnTraffic(
        listeners=frozenset(internal_listener or OwnTraffic().listeners),
        principals=frozenset(internal_principal or OwnTraffic().principals),
        usage_topic=usage_topic,
    )
    parser = RequestLogParser(broker_id, own, zone, PACKED if settings.meter.codec == "packed" else JSON)
    stopping = threading.Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stopping.set())
    timeout_ms = settings.kafka.transaction_timeout_ms
    kafka_topic = KafkaUsageTopic(broker_id, topic, settings.kafka.marker_topic, access, timeout_ms)
    registry = new_registry("meter")

    def register(gauges: MeterGauges) -> None:
        registry.register(ReadAtScrape(lambda: meter_metrics(gauges, broker_id)))

    endpoint = metrics_endpoint(settings.metrics, registry)
    with endpoint, closing(UsagePublisher(broker_id, kafka_topic, f"{topic} at {address}")) as publisher:
        places = (log_file, from_beginning, state_path, old_place)
        _run(*places, parser, publisher, f"{topic} at {address}", stopping, register)


def reporter(
    *,
    jar: Annotated[Path, typer.Option("--jar", help="Write the jar here: a file, or a folder that exists.")],
    bootstrap_server: BootstrapServers = None,
    topic: Annotated[str, typer.Option(help="The usage topic.")] = USAGE_TOPIC,
) -> None:
    """Write the jar that reports usage from inside a broker, and print its lines of server.properties.

    The jar belongs into the broker's libs/ folder, and the lines into server.properties of each broker; then restart
    it. The reporter needs no request log and sends what the broker's own quota sensors record, each 250 ms.
    """
    from pipeline.meter.reporter import reporter_settings, write_reporter

    written = write_reporter(jar)
    typer.echo(f"wrote {written}", err=True)
    for name, value in reporter_settings(bootstrap_server or "localhost:9092", topic).items():
        typer.echo(f"{name}={value}")


def _run(
    file: Path,
    from_beginning: bool,
    state_path: Path,
    old_place: "LogPlace | None",
    parser: "RequestLogParser",
    publisher: "UsagePublisher",
    destination: str,
    stopping: threading.Event,
    register: "Callable[[MeterGauges], None]",
) -> None:
    from pipeline.meter.log_follower import LogFollower
    from pipeline.meter.request_meter import MeterGauges, RequestMeter, retire_state

    if not file.parent.is_dir():
        raise _log_unreadable(file, "its folder does not exist")
    try:
        place = publisher.take_over()
        if place is not None:
            whence = "where it was left"
        elif old_place is not None:
            whence = f"the place in {state_path}"
        else:
            whence = "the beginning" if from_beginning else "the end"
        follower = LogFollower(file, "beginning" if from_beginning else "end", place or old_place)
        meter = RequestMeter(follower, parser, publisher, SystemClock(), stopping.wait)
        counts = parser.counts, publisher.counts, follower.counts
        register(MeterGauges(*counts, lambda: meter.unstored_events, lambda: meter.held_bytes))
        how = ", packed" if parser.codec.is_packed else ""
        typer.echo(f"following {file} from {whence}, to {destination}{how}", err=True)
        stored = meter.run(stopping.is_set, lambda: retire_state(state_path))
    except OSError as exc:
        raise _log_unreadable(file, str(exc)) from exc
    typer.echo("; ".join(map(str, counts)), err=True)
    if not stored:
        msg = f"{meter.unstored_events:,} usage events could not be stored on {destination}"
        raise Unreachable(msg, "start the meter again: it continues with the first of them")


def _log_unreadable(file: Path, reason: str) -> PipelineError:
    fix = "name the file that logger kafka.request.logger of the broker writes at DEBUG"
    return PipelineError(f"cannot follow request log {file}: {reason}", fix)


def _zone(name: str | None) -> ZoneInfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as exc:
        msg = f"unknown time zone {name!r}; use a name of the tz database"
        raise typer.BadParameter(msg) from exc
