"""Tables and views over them, made once for all tests of SQL."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.deploy.written_tables import Written


@contextmanager
def registered(spark: "SparkSession", schema: str, root: str, views: Collection[str] | None = None) -> Iterator[None]:
    """The tables, and these views over them (None = all), in a schema of their own."""
    from tests.deploy.sql_texts import QUOTA_HISTORY, VIEWS, statements, view_of  # noqa: PLC0415

    variables = {"schema": schema, "tables_root": root}
    for name, value in variables.items():
        spark.conf.set(name, value)
    try:
        for path in (VIEWS, QUOTA_HISTORY):
            for statement in statements(path.read_text("utf-8")):
                if views is None or view_of(statement) in {None, *views}:
                    spark.sql(statement)
        spark.sql("USE default")
        yield
    finally:
        spark.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        for name in variables:
            spark.conf.unset(name)


@pytest.fixture(scope="session")
def written(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator["Written"]:
    # Not at the top: that loads the clients of Kafka, which warn, before the rules for warnings hold.
    from tests.deploy.written_tables import SCHEMA, Written, WrittenTables  # noqa: PLC0415

    tables = WrittenTables(tmp_path_factory.mktemp("sql"), spark)
    with registered(spark, SCHEMA, tables.root):
        yield Written(spark, tables)
