"""`kquota meter prometheus|enable|disable|status`: usage from the metrics of brokers, and what makes them measure."""

import sys
from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import (
    ClusterSource,
    CodecName,
    JobSource,
    MetricsPort,
    Output,
    UsageTopicName,
    wait_until_stopped,
)
from pipeline.cli.output import Layout, print_rows
from pipeline.clock import SystemClock
from pipeline.errors import Unreachable, UsageError
from pipeline.log import set_up_logging
from schemas.names import MARKER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pipeline.meter.scrape_sources import Source
    from pipeline.meter.scrapes import NameMap
    from pipeline.settings.model import Settings

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
    marker_topic: Annotated[str | None, typer.Option(help="The marker topic.", show_default=MARKER_TOPIC)] = None,
    codec: CodecName = None,
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
    from pipeline.meter.usage_messages import JSON, PACKED
    from pipeline.meter.usage_topic import SCRAPES, KafkaUsageTopic, UsagePublisher
    from pipeline.metrics import ReadAtScrape, metrics_endpoint, new_registry

    names = names_of(name_map)
    of_brokers = sources_of(targets or [], query, names)
    topics = {"usage_topic": topic, "marker_topic": marker_topic}
    settings = source.settings(topics=topics, metrics={"port": metrics_port}, meter={"codec": codec})
    set_up_logging(settings.log_level)
    access = ClusterAccess.from_settings(settings.kafka)
    access = replace(access, properties={"client.id": "kquota-meter", **access.properties})
    with access.admin() as admin:
        asked = of_brokers(admin.describe_cluster()["brokers"])
    usage_topic = KafkaUsageTopic(
        SCRAPES, settings.kafka.usage_topic, settings.kafka.marker_topic, access, settings.kafka.transaction_timeout_ms
    )
    destination = f"{settings.kafka.usage_topic} at {access.bootstrap_servers}"
    registry = new_registry("meter")
    used_codec = PACKED if settings.meter.codec == "packed" else JSON
    with (
        wait_until_stopped() as wait,
        metrics_endpoint(settings.metrics, registry),
        closing(UsagePublisher(SCRAPES, usage_topic, destination)) as publisher,
    ):
        publisher.take_over()
        scraper = ScrapeMeter(asked, names, publisher, used_codec, SystemClock(), wait)
        registry.register(ReadAtScrape(lambda: scrape_metrics(scraper, publisher)))
        how = ", packed" if used_codec.is_packed else ""
        typer.echo(
            f"scraping {len(scraper.targets)} brokers, to {destination}{how}: {ACCURACY}",
            err=True,
        )
        stored = scraper.run()
    typer.echo(str(publisher.counts), err=True)
    if not stored:
        message = f"{scraper.unstored_events:,} usage events could not be stored on {destination}"
        raise Unreachable(message, "start the meter again; what was used meanwhile is not charged")


def sources_of(
    targets: "Sequence[str]", query: str | None, names: "NameMap"
) -> "Callable[[Sequence[dict[str, Any]]], Sequence[Source]]":
    """What makes the sources of a cluster from its brokers. Options that cannot be read are refused before.

    Raises:
        UsageError: Neither or both of `--targets` and `--query` are given, or they are no addresses.
    """
    from pipeline.meter.scrape_sources import PrometheusSource, addresses, with_brokers

    if bool(targets) == bool(query):
        message = "give one of --targets and --query"
        raise UsageError(message, "for example --targets http://broker1:9404/metrics,http://broker2:9404/metrics")
    if query:
        PrometheusSource(query, names, [])
        return lambda brokers: [PrometheusSource(query, names, brokers)]
    given = addresses(targets)
    return lambda brokers: with_brokers(given, brokers)


def names_of(pairs: "Iterable[str] | None") -> "NameMap":
    """What `--map` says; `typer.BadParameter` if a pair is not NAME=MEANING."""
    from pipeline.meter.scrapes import NameMap

    try:
        return NameMap.of(pairs or ())
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc


def enable(
    *,
    source: JobSource,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Make brokers measure every client: write a quota that no client reaches (1e15), with --yes.

    Brokers measure a client only under a quota. It stands at the default user and default client-id, or, where that
    would hide a quota of default users or of client-ids alone, at a less specific level that hides none, for each quota
    type by itself. Quotas of brokers and of the quota table count. A sync keeps it, and moves it before it hides a
    row.

    It is stored in broker_quotas, where there are tables; a sync on another machine must be stopped before, or it ends
    with 4.
    """
    _switch(source.settings(), yes, output, on=True)


def disable(
    *,
    source: JobSource,
    yes: Yes = False,
    output: Output = "table",
) -> None:
    """Take away what kquota meter enable has written, with --yes. Quotas of others stay."""
    _switch(source.settings(), yes, output, on=False)


def status(
    *,
    source: ClusterSource,
    output: Output = "table",
) -> None:
    """Print what the brokers measure of every client, by quota type. Writes nothing."""
    from pipeline.brokers.metering import plan

    def readable(row: Any) -> dict[str, Any]:
        by = row["by"] or "nothing: only clients with a quota of their own are measured"
        why = f"{row['entity']}, 1e15 (metering)" if row["entity"] else ""
        return {
            "quota_type": row["quota_type"],
            "every client is measured by": by,
            "because of": why or ("a quota of others" if row["by"] else ""),
        }

    _, found = plan(source.settings(), enable=False)
    print_rows([asdict(one) for one in found], output, _MEASURED, shown=readable)


def _switch(settings: "Settings", yes: bool, output: str, *, on: bool) -> None:
    from pipeline.brokers.metering import plan, write
    from pipeline.cli.quotas.sync import print_changes

    changes, _ = plan(settings, enable=on)
    print_changes(changes, output)
    if not changes:
        what = "every client is measured" if on else "metering is off"
        sys.stderr.write(f"nothing to write: {what} already\n")
        return
    if any(change.new is not None and not change.key.user for change in changes):
        sys.stderr.write("sensors of the default client-id have no user: their usage is charged to ANONYMOUS\n")
    if not yes:
        sys.stderr.write(f"dry run, nothing was written; values: {len(changes)}. To write them add --yes\n")
        return
    write(settings, changes)
    sys.stderr.write(f"values written: {len(changes)}\n")
