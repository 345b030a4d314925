"""Scans of a table's data files by Arrow."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.tables.port import Condition


def read_rows(table: DeltaTable, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
    """The rows of a table, in no order.

    Args:
        table: the table at the version to read.
        columns: which ones, in which order; None = all.
        where: conditions that must all hold. Files whose statistics exclude them are not opened.
    """
    from pyarrow.parquet import filters_to_expression  # noqa: PLC0415 - imports pyarrow.dataset, see below

    condition = filters_to_expression(list(where)) if where else None
    return dataset_of(table).to_table(columns=None if columns is None else list(columns), filter=condition)


def dataset_of(table: DeltaTable, dictionaries: Sequence[str] = ()) -> Any:
    """The data files of a table as a `pyarrow.dataset.Dataset`.

    The files of a local table are read through Arrow's own file system. By default delta-rs gives Arrow a file system
    that is written in Python. What is read through it belongs to Python, and Arrow's threads free it shortly after the
    scan has returned. If the interpreter ends at that moment, the process aborts with exit code 134. Other stores are
    still read through delta-rs; for these `pipeline.process_end` keeps the exit code.

    Args:
        table: the table at the version to read.
        dictionaries: string columns to be read as dictionaries.
    """
    # Not at the top: pyarrow.dataset and pandas, which it imports, take 0.4 s, and most commands need neither.
    from pyarrow.dataset import ParquetReadOptions  # noqa: PLC0415
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem  # noqa: PLC0415

    address = urlsplit(table.table_uri)
    files = SubTreeFileSystem(unquote(address.path), LocalFileSystem()) if address.scheme == "file" else None
    options = ParquetReadOptions(dictionary_columns=list(dictionaries)) if dictionaries else None
    return table.to_pyarrow_dataset(filesystem=files, parquet_read_options=options)
