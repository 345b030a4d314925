"""Sums rows of `usage` over spans of time, for each client of each broker."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

NAMES: Final = ("cluster", "broker_id", "user", "client_id")
SUMS: Final = (
    "produced_bytes",
    "fetched_bytes",
    "io_time_ns",
    "network_time_ns",
    "exempt_time_ns",
    "request_count",
)
COLUMNS: Final = ("sample_start_ms", *NAMES, *SUMS, "last_event_ms")
"""The columns of `usage` that a roll-up reads."""
LARGEST: Final = 2**62
"""The largest sum; a larger one is cut to it, and never wraps around to a negative one."""


def summed_by(usage: pa.Table, start_name: str, span_ms: int) -> pa.Table:
    """Sum rows of `usage` that belong to the same span and client, in no order.

    A sum is null if all of its values are null.

    Args:
        usage: `COLUMNS`; the names may be dictionaries.
        start_name: Column of the result with the start of the span, in epoch ms.
        span_ms: > 0; spans begin at its multiples since the epoch.

    Returns:
        `start_name`, `NAMES`, `SUMS` and `last_event_ms`, which is the largest of them.
    """
    start_ms = usage["sample_start_ms"].to_numpy()
    spans = usage.append_column(start_name, pa.array(start_ms // span_ms * span_ms))
    if _may_overflow(usage):
        spans = spans.cast(pa.schema([_double(field) if field.name in SUMS else field for field in spans.schema]))
    nulls_alone = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    sums = [(name, "sum", nulls_alone) for name in SUMS]
    # In one thread, to leave the other cores to the micro-batch.
    grouped = spans.group_by([start_name, *NAMES], use_threads=False).aggregate([*sums, ("last_event_ms", "max")])
    named = grouped.rename_columns([start_name, *NAMES, *SUMS, "last_event_ms"])
    for name in SUMS:
        if pa.types.is_floating(named.schema.field(name).type):
            cut = pc.min_element_wise(named[name], float(LARGEST), skip_nulls=False).cast(pa.int64())
            named = named.set_column(named.schema.get_field_index(name), name, cut)
    return named


def _may_overflow(usage: pa.Table) -> bool:
    largest = max((pc.max(usage[name]).as_py() or 0 for name in SUMS), default=0)
    return largest * usage.num_rows > LARGEST


def _double(field: pa.Field) -> pa.Field:
    return field.with_type(pa.float64())
