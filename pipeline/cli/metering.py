"""`kquota meter prometheus`: usage from the metrics of brokers. Heavy libraries load inside the command."""

from contextlib import closing
from dataclasses import replace
from typing import Annotated

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, MetricsPort, flags, wait_until_stopped
from schemas.names import MARKER_TOPIC, USAGE_TOPIC


def prometheus(
    *,
    targets: Annotated[
        list[str],
        typer.Option(
            help="Metrics of every broker: http://broker1:9404/metrics,… or ID=http://…; repeatable.",
            show_default=False,
        ),
    ],
    name_map: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="NAME=MEANING",
            help="Another name of a metric (=produced_bytes, =fetched_bytes, =request_time) or of a label (=user, "
            "=client_id, =resource); repeatable.",
        ),
    ] = None,
    config: ConfigFile = None,
    bootstrap_server: BootstrapServers = None,
    command_config: CommandConfig = None,
    topic: Annotated[str | None, typer.Option(help="The usage topic.", show_default=USAGE_TOPIC)] = None,
    marker_topic: Annotated[str | None, typer.Option(help="The marker topic.", show_default=MARKER_TOPIC)] = None,
    codec: Annotated[
        str | None, typer.Option(help="How events are written: json, or packed.", show_default="json")
    ] = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Scrape the quota sensors of all brokers of a cluster and send their usage, an event for each client and second.

    No broker is restarted and no log is switched on: an exporter of JMX beans is enough. Rates are means of the last
    10 to 12 s, so usage is up to 11 s late; sums are right to about 3 %. Sensors exist only under a quota: see kquota
    meter enable. A target without an answer is not charged, and after a gap at most one window is.

    The broker of a target is the one on its host; where that is not clear write ID=http://…. One process scrapes all
    brokers of a cluster; a second one ends the first, with 4. Runs until SIGTERM or Ctrl-C.
    """
    from kafka import KafkaAdminClient

    from pipeline.clock import SystemClock
    from pipeline.cluster.access import ClusterAccess
    from pipeline.errors import Unreachable
    from pipeline.log import set_up_logging
    from pipeline.meter.scrape_meter import ScrapeMeter, addresses, scrape_metrics, with_brokers
    from pipeline.meter.scrapes import NameMap
    from pipeline.meter.usage_messages import JSON, PACKED
    from pipeline.meter.usage_topic import SCRAPES, KafkaUsageTopic, UsagePublisher
    from pipeline.metrics import ReadAtScrape, metrics_endpoint, new_registry
    from pipeline.settings.loading import load_settings

    given = addresses(targets)
    try:
        names = NameMap.of(name_map or ())
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc
    topics, metrics, meter = (
        {"usage_topic": topic, "marker_topic": marker_topic},
        {"port": metrics_port},
        {"codec": codec},
    )
    settings = load_settings(
        config, flags(bootstrap_server, command_config, topics=topics, metrics=metrics, meter=meter)
    )
    set_up_logging(settings.log_level)
    access = ClusterAccess.from_settings(settings.kafka)
    access = replace(access, properties={"client.id": "kquota-meter", **access.properties})
    with closing(access.open(KafkaAdminClient)) as admin:
        brokers = with_brokers(given, admin.describe_cluster()["brokers"])
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
        scraper = ScrapeMeter(brokers, names, publisher, used_codec, SystemClock(), wait)
        registry.register(ReadAtScrape(lambda: scrape_metrics(scraper, publisher)))
        how = ", packed" if used_codec.is_packed else ""
        typer.echo(
            f"scraping {len(brokers)} brokers, to {destination}{how}: usage is up to 11 s late, sums are right to 3 %",
            err=True,
        )
        stored = scraper.run()
    typer.echo(str(publisher.counts), err=True)
    if not stored:
        message = f"{scraper.unstored_events:,} usage events could not be stored on {destination}"
        raise Unreachable(message, "start the meter again; what was used meanwhile is not charged")
