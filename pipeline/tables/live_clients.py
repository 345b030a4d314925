"""Who uses the cluster now, as the `usage` table has it."""

from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from pipeline.tables.column_range import newest_in

_RECENT_MS: Final = 300_000
# Without an array: pyarrow imports pandas at the first it makes.
_NONE: Final = pa.Table.from_batches([], pa.schema([pa.field("user", pa.string()), pa.field("client_id", pa.string())]))


def live_clients(usage_uri: str, recent_ms: int = _RECENT_MS) -> pa.Table:
    """Each `<user, client-id>` of the last minutes of recorded usage, once; empty if there is no usage.

    "Last" counts back from the newest row, not from now: a job that stands still still has clients.

    Args:
        usage_uri: address of the table; it may be missing.
        recent_ms: how far back.
    """
    try:
        table = DeltaTable(usage_uri)
    except TableNotFoundError:
        return _NONE
    newest = newest_in(table, "sample_start_ms")
    if newest is None:
        return _NONE
    query = (
        'SELECT DISTINCT "user", client_id FROM usage '  # noqa: S608 - two integers of our own
        f"WHERE sample_start_ms >= {newest - recent_ms} ORDER BY 1, 2"
    )
    return pa.RecordBatchReader.from_stream(
        QueryBuilder().register("usage", table).execute(query).read_all()
    ).read_all()
