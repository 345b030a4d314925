"""The clients that use the cluster now, read from the `usage` table."""

from functools import partial
from typing import Final

import pyarrow as pa

from pipeline.tables.errors import TableMissing
from pipeline.tables.opening import open_table
from pipeline.tables.reading.column_range import newest_instant_in
from pipeline.tables.reading.table_query import largest, run

_RECENT_MS: Final = 300_000
# Made without an array, because pyarrow imports pandas when it makes its first array.
_NONE: Final = pa.Table.from_batches([], pa.schema([pa.field("user", pa.string()), pa.field("client_id", pa.string())]))


def live_clients(usage_uri: str, recent_ms: int = _RECENT_MS) -> pa.Table:
    """Each `<user, client-id>` with usage in the last minutes, once.

    The minutes are counted back from the newest batch, not from now. So the answer is the same while the job is
    stopped. Rows of older time epochs do not count: a clock that was set back since has dated them.

    Args:
        usage_uri: address of the table; it may be missing.
        recent_ms: how many milliseconds before the newest batch, inclusive.

    Returns:
        Columns user and client_id, sorted by both; no rows if there is no usage or no table.
    """
    try:
        table = open_table(usage_uri)
    except TableMissing:
        return _NONE
    newest = newest_instant_in(table, partial(largest, table, "evaluated_at_ms"))
    if newest is None:
        return _NONE
    own = f"AND time_epoch = {newest.time_epoch} " if newest.time_epoch else ""
    query = (
        'SELECT DISTINCT "user", client_id FROM source '  # noqa: S608 - all values are our own
        f"WHERE sample_start_ms >= {newest.evaluated_at_ms - recent_ms} {own}ORDER BY 1, 2"
    )
    return run(table, query)
