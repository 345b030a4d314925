"""Spark SQL on a copy of the quota table: the rows that a statement leaves are one edit."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipeline.errors import Conflict, first_line
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import Settings, SparkSettings
from pipeline.stream.session import DELTA_CONF, build_spark_session, made_at
from pipeline.tables.queries import StoredTable
from pipeline.tables.quotas.edit import QUOTA_COLUMNS, edit_refused
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from quota.units import Mistake
from schemas.arrow import arrow_schema
from schemas.rows import QuotaRow

_A_STATEMENT: Final = "the table is as it was; write for example UPDATE quotas SET mode = 'shadow' WHERE user = 'alice'"


def run_sql(settings: Settings, statement: str, audit: EditAudit) -> list[dict[str, Any]]:
    """Run one statement on the table `quotas` in a Spark session of its own; returns the rows of its result.

    Spark and delta-rs do not see each other's commits in time. So the statement runs on a copy on this machine, which
    has the columns of quotas (not `forgiven_until_ms`), and the rows that it leaves are stored as every other edit is.

    Raises:
        Refused: Spark refuses the statement, the rows that it leaves are not valid quotas, or it changes more than
            rows. The table is as it was.
        Conflict: Another edit holds the lock, or came first.
    """
    table = QuotaTable(settings.tables.root)
    # A cluster's executors do not find the copy.
    spark = settings.spark.model_copy(update={"master": "local[*]"})
    with TemporaryDirectory(prefix="kquota-sql-") as folder, _session(spark, folder) as run:
        before = table.read()  # not before the session, which takes seconds to start: an edit may come in them
        copy = str(Path(folder) / "quotas")
        schema = pa.schema([arrow_schema(QuotaRow).field(name) for name in QUOTA_COLUMNS])
        write_deltalake(copy, pa.Table.from_pylist(list(before.rows), schema))
        shape = _shape(copy)
        found = run(statement)
        if _shape(copy) != shape:
            raise edit_refused([Mistake("it changes columns or properties of the table")], _A_STATEMENT)
        after = StoredTable(copy)
        if after.version:  # a query makes none
            rows = sorted(after.rows(), key=lambda row: (row["user"], row["client_id"]))

            def left(_: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
                if (version := table.version()) != before.version:
                    msg = f"another edit came first (version {version})"
                    raise Conflict(msg, "repeat the command")
                return rows

            table.commit(left, audit)
    return found


@contextmanager
def _session(spark: SparkSettings, folder: str) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Start a session; gives a function that runs a statement on the copy in a folder, and returns its rows."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    spark = spark.with_default_conf({**DELTA_CONF, "spark.sql.warehouse.dir": f"{folder}/warehouse"})
    build = partial(build_spark_session, spark, spark_jars(), app_name="kquota-quotas-sql")
    session = made_at(spark.master or "", build)
    # What fails is raised, with one line; Spark would log each of its layers with a stack trace first.
    session.sparkContext.setLogLevel("OFF")

    def run(statement: str) -> list[dict[str, Any]]:
        try:
            session.catalog.createTable("quotas", path=f"{folder}/quotas", source="delta")
            return [row.asDict() for row in session.sql(statement).collect()]
        except (PySparkException, Py4JJavaError) as exc:
            raise edit_refused([Mistake(first_line(exc))], _A_STATEMENT) from exc

    try:
        yield run
    finally:
        session.stop()


def _shape(uri: str) -> tuple[object, ...]:
    stored = DeltaTable(uri)
    return stored.schema().to_json(), stored.metadata().configuration, stored.protocol()
