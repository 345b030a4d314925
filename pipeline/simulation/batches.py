"""Puts events into the micro-batches that a job with a given trigger would have made."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from schemas.usage import UsageEvent

_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("broker_id", "user", "client_id")),
        *((name, pa.int64()) for name in ("sample_start_ms", "last_event_ms", "produced_bytes", "fetched_bytes")),
        *((name, pa.int64()) for name in ("io_time_ns", "network_time_ns")),
    ]
)
_BYTES: Final = ("produced_bytes", "fetched_bytes")
_TIMES: Final = ("io_time_ns", "network_time_ns")


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """One micro-batch.

    Attributes:
        trigger_ms: When it runs: the first trigger after its newest event.
        newest_event_ms: Its newest event.
        usage: Columns for `QuotaEngine.record`, one row per sample window and client.
    """

    trigger_ms: int
    newest_event_ms: int
    usage: pa.Table


def batches_of_events(events: Iterable[UsageEvent], trigger_ms: int, sample_window_ms: int) -> Iterator[SimulatedBatch]:
    """Events in order of time, cut at multiples of the trigger. An event at a multiple is in the later batch."""
    waiting: list[UsageEvent] = []
    due_ms = 0
    for event in sorted(events, key=lambda event: event.event_time_ms):
        if event.event_time_ms >= due_ms:
            if waiting:
                yield _batch(waiting, due_ms, sample_window_ms)
            waiting = []
            due_ms = (event.event_time_ms // trigger_ms + 1) * trigger_ms
        waiting.append(event)
    if waiting:
        yield _batch(waiting, due_ms, sample_window_ms)


def _batch(events: list[UsageEvent], trigger_ms: int, sample_window_ms: int) -> SimulatedBatch:
    rows: dict[tuple[int, str, str, str], dict[str, Any]] = {}
    for event in events:
        start_ms = event.event_time_ms // sample_window_ms * sample_window_ms
        row = rows.setdefault(
            (start_ms, event.broker_id, event.user, event.client_id),
            {
                "broker_id": event.broker_id,
                "user": event.user,
                "client_id": event.client_id,
                "sample_start_ms": start_ms,
            },
        )
        row["last_event_ms"] = event.event_time_ms
        # The time of an exempt request counts in no rate, but its bytes do.
        for name in _BYTES if event.throttle_exempt else (*_BYTES, *_TIMES):
            amount = getattr(event, name)
            if amount is not None:
                row[name] = row.get(name, 0) + amount
    return SimulatedBatch(trigger_ms, events[-1].event_time_ms, pa.Table.from_pylist(list(rows.values()), _SCHEMA))
