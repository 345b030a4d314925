"""A registry for one program, its endpoint for Prometheus, and a histogram that takes many values at once.

A registry is made once and passed on: nothing is registered where others could meet it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from threading import Lock, Thread
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Info, ProcessCollector, make_asgi_app
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.settings.model import MetricsSettings
from pipeline.web import Guard, Listen, ListenRefused, WebServer


def new_registry(program: str) -> CollectorRegistry:
    """A registry with what all programs have: version, memory, processor time and open files."""
    registry = _WithoutCreated(auto_describe=False)
    ProcessCollector(registry=registry)
    build = Info("kquota_build", "Which program this is, and its version.", registry=registry)
    build.info({"program": program, "version": version("kafka-quota-pipeline")})
    return registry


class _WithoutCreated(CollectorRegistry):
    """Leaves out when each counter began: a second series for each one, which is not used."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


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


# A histogram of columns: prometheus_client's own takes one value at a time, and a wave has 10^5.


class ColumnHistogram(Collector):
    """Counts values by upper bounds, inclusive and ascending, without infinity; and adds them up. For any thread."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = np.asarray(bounds, np.float64)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._sum = 0.0
        self._lock = Lock()
        registry.register(self)

    def observe(self, values: "NDArray[Any]") -> None:
        """Count values, none of them NaN; may be empty."""
        places = np.searchsorted(self._bounds, values, side="left")
        counts = np.bincount(places, minlength=len(self._counts))
        with self._lock:
            self._counts += counts
            self._sum += float(values.sum())

    def collect(self) -> Iterable[Metric]:
        """The counts so far; each bucket has all values up to its bound."""
        with self._lock:
            counts, total = np.cumsum(self._counts).tolist(), self._sum
        names = [*(str(bound) for bound in self._bounds.tolist()), "+Inf"]
        buckets: Any = list(zip(names, counts, strict=True))
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, total)
        yield family
