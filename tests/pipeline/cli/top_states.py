"""A state of `kquota top` without tables."""

from pipeline.job.overview import Line, Overview, Totals
from pipeline.job.status import JobStatus

NOON_MS = 1_700_049_600_000


def state(*lines: Line, throttled: int = 0) -> Overview:
    """At noon; the newest batch is 0.4 s old."""
    status = JobStatus(
        job="kquota",
        state="up",
        process="4711",
        last_batch_id=812,
        last_batch_age_ms=400,
        lag_ms=90,
        activity="working",
        last_wait_age_ms=None,
        last_batch_quotas=3,
        quotas=3,
        newest_quotas=3,
        mode="enforce",
        held_clients=throttled,
        bootstrap_servers=None,
        tables="/tables",
    )
    return Overview(NOON_MS, NOON_MS - 490, 10_000, status, Totals(8, 1.2e6, 0.0, 3.1, throttled), lines)


def line(user: str, observed: float, bound: float = 100_000.0, **columns: object) -> Line:
    """A sensor under a producer's bound."""
    made = Line(user, "etl", "", "producer_byte_rate", observed, bound, observed / bound, "enforce", "data")
    for name, value in columns.items():
        object.__setattr__(made, name, value)
    return made
