"""Tables and views over them, made once for all tests of SQL."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.deploy.written_tables import Written


@pytest.fixture(scope="session")
def written(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator["Written"]:
    # Not at the top: that loads the clients of Kafka, which warn, before the rules for warnings hold.
    from tests.deploy.sql_texts import QUOTA_HISTORY, VIEWS, statements  # noqa: PLC0415
    from tests.deploy.written_tables import SCHEMA, Written, WrittenTables  # noqa: PLC0415

    tables = WrittenTables(tmp_path_factory.mktemp("sql"), spark)
    variables = {"schema": SCHEMA, "tables_root": tables.root}
    for name, value in variables.items():
        spark.conf.set(name, value)
    try:
        for path in (VIEWS, QUOTA_HISTORY):
            for statement in statements(path.read_text("utf-8")):
                spark.sql(statement)
        spark.sql("USE default")
        yield Written(spark, tables)
    finally:
        spark.sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        for name in variables:
            spark.conf.unset(name)
