"""`kquota meter`: report the usage of a broker's clients, as the broker itself observes it.

The Kafka client takes 0.3 s to import. It is imported where it is used, so that `--help` does not wait for it.
"""

import signal
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, flags
from schemas.topic_names import USAGE_TOPIC

app = typer.Typer(help="Turn what a broker observes into usage events.", no_args_is_help=True)


@app.callback()
def _meters() -> None:
    # Without a callback, Typer would drop the name of the only command.
    pass


@app.command("request-log")
def request_log(
    file: Annotated[
        Path | None,
        typer.Argument(help="The file that kafka.request.logger writes at DEBUG; or -f FILE.", show_default=False),
    ] = None,
    file_option: Annotated[Path | None, typer.Option("-f", "--file", hidden=True)] = None,
    *,
    broker_id: Annotated[str, typer.Option(help="node.id of the broker; written to every event.")],
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    topic: Annotated[str | None, typer.Option(help="The usage topic.", show_default=USAGE_TOPIC)] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Without state: read the whole file, not only new lines.")
    ] = False,
    state_file: Annotated[
        Path | None,
        typer.Option(help="Remembers the place in the log [default: .kquota/meter-<broker-id>.json]."),
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
) -> None:
    """Follow the request log of a Kafka 4 broker and send a usage event for each client request.

    Cluster, security, usage topic and log level can also stand in the settings, as for the job; flags win.
    Requests of --internal-principal (default User:ANONYMOUS) on --internal-listener (default CONTROLLER) are the
    cluster's own. They are left out, and so are follower fetches and what any meter sends to the usage topic. Runs
    until SIGTERM or Ctrl-C, then sends the rest and ends with 0. It ends with 6 if the rest could not be stored; the
    next start sends it.
    """
    from kafka import KafkaAdminClient, KafkaProducer

    from pipeline.cluster.access import ClusterAccess
    from pipeline.cluster.connecting import open_client
    from pipeline.log import set_up_logging
    from pipeline.meter.meter_state import read_state
    from pipeline.meter.request_log import OwnTraffic, RequestLogParser
    from pipeline.meter.usage_producer import KafkaUsageSink
    from pipeline.meter.usage_topic import UsageTopic
    from pipeline.settings.loading import load_settings

    log_file = file or file_option
    if log_file is None or None not in {file, file_option}:
        message = "'FILE' must be given once, as an argument or with -f"
        raise typer.BadParameter(message)
    zone = _zone(time_zone)
    settings = load_settings(config, flags(bootstrap_server, command_config, topics={"usage_topic": topic}))
    set_up_logging(settings.log_level)
    access = ClusterAccess.from_settings(settings.kafka)
    topic, address, options = settings.kafka.usage_topic, access.bootstrap_servers, access.client_options()
    state_path = state_file or Path(".kquota") / f"meter-{broker_id}.json"
    resume = read_state(state_path)
    client_id = options.pop("client_id", f"kquota-meter-{broker_id}")
    with closing(open_client(KafkaAdminClient, address, client_id=client_id, **options)) as admin:
        usage_topic = UsageTopic.described_by(admin, topic)
    own = OwnTraffic(
        listeners=frozenset(internal_listener or OwnTraffic().listeners),
        principals=frozenset(internal_principal or OwnTraffic().principals),
        usage_topic=usage_topic,
    )
    parser = RequestLogParser(broker_id, own, zone)
    stopping = _stop_on_signals()
    producer: Any = open_client(
        KafkaProducer,
        address,
        client_id=client_id,
        acks="all",
        linger_ms=5,
        batch_size=262_144,
        max_block_ms=5_000,
        request_timeout_ms=5_000,
        delivery_timeout_ms=10_000,
        **options,
    )
    try:
        open_sink = partial(KafkaUsageSink, producer, topic, address, options)
        _run(log_file, from_beginning, state_path, resume, parser, open_sink, topic, address, stopping)
    finally:
        producer.close(timeout=2)


def _run(
    file: Path,
    from_beginning: bool,
    state_path: Path,
    resume: Any,
    parser: Any,
    open_sink: Callable[[], Any],
    topic: str,
    address: str,
    stopping: threading.Event,
) -> None:
    from pipeline.clock import SystemClock
    from pipeline.meter.errors import RequestLogMissing, UsageNotStored
    from pipeline.meter.log_follower import LogFollower
    from pipeline.meter.meter_state import make_folder
    from pipeline.meter.request_meter import RequestMeter
    from pipeline.meter.usage_producer import Batching, UsageProducer

    if not file.parent.is_dir():
        raise RequestLogMissing(file, "has no folder")
    make_folder(state_path)
    usage = UsageProducer(open_sink(), Batching(), f"{topic} at {address}")
    try:
        follower = LogFollower(file, "beginning" if from_beginning else "end", resume)
        meter = RequestMeter(follower, parser, usage, state_path, SystemClock(), stopping.wait)
        place = "where it was left" if resume else "the beginning" if from_beginning else "the end"
        typer.echo(f"following {file} from {place}, to {topic} at {address}", err=True)
        stored = meter.run(stopping.is_set)
    except OSError as exc:
        raise RequestLogMissing(file, f"cannot be followed: {exc}") from exc
    typer.echo(
        f"{parser.counts}; {usage.counts}; {follower.counts}",
        err=True,
    )
    if not stored:
        raise UsageNotStored(topic, address, usage.unsent_bytes)


def _zone(name: str | None) -> ZoneInfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as exc:
        msg = f"'time-zone' must be a name of the tz database; got {name!r}"
        raise typer.BadParameter(msg) from exc


def _stop_on_signals() -> threading.Event:
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, stop)
    return stopping
