"""Makes the tables of the job known to a catalog: `register_tables.py CATALOG SCHEMA ROOT`. It can be repeated.

The job writes its tables by address and needs no catalog. SQL, views and the dashboard find them by name. The tables
are external ones: to drop one from the catalog leaves its files alone.
"""

import sys
from collections.abc import Iterator

from pyspark.sql import SparkSession

from pipeline.tables.address import table_uri
from pipeline.tables.layout import TABLES


def statements(catalog: str, schema: str, root: str) -> Iterator[str]:
    """The SQL statements, in order.

    Args:
        catalog: Name of one that is there.
        schema: Name of one in it; it is made if it is missing.
        root: Where the job's tables are.
    """
    yield f"CREATE SCHEMA IF NOT EXISTS {_quoted(catalog)}.{_quoted(schema)}"
    for name in TABLES:
        location = table_uri(root, name).replace("\\", "\\\\").replace("'", "\\'")
        yield (
            f"CREATE TABLE IF NOT EXISTS {_quoted(catalog)}.{_quoted(schema)}.{_quoted(name)} "
            f"USING DELTA LOCATION '{location}'"
        )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    for statement in statements(*sys.argv[1:]):
        session.sql(statement)
        sys.stdout.write(f"{statement}\n")
