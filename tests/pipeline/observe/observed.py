"""Observations of clients that send evenly, from rates."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from pipeline.observe.findings import Findings, findings_of
from pipeline.observe.observation import Observation
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row

T0_MS: Final = 1_700_000_000_000
BOUND: Final = 1_000_000
Rates = Mapping[tuple[str, str, str], Mapping[str, int]]
"""(broker-id, user, client-id) -> measure -> amount in each second."""

_NUMBERS: Final = (
    *("sample_start_ms", "last_event_ms", "produced_bytes", "fetched_bytes"),
    *("io_time_ns", "network_time_ns", "request_count"),
)
_SCHEMA: Final = pa.schema(
    [*((name, pa.string()) for name in ("broker_id", "user", "client_id")), *((name, pa.int64()) for name in _NUMBERS)]
)


def quotas(*rows: dict[str, Any]) -> QuotaSnapshot:
    return QuotaSnapshot.from_rows(rows, 1)


ALICE: Final = quotas(quota_row("alice", producer_byte_rate=float(BOUND)))


def produced(rate: int, *brokers: str, user: str = "alice", client_id: str = "etl") -> Rates:
    """The same rate on each broker, in one request a second."""
    return {(broker, user, client_id): {"produced_bytes": rate, "request_count": 1} for broker in brokers}


def second_of(rates: Rates, second: int) -> pa.Table:
    start_ms = T0_MS + second * 1000
    rows = [
        {"broker_id": broker, "user": user, "client_id": client_id, "sample_start_ms": start_ms}
        | {"last_event_ms": start_ms + 500, **amounts}
        for (broker, user, client_id), amounts in rates.items()
    ]
    return pa.Table.from_pylist(rows, _SCHEMA)


def observation(snapshot: QuotaSnapshot, *, is_exact: bool = True) -> Observation:
    found = Observation(lag_ms=1_000, is_exact=is_exact)
    found.load(snapshot)
    return found


def send(seen: Observation, rates: Rates, begin: int, end: int) -> None:
    """Each second is read a moment after its end."""
    for second in range(begin, end):
        seen.add(second_of(rates, second))
        seen.settle(T0_MS + (second + 2) * 1000)


def observed(snapshot: QuotaSnapshot, rates: Rates, seconds: int = 70, *, is_exact: bool = True) -> Findings:
    seen = observation(snapshot, is_exact=is_exact)
    send(seen, rates, 0, seconds)
    return findings_of(seen.figures())
