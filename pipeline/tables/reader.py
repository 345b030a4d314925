"""Reads a table that this process does not write: for the command line and for checks."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from pipeline.tables.errors import TableMissing
from pipeline.tables.port import Condition
from pipeline.tables.scan import read_rows


def read_table(
    uri: str,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    storage_options: Mapping[str, str] | None = None,
) -> pa.Table:
    """The newest rows of a table, in no order.

    Args:
        uri: Address of the table.
        columns: Which ones, in which order; None = all.
        where: Conditions that must all hold. Conditions on `date` skip whole partitions.
        storage_options: Options of delta-rs, for stores that need them.

    Raises:
        TableMissing: There is no table.
    """
    try:
        table = DeltaTable(uri, storage_options=dict(storage_options) if storage_options else None)
    except TableNotFoundError as exc:
        raise TableMissing(uri) from exc
    return read_rows(table, columns, where)
