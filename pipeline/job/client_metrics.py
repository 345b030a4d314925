"""Metrics by client, for those who ask for them: a series for each sensor that has a rate or a throttled client.

They are read from the tables at each scrape, as `kquota top` reads them, so the job itself does nothing for them.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from pipeline.errors import PipelineError
from pipeline.job.overview import Overview

log = logging.getLogger(__name__)

LABELS: Final = ("user", "client_id", "broker_id", "quota_type", "mode", "owner")


def client_metrics(read: Callable[[], Overview]) -> Iterable[Metric]:
    """How near each sensor is to its bound, and how many of its clients are throttled; nothing if it can not be read.

    Args:
        read: The state now.
    """
    try:
        state = read()
    except PipelineError as exc:
        log.warning("no metrics by client: %s", exc)
        return
    used = GaugeMetricFamily("kquota_client_used_ratio", "Rate divided by bound, at the newest batch.", labels=LABELS)
    held = GaugeMetricFamily("kquota_client_throttled", "Clients of the sensor that are throttled.", labels=LABELS)
    for line in state.lines:
        names = [str(getattr(line, name)) for name in LABELS]
        used.add_metric(names, line.used)
        held.add_metric(names, line.throttled_clients)
    yield used
    yield held
