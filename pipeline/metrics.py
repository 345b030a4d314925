"""A registry for one program, and its endpoint for Prometheus.

A registry is made once and passed on: nothing is registered where others could meet it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from threading import Thread
from typing import Final

from prometheus_client import CollectorRegistry, Info, ProcessCollector, disable_created_metrics, make_asgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipeline.settings.model import MetricsSettings
from pipeline.web import Guard, Listen, ListenRefused, WebServer


def new_registry(program: str) -> CollectorRegistry:
    """A registry with what all programs have: version, memory, processor time and open files."""
    # When each counter began would be a second series for each one.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Info("kquota_build", "Which program this is, and its version.", registry=registry)
    build.info({"program": program, "version": version("kafka-quota-pipeline")})
    return registry


class ReadAtScrape(Collector):
    """Metrics whose values are read at each scrape, on the endpoint's threads: `read` must not change anything."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """The values of now."""
        return self._read()


# The endpoint.

log = logging.getLogger(__name__)

_MOST_CONNECTIONS: Final = 32


@contextmanager
def metrics_endpoint(settings: MetricsSettings, registry: CollectorRegistry) -> Iterator[int | None]:
    """Answer GET /metrics while the block runs, on a thread of its own; gives the port in use.

    Without a port in the settings nothing listens, and it gives None. Requests need no token; on a loopback address
    only names of this machine are answered.

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
        exc.fix = "give each program a port of its own, with --metrics-port; 0 means any free one"
        raise
    log.info("metrics at %smetrics", server.address)
    thread = Thread(target=server.run, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.stop()
        thread.join()
