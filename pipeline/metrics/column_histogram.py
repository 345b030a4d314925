"""A histogram that takes many values at once: prometheus_client's own takes one, and a wave has 10^5."""

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class ColumnHistogram(Collector):
    """Counts values by upper bounds, each inclusive, and adds them up. Any thread may use it.

    Args:
        name: Of the metric.
        documentation: What it measures.
        bounds: Upper bounds, ascending, without infinity.
        registry: Where it is registered.
    """

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
