"""Scans of a table's data files by Arrow."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.tables.opening import local_path
from pipeline.tables.reading.query import ADDED_COLUMN


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

    path = local_path(table)
    files = None if path is None else SubTreeFileSystem(path, LocalFileSystem())
    options = ParquetReadOptions(dictionary_columns=list(dictionaries)) if dictionaries else None
    dataset = table.to_pyarrow_dataset(filesystem=files, parquet_read_options=options)
    if ADDED_COLUMN in dataset.schema.names:
        return dataset
    return dataset.replace_schema(dataset.schema.append(pa.field(ADDED_COLUMN, pa.int64())))
