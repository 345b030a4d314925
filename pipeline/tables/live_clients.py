"""The clients that use the cluster now, read from the `usage` table."""

from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from pipeline.tables.column_range import newest_in

_RECENT_MS: Final = 300_000
# Made without an array, because pyarrow imports pandas when it makes its first array.
_NONE: Final = pa.Table.from_batches([], pa.schema([pa.field("user", pa.string()), pa.field("client_id", pa.string())]))


def live_clients(usage_uri: str, recent_ms: int = _RECENT_MS) -> pa.Table:
    """Each `<user, client-id>` with usage in the last minutes, once.

    The minutes are counted back from the newest row, not from now. So the answer is the same while the job is stopped.

    Args:
        usage_uri: address of the table; it may be missing.
        recent_ms: how many milliseconds before the newest row, inclusive.

    Returns:
        Columns user and client_id, sorted by both; no rows if there is no usage or no table.
    """
    try:
        table = DeltaTable(usage_uri)
    except TableNotFoundError:
        return _NONE
    newest = newest_in(table, "sample_start_ms")
    if newest is None:
        return _NONE
    query = (
        'SELECT DISTINCT "user", client_id FROM usage '  # noqa: S608 - both values are our own
        f"WHERE sample_start_ms >= {newest - recent_ms} ORDER BY 1, 2"
    )
    return pa.RecordBatchReader.from_stream(
        QueryBuilder().register("usage", table).execute(query).read_all()
    ).read_all()
