"""`kquota meter`: usage as brokers observe it, by request log, reporter or metrics; and what makes them measure.

The Kafka client takes 0.3 s to import. It is imported where it is used, so that `--help` does not wait for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from pipeline.cli.options import (
    BootstrapServers,
    ClusterSource,
    JobSource,
    MetricsPort,
    Output,
    UsageTopicName,
    wait_until_stopped,
)
from pipeline.cli.output import Layout, is_table, print_rows, remark, say
from pipeline.clock import SystemClock
from pipeline.errors import PipelineError, Unreachable, UsageError
from pipeline.log import set_up_logging
from schemas.names import MARKER_TOPIC, USAGE_TOPIC

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from pipeline.brokers.metering import Choice
    from pipeline.cluster.access import ClusterAccess
    from pipeline.meter.scrape_sources import Source
    from pipeline.meter.scrapes import NameMap
    from pipeline.meter.usage_topic import UsagePublisher
    from pipeline.settings.model import Settings
    from quota.broker_levels.writes import Change

MarkerTopicName = Annotated[str | None, typer.Option(help="The marker topic.", show_default=MARKER_TOPIC)]


@dataclass(frozen=True, slots=True)
class _Meter:
    """What a meter works with while it runs."""

    publisher: "UsagePublisher"
    destination: str
    wait: Callable[[float], bool]  # see `wait_until_stopped`
    show: "Callable[[Callable[[], Iterable[Metric]]], None]"  # what is read at each scrape of its metrics

    def began(self, what: str, more: str = "") -> None:
        """Say what it reads, and where that goes."""
        remark(f"{what}, to {self.destination}{more}")

    def ended(self, counts: Iterable[object], is_stored: bool, unstored_events: int, fix: str) -> None:
        """Say what was done. Raises `Unreachable` if not all of it is stored."""
        remark("; ".join(map(str, counts)))
        if not is_stored:
            message = f"{unstored_events:,} usage events could not be stored on {self.destination}"
            raise Unreachable(message, fix)


@contextmanager
def _metering(settings: "Settings", broker_id: str, access: "ClusterAccess") -> Iterator[_Meter]:
    """A publisher on the usage topic, and the endpoint for its metrics, until the command is to stop."""
    from pipeline.meter.usage_topic import KafkaUsageTopic, UsagePublisher
    from pipeline.metrics import ReadAtScrape, metrics_endpoint, new_registry

    kafka = settings.kafka
    topic = KafkaUsageTopic(broker_id, kafka.usage_topic, kafka.marker_topic, access, kafka.transaction_timeout_ms)
    destination, registry = f"{kafka.usage_topic} at {access.bootstrap_servers}", new_registry("meter")
    with (
        wait_until_stopped() as wait,
        metrics_endpoint(settings.metrics, registry),
        closing(UsagePublisher(broker_id, topic, destination)) as publisher,
    ):
        yield _Meter(publisher, destination, wait, lambda read: registry.register(ReadAtScrape(read)))


# `kquota meter request-log`.


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
    metrics_port: MetricsPort = None,
) -> None:
    """Follow the request log of a Kafka 4 broker and send a usage event for each client request.

    Cluster, security, topics and log level can also stand in the settings, as for the job; flags win.
    Requests of --internal-principal (default User:ANONYMOUS) on --internal-listener (default CONTROLLER) are the
    cluster's own. They are left out, and so are follower fetches and what any meter sends to the usage topic.

    Events and the place in the log are stored in one transaction, so each event is stored once, also after kill -9. The
    place is the offset of group kquota-meter.<broker-id>. A second meter of the same broker ends the first, with 4.
    Runs until SIGTERM or Ctrl-C, then stores the rest and ends with 0. It ends with 6 if the rest could not be stored;
    the next start does it.
    """
    from kafka import KafkaAdminClient

    from pipeline.cluster.access import ClusterAccess
    from pipeline.meter.log_follower import LogFollower
    from pipeline.meter.request_log import OwnTraffic, RequestLogParser
    from pipeline.meter.request_meter import MeterGauges, RequestMeter, meter_metrics, read_state, retire_state
    from pipeline.meter.usage_topic import UsageTopic

    log_file = file or file_option
    if log_file is None or None not in {file, file_option}:
        message = "give FILE once, as an argument or with -f"
        raise typer.BadParameter(message)
    zone = _zone(time_zone)
    names = {"usage_topic": topic, "marker_topic": marker_topic}
    settings = source.settings(topics=names, metrics={"port": metrics_port})
    set_up_logging(settings.log_level)
    access = ClusterAccess.from_settings(settings.kafka)
    state_path = state_file or Path(".kquota") / f"meter-{broker_id}.json"
    access.client_options()  # mistakes there are reported before anything else
    old_place = read_state(state_path)
    access = replace(access, properties={"client.id": f"kquota-meter-{broker_id}", **access.properties})
    with closing(access.open(KafkaAdminClient)) as admin:
        usage_topic = UsageTopic.described_by(admin, settings.kafka.usage_topic)
    own = OwnTraffic(
        listeners=frozenset(internal_listener or OwnTraffic().listeners),
        principals=frozenset(internal_principal or OwnTraffic().principals),
        usage_topic=usage_topic,
    )
    with _metering(settings, broker_id, access) as running:
        parser = RequestLogParser(broker_id, own, zone)
        if not log_file.parent.is_dir():
            raise _log_unreadable(log_file, "its folder does not exist")
        try:
            place = running.publisher.take_over()
            begin: Literal["beginning", "end"] = "beginning" if from_beginning else "end"
            whence = "where it was left" if place else f"the place in {state_path}" if old_place else f"the {begin}"
            follower = LogFollower(log_file, begin, place or old_place)
            meter = RequestMeter(follower, parser, running.publisher, SystemClock(), running.wait)
            counts = parser.counts, running.publisher.counts, follower.counts
            gauges = MeterGauges(*counts, lambda: meter.unstored_events, lambda: meter.held_bytes)
            running.show(lambda: meter_metrics(gauges, broker_id))
            running.began(f"following {log_file} from {whence}")
            is_stored = meter.run(lambda: running.wait(0), lambda: retire_state(state_path))
        except OSError as exc:
            raise _log_unreadable(log_file, str(exc)) from exc
        fix = "start the meter again: it continues with the first of them"
        running.ended(counts, is_stored, meter.unstored_events, fix)


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
    remark(f"wrote {written}")
    for name, value in reporter_settings(bootstrap_server or "localhost:9092", topic).items():
        say(f"{name}={value}")


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


# `kquota meter prometheus`, `enable`, `disable` and `status`.

_MEASURED: Final = Layout(("quota_type", "every client is measured by", "because of"))

Targets = Annotated[
    list[str] | None,
    typer.Option(help="Metrics of every broker: http://broker1:9404/metrics,… or ID=http://…; repeatable."),
]
Query = Annotated[
    str | None,
    typer.Option(
        help="Or a Prometheus that scrapes them: http://prometheus:9090; …?LABEL=VALUE for the series of one cluster.",
        metavar="URL",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Write it; without, only print what would be written.")]


def prometheus(
    *,
    source: ClusterSource,
    targets: Targets = None,
    query: Query = None,
    name_map: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="NAME=MEANING",
            help="Another name of a metric (=produced_bytes, =fetched_bytes, =request_time) or of a label (=user, "
            "=client_id, =resource; with --query =broker_id); repeatable.",
        ),
    ] = None,
    topic: UsageTopicName = None,
    marker_topic: MarkerTopicName = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Scrape the quota sensors of all brokers of a cluster and send their usage, an event for each client and second.

    No broker is restarted and no log is switched on: an exporter of JMX beans is enough. Rates are means of the last
    10 to 12 s, so usage is up to 11 s late, sums are right to 3 %, those of bursts to 7 %. Sensors exist only under a
    quota: see kquota meter enable. A target without an answer is not charged, and after a gap at most one window is.

    The broker of a target is the one on its host; where that is not clear write ID=http://…. With --query it is the one
    on the host of the label instance, or --map LABEL=broker_id names the label with its id. Prometheus must scrape the
    brokers every 5 s or less. One process meters all brokers of a cluster; a second one ends the first, with 4. Runs
    until SIGTERM or Ctrl-C.
    """
    from pipeline.cluster.access import ClusterAccess
    from pipeline.meter.scrape_meter import ACCURACY, ScrapeMeter, scrape_metrics
    from pipeline.meter.usage_topic import SCRAPES

    names, of_cluster = sources_of(targets or [], query, name_map or [])
    topics = {"usage_topic": topic, "marker_topic": marker_topic}
    settings = source.settings(topics=topics, metrics={"port": metrics_port})
    set_up_logging(settings.log_level)
    access = ClusterAccess.from_settings(settings.kafka)
    access = replace(access, properties={"client.id": "kquota-meter", **access.properties})
    asked = of_cluster(access)
    with _metering(settings, SCRAPES, access) as running:
        publisher = running.publisher
        publisher.take_over()
        scraper = ScrapeMeter(asked, names, publisher, SystemClock(), running.wait)
        running.show(lambda: scrape_metrics(scraper, publisher))
        running.began(f"scraping {len(scraper.targets)} brokers", f": {ACCURACY}")
        is_stored = scraper.run()
        fix = "start the meter again; what was used meanwhile is not charged"
        running.ended([publisher.counts], is_stored, scraper.unstored_events, fix)


def sources_of(
    targets: "Sequence[str]", query: str | None, name_map: "Sequence[str]"
) -> "tuple[NameMap, Callable[[ClusterAccess], Sequence[Source]]]":
    """The names on the pages, and what makes the sources of a cluster. Options that cannot be read are refused before.

    Raises:
        typer.BadParameter: A pair of `--map` is not NAME=MEANING.
        UsageError: Not exactly one of `--targets` and `--query` is given, or an address is invalid.
    """
    from pipeline.meter.scrape_sources import PrometheusSource, addresses, with_brokers
    from pipeline.meter.scrapes import NameMap

    try:
        names = NameMap.of(name_map)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc
    if bool(targets) == bool(query):
        message = "give one of --targets and --query"
        raise UsageError(message, "for example --targets http://broker1:9404/metrics,http://broker2:9404/metrics")
    given = addresses(targets)
    if query:
        PrometheusSource(query, names, [])

    def of_cluster(access: "ClusterAccess") -> "Sequence[Source]":
        with access.admin() as admin:
            brokers = admin.describe_cluster()["brokers"]
        return [PrometheusSource(query, names, brokers)] if query else with_brokers(given, brokers)

    return names, of_cluster


def enable(
    *,
    source: JobSource,
    by: Annotated[
        Literal["pair", "user"] | None,
        typer.Option(
            help="pair: user and client-id; user: without client-ids.",
            show_default="for each quota type user, unless a quota names a client-id or brokers measure by pair",
        ),
    ] = None,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Make brokers measure every client: write a quota that no client reaches (1e15, by user 2e15), with --yes.

    Brokers measure a client only under a quota. It stands at the default user and default client-id, by user at the
    default user, or, where that would hide a quota of default users or of client-ids alone, at a less specific level
    that hides none, for each quota type by itself. Quotas of brokers and of the quota table count. A sync keeps it, and
    moves it before it hides a row. The plan shows both ways, with what each loses, hides and costs a broker.

    It is stored in broker_quotas, where there are tables; a sync on another machine must be stopped before, or it ends
    with 4. Exit code 5: a broker does not use Kafka's own quotas.
    """
    from pipeline.brokers.metering import planned
    from pipeline.cli.quotas.sync import print_changes

    settings = source.settings()
    changes, choices = planned(settings, by)
    if is_table(output):
        say(*(line for choice in choices for line in _lines_of(choice)), "")
    print_changes(changes, output, choices=[asdict(choice) for choice in choices])
    if any(change.new is not None and not change.key.user for change in changes):
        remark("sensors of the default client-id have no user: their usage is charged to ANONYMOUS")
    _switch(settings, changes, yes, "every client is measured so")


def disable(
    *,
    source: JobSource,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Take away what kquota meter enable has written, with --yes. Quotas of others stay."""
    from pipeline.brokers.metering import removal
    from pipeline.cli.quotas.sync import print_changes

    settings = source.settings()
    changes = removal(settings)
    print_changes(changes, output)
    _switch(settings, changes, yes, "metering is off")


def status(
    *,
    source: ClusterSource,
    output: Output = "table",
) -> None:
    """Print what the brokers measure of every client, by quota type. Writes nothing."""
    from pipeline.brokers.changes import callbacks_text
    from pipeline.brokers.metering import status as measured_now

    def readable(row: Any) -> dict[str, Any]:
        by = row["by"] or "nothing: only clients with a quota of their own are measured"
        why = f"{row['entity']} (metering)" if row["entity"] else ""
        return {
            "quota_type": row["quota_type"],
            "every client is measured by": by,
            "because of": why or ("a quota of others" if row["by"] else ""),
        }

    found, callbacks = measured_now(source.settings())
    print_rows([asdict(one) for one in found], output, _MEASURED, shown=readable)
    if callbacks:
        remark(callbacks_text(callbacks))


def _lines_of(choice: "Choice") -> list[str]:
    return [
        f"by {choice.by}{' (chosen)' if choice.is_chosen else ''}: {', '.join(choice.quota_types)}",
        f"  stands at  {choice.entity or 'nothing'}",
        f"  loses      {choice.loses}",
        f"  hides      {choice.hides}",
        f"  memory     {choice.memory}",
    ]


def _switch(settings: "Settings", changes: "list[Change]", yes: bool, already: str) -> None:
    from pipeline.brokers.metering import write

    if not changes:
        remark(f"nothing to write: {already} already")
        return
    if not yes:
        remark(f"dry run, nothing was written; values: {len(changes)}. To write them add --yes")
        return
    write(settings, changes)
    remark(f"values written: {len(changes)}")
