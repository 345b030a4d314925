"""Events as packed messages: an Arrow IPC stream of one record batch, whose columns are the fields of `UsageEvent`.

The job reads such a message several times as fast as the same events in JSON (docs/bench/packed.md). A field that the
log does not tell is null, and null means its default.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from pipeline.meter.usage_codec import UsageCodec
from pipeline.meter.usage_element import RequestUsage, check_measures
from schemas.columns import columns
from schemas.usage import UsageEvent

_SCHEMA: Final = pa.schema([(column.name, pa.type_for_alias(column.type.arrow)) for column in columns(UsageEvent)])
# Seven numbers, three ends of texts, and the bits of ten columns.
_MEASURES_BYTES: Final = 7 * 8 + 3 * 4 + 3
# Names and types of the columns, and what fills each column up to a multiple of 8 bytes.
_OPENING_BYTES: Final = 4_096


def _element(usage: RequestUsage) -> tuple[int, RequestUsage]:
    check_measures(usage)
    return usage.client.number, usage


def _size_bytes(usage: RequestUsage) -> int:
    # As JSON a text has at least as many bytes as it has as UTF-8.
    return _MEASURES_BYTES + len(usage.client.names)


def _message(usages: Sequence[RequestUsage]) -> bytes:
    clients, times_ms, produced_bytes, fetched_bytes, io_time_ns, request_counts, are_exempt = zip(*usages, strict=True)
    users, client_ids, broker_ids = zip(*[client[:3] for client in clients], strict=True)
    known = {
        "event_time_ms": times_ms,
        "user": users,
        "client_id": client_ids,
        "broker_id": broker_ids,
        "produced_bytes": produced_bytes,
        "fetched_bytes": fetched_bytes,
        "io_time_ns": io_time_ns,
        "request_count": request_counts,
        "throttle_exempt": are_exempt,
    }
    arrays = [
        pa.array(known[field.name], field.type) if field.name in known else pa.nulls(len(usages), field.type)
        for field in _SCHEMA
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
    return bytes(sink.getvalue().to_pybytes())


PACKED: Final = UsageCodec(
    _element, _size_bytes, _message, opening_bytes=_OPENING_BYTES, max_events=1_000, is_packed=True
)
