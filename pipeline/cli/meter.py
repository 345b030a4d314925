"""`kquota meter`: usage as brokers observe it, by the reporter or by scrapes, and what makes brokers measure."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from pipeline.cli.options import (
    BootstrapServers,
    ClusterSource,
    JobSource,
    MetricsPort,
    Output,
)
from pipeline.cli.output import Layout, print_rows, remark, say
from pipeline.cli.quotas import print_changes
from pipeline.clock import SystemClock
from pipeline.errors import Unreachable, UsageError
from pipeline.log import set_up_logging
from pipeline.meter.reporter import reporter_settings, write_reporter
from pipeline.process import wait_until_stopped
from pipeline.settings.model import Settings
from schemas.names import USAGE_TOPIC

if TYPE_CHECKING:
    from pipeline.cluster.connecting import ClusterAccess
    from pipeline.meter.scrape_meter import Address, ExporterSource
    from quota.broker_levels.writes import Change


def reporter(
    *,
    jar: Annotated[Path, typer.Option("--jar", help="Write the jar here: a file, or a folder that exists.")],
    bootstrap_server: BootstrapServers = None,
    topic: Annotated[str, typer.Option(help="The usage topic.")] = USAGE_TOPIC,
) -> None:
    """Write the jar that reports usage from inside a broker, and print its lines of server.properties.

    The jar belongs into the broker's libs/ folder, and the lines into server.properties of each broker; then restart
    it. The reporter sends what the broker's own quota sensors record, each 250 ms.
    """
    written = write_reporter(jar)
    remark(f"wrote {written}")
    for name, value in reporter_settings(bootstrap_server or "localhost:9092", topic).items():
        say(f"{name}={value}")


# `kquota meter prometheus`, `enable`, `disable` and `status`.

_MEASURED: Final = Layout(("quota_type", "every client is measured by", "because of"))

Targets = Annotated[
    list[str] | None,
    typer.Option(help="Metrics of every broker: http://broker1:9404/metrics,… or ID=http://…; repeatable."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Write it; without, only print what would be written.")]


def prometheus(
    *,
    source: ClusterSource,
    targets: Targets = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Scrape the quota sensors of all brokers of a cluster and send their usage, an event for each client and second.

    No broker is restarted and no log is switched on: an exporter of JMX beans is enough. Rates are means of the last
    10 to 12 s, so usage is up to 11 s late, sums are right to 3 %, those of bursts to 7 %. Sensors exist only under a
    quota: see kquota meter enable. A target without an answer is not charged, and after a gap at most one window is.

    The broker of a target is the one on its host; where that is not clear write ID=http://…. One process meters all
    brokers of a cluster; a second one ends the first, with 4. Runs until SIGTERM or Ctrl-C.
    """
    from pipeline.cluster.connecting import ClusterAccess
    from pipeline.meter.scrape_meter import ACCURACY, ScrapeMeter, scrape_metrics
    from pipeline.meter.usage_topic import KafkaUsageTopic, UsagePublisher
    from pipeline.web import ReadAtScrape, metrics_endpoint, new_registry

    given = read_targets(targets or [])
    settings = source.settings(metrics={"port": metrics_port})
    set_up_logging(settings.log_level)
    kafka, registry = settings.kafka, new_registry("meter")
    access = ClusterAccess.from_settings(kafka)
    access = replace(access, properties={"client.id": "kquota-meter", **access.properties})
    asked = exporters_of(given, access)
    usage_topic = KafkaUsageTopic(kafka.usage_topic, kafka.marker_topic, access, kafka.transaction_timeout_ms)
    destination = f"{kafka.usage_topic} at {access.bootstrap_servers}"
    with (
        wait_until_stopped() as wait,
        metrics_endpoint(settings.metrics, registry),
        closing(UsagePublisher(usage_topic, destination)) as publisher,
    ):
        publisher.take_over()
        scraper = ScrapeMeter(asked, publisher, SystemClock(), wait)
        registry.register(ReadAtScrape(lambda: scrape_metrics(scraper, publisher)))
        remark(f"scraping {len(scraper.targets)} brokers, to {destination}: {ACCURACY}")
        is_stored = scraper.run()
        remark(str(publisher.counts))
    if not is_stored:
        message = f"{scraper.unstored_events:,} usage events could not be stored on {destination}"
        raise Unreachable(message, "start the meter again; what was used meanwhile is not charged")


def read_targets(targets: Sequence[str]) -> "list[Address]":
    """The addresses in `--targets`; a `UsageError` if there is none, or one cannot be read."""
    from pipeline.meter.scrape_meter import addresses

    if not targets:
        message = "give the metrics of every broker in --targets"
        raise UsageError(message, "for example --targets http://broker1:9404/metrics,http://broker2:9404/metrics")
    return addresses(targets)


def exporters_of(given: "Sequence[Address]", access: "ClusterAccess") -> "list[ExporterSource]":
    """The exporter of each broker of a cluster; asks the cluster which broker is where."""
    from pipeline.cluster.connecting import as_cluster_error
    from pipeline.meter.scrape_meter import with_brokers

    with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
        return with_brokers(given, admin.describe_cluster()["brokers"])


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
    moves it before it hides a row. docs/meter.md has what each way costs a broker.

    Exit code 5: a broker does not use Kafka's own quotas.
    """
    from pipeline.brokers.metering import planned

    settings = source.settings()
    changes = planned(settings, by)
    print_changes(changes, output)
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
    from pipeline.brokers.metering import status as measured_now
    from pipeline.brokers.native import callbacks_text

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
