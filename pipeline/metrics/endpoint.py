"""The address at which Prometheus reads a program's metrics, in its text format."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Final

from prometheus_client import CollectorRegistry, make_asgi_app

from pipeline.settings.model import MetricsSettings
from pipeline.web import Guard, Listen, ListenRefused, WebServer

log = logging.getLogger(__name__)

_MOST_CONNECTIONS: Final = 32


@contextmanager
def metrics_endpoint(settings: MetricsSettings, registry: CollectorRegistry) -> Iterator[int | None]:
    """Answer GET /metrics while the block runs, on a thread of its own; gives the port in use.

    Without a port in the settings nothing listens, and it gives None. There is no token: only machines that can reach
    the host can read it. On a loopback address only names of this machine are answered.

    Args:
        settings: Host and port.
        registry: What is told.

    Raises:
        ListenRefused: The system does not let it listen there.
    """
    if settings.port is None:
        yield None
        return
    listen = Listen(settings.host, settings.port)
    app = Guard(make_asgi_app(registry), any_host=not listen.is_loopback)
    try:
        server = WebServer(app, listen, most_connections=_MOST_CONNECTIONS)
    except ListenRefused as exc:
        exc.remedy = "give each program a port of its own, with --metrics-port; 0 means any free one"
        raise
    log.info("metrics at %smetrics", server.address)
    thread = Thread(target=server.run, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.stop()
        thread.join()
