"""What a gate tells Prometheus, read from its gauges at each scrape."""

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.gate.gate import Gate


def gate_metrics(gate: Gate, clients: bool = False) -> Iterable[Metric]:
    """The gauges of a gate, now.

    Args:
        gate: Started.
        clients: Also how much longer each throttled client must wait, a series for each.
    """
    stats = gate.stats()
    occupancy, depleted_ratio = stats.occupancy, stats.occupancy.pool_depleted_percent / 100
    states = ("connecting", "catching-up", "following", "stale", "closed")
    state = GaugeMetricFamily("kquota_gate_state", "1 for the state that the gate is in.", labels=["state"])
    for name in states:
        state.add_metric([name], float(name == stats.state))
    yield state
    yield CounterMetricFamily("kquota_gate_unreadable_records", "Records that were skipped.", stats.unreadable)
    for name, documentation, value in (
        ("purgatory_size", "Entries of the watch lists.", occupancy.purgatory_size),
        ("delayed_operations", "Callers that wait for a time-out.", occupancy.delayed_operations),
        ("waiting_callers", "Callers that wait.", occupancy.waiting),
        ("waiting_for_memory", "Callers that wait for bytes of the pool.", occupancy.waiting_for_memory),
        ("throttled_clients", "Throttles that run.", occupancy.throttled_clients),
        ("pool_size_bytes", "Size of the memory pool.", occupancy.pool_size_bytes),
        ("pool_available_bytes", "What is left of the memory pool.", occupancy.pool_available_bytes),
        ("pool_used_bytes", "Bytes of waiting requests.", occupancy.pool_used_bytes),
        ("pool_depleted_ratio", "Share of the last minute in which the pool refused.", depleted_ratio),
    ):
        yield GaugeMetricFamily(f"kquota_gate_{name}", documentation, value)
    if clients:
        remaining = GaugeMetricFamily(
            "kquota_gate_client_remaining_seconds",
            "How much longer a client must wait.",
            labels=["user", "client_id", "broker_id"],
        )
        for throttled in gate.throttles():
            record = throttled.record
            remaining.add_metric([record.user, record.client_id, record.broker_id], throttled.remaining_ms / 1000)
        yield remaining
