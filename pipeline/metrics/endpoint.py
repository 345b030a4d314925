"""The address at which Prometheus reads a program's metrics, in its text format."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from pipeline.metrics.errors import MetricsPortBusy
from pipeline.settings.model import MetricsSettings

log = logging.getLogger(__name__)


@contextmanager
def metrics_endpoint(settings: MetricsSettings, registry: CollectorRegistry) -> Iterator[int | None]:
    """Answer GET /metrics while the block runs, on threads of its own; gives the port in use.

    Without a port in the settings nothing listens, and it gives None. There is no token: only machines that can reach
    the host can read it.

    Args:
        settings: Host and port.
        registry: What is told.

    Raises:
        MetricsPortBusy: The system does not let it listen there.
    """
    if settings.port is None:
        yield None
        return
    try:
        server, thread = start_http_server(settings.port, settings.host, registry)
    except OSError as exc:
        raise MetricsPortBusy(settings.host, settings.port, exc.strerror or str(exc)) from exc
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    log.info("metrics at http://%s:%d/metrics", host, server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
