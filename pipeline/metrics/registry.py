"""A registry for one program. It is made once and passed on: nothing is registered where others could meet it."""

from collections.abc import Callable, Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Info, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


def new_registry(program: str) -> CollectorRegistry:
    """A registry with what all programs tell: version, memory, processor time and open files.

    Args:
        program: job, gate, meter, sync, dashboard or alerts.
    """
    registry = _WithoutCreated(auto_describe=False)
    ProcessCollector(registry=registry)
    build = Info("kquota_build", "Which program this is, and its version.", registry=registry)
    build.info({"program": program, "version": version("kafka-quota-pipeline")})
    return registry


class _WithoutCreated(CollectorRegistry):
    """Leaves out when each counter began: a second series for each one, which nobody reads."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class ReadAtScrape(Collector):
    """Metrics whose values are read when Prometheus asks.

    Args:
        read: Makes them; called on the endpoint's threads, so it must not change anything.
    """

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """What is so now."""
        return self._read()
