"""Spark SQL on the quota table, under the edit lock, or on a copy of it where it is in an object store."""

import json
import os
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipeline.command_line import command_text
from pipeline.errors import Refused, first_line
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import Settings, SparkSettings
from pipeline.stream.session import DELTA_CONF, build_spark_session
from pipeline.tables.address import full_address, is_local
from pipeline.tables.committing import keep_on_disk
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.opening import open_table, unfit_features, unwritable
from pipeline.tables.quotas.edit import edit_refused
from pipeline.tables.quotas.table import EditAudit, QuotaTable, QuotaTableState
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot
from quota.units import Mistake

_A_STATEMENT: Final = "the table is as it was; write for example UPDATE quotas SET mode = 'shadow' WHERE user = 'alice'"
_ROWS_ONLY: Final = (
    "in an object store only rows are stored: run it where Spark writes there, while no one edits quotas"
)
_VIOLATED: Final = "[DELTA_VIOLATE_CONSTRAINT"


def run_sql(settings: Settings, statement: str, audit: EditAudit) -> list[dict[str, Any]]:
    """Run one statement on the table `quotas` in a session of its own; returns the rows of its result.

    A table in an object store is not written by Spark, whose commits there could overwrite those of others: the
    statement runs on a copy on this machine, which has kquota's own columns, and the rows it leaves are stored as every
    other edit is.

    Raises:
        Refused: Spark or a CHECK constraint refuses the statement, or, in a store, it leaves rows that are no
            valid quotas, or changes more than rows; the table is as it was. On a local disk also: the statement was
            carried out and left rows that no constraint can refuse, an entity twice.
        Conflict: Another edit holds the lock, or, in a store, came first. On a local disk also: the statement was
            carried out and has given the table a feature with which no other edit is possible.
    """
    table = QuotaTable(settings.tables.root)
    if is_local(table.uri):
        return _run(settings.spark, table, statement, audit)
    before = table.read()
    with TemporaryDirectory(prefix="kquota-sql-") as folder:
        create_missing(folder, [TABLES["quotas"]])
        copy = QuotaTable(folder)
        copy.commit(lambda _: before.rows, audit, once_stored=before.rows)
        shape = _shape(copy)
        rows = _run(settings.spark, copy, statement, audit, is_copy=True)
        if _shape(copy) != shape:
            raise edit_refused([Mistake("it changes columns or properties of the table")], _ROWS_ONLY)
        after = copy.read().rows
    table.commit(lambda _: after, audit, if_version=before.version, once_stored=before.rows)
    return rows


def _run(
    spark: SparkSettings, table: QuotaTable, statement: str, audit: EditAudit, *, is_copy: bool = False
) -> list[dict[str, Any]]:
    location = full_address(table.uri)
    os.environ["JAVA_HOME"] = str(find_java().home)
    with TemporaryDirectory(prefix="kquota-sql-") as warehouse:
        spark = spark.with_default_conf({**DELTA_CONF, "spark.sql.warehouse.dir": warehouse})
        session = build_spark_session(spark, spark_jars(), app_name="kquota-quotas-sql")
        # What fails is raised, with one line; Spark would log each of its layers with a stack trace first.
        session.sparkContext.setLogLevel("OFF")
        try:
            session.conf.set("spark.databricks.delta.commitInfo.userMetadata", json.dumps(asdict(audit)))
            session.sql(f"CREATE TABLE quotas USING DELTA LOCATION {_literal(location)}")
            with table.lock():
                before, features = table.read(), unfit_features(open_table(table.uri))
                rows = [row.asDict() for row in session.sql(statement).collect()]
                if not is_copy:  # what is left of a copy is judged before it is stored
                    keep_on_disk(table.uri)
                    _refuse_invalid(table, before)
                    _refuse_new_features(table, features)
            return rows
        except (PySparkException, Py4JJavaError) as exc:
            raise edit_refused([Mistake(_reason(exc))], _A_STATEMENT) from exc
        finally:
            session.stop()


def _literal(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return f"'{escaped}'"


def _reason(failure: PySparkException | Py4JJavaError) -> str:
    # Spark wraps the error of a violated constraint, so it is looked for first.
    violated = next((line for line in str(failure).splitlines() if _VIOLATED in line), None)
    return first_line(failure) if violated is None else violated[violated.index(_VIOLATED) :]


def _shape(table: QuotaTable) -> tuple[object, ...]:
    stored = open_table(table.uri)
    return stored.schema().to_json(), stored.metadata().configuration, stored.protocol()


def _refuse_new_features(table: QuotaTable, before: set[str]) -> None:
    stored = open_table(table.uri)
    if unfit_features(stored) - before:
        raise unwritable(table.uri, stored)


def _refuse_invalid(table: QuotaTable, before: QuotaTableState) -> None:
    after = table.read()
    try:
        QuotaSnapshot.from_rows(after.rows, version=after.version)
    except InvalidQuotas as exc:
        message = (
            f"quotas v{after.version} was written and is invalid, so v{before.version} stays in force: "
            f"{'; '.join(exc.problems)}"
        )
        raise Refused(message, command_text("quotas", "rollback", str(before.version))) from exc
