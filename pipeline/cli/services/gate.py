"""`kquota gate`: the gate as a side-car, for services in any language."""

from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.cli.options import BootstrapServers, CommandConfig, ConfigFile, MetricsClients, flags, metrics_flags

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
    lists all running throttles. GET /healthz says ok, catching-up or stale; GET /metrics is for Prometheus.

    It also starts while the broker is away: then no client is throttled, and it keeps trying to reach the broker. Runs
    until SIGTERM or Ctrl-C.
    """
    import sys

    from pipeline.cli.signals import call_on_signals
    from pipeline.cluster.access import ClusterAccess
    from pipeline.gate.errors import GateExtraMissing
    from pipeline.gate.follower import KafkaFollower
    from pipeline.gate.gate import Gate
    from pipeline.gate.limits import GateLimits
    from pipeline.gate.metrics import gate_metrics
    from pipeline.log import set_up_logging
    from pipeline.metrics.registry import ReadAtScrape, new_registry
    from pipeline.settings.loading import load_settings

    try:
        from pipeline.gate.server import TOKEN_VARIABLE, GateServer
        from pipeline.web import parse_listen, read_token
    except ModuleNotFoundError as exc:
        raise GateExtraMissing(exc.name or "starlette") from exc
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
