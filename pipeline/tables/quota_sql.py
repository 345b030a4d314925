"""Spark SQL on the quota table, under the edit lock."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from pipeline.embedded.jars import spark_jars
from pipeline.embedded.java import find_java
from pipeline.settings.model import Settings
from pipeline.stream.session import build_spark_session
from pipeline.tables.errors import QuotaEditRefused
from pipeline.tables.open import open_quota_table
from pipeline.tables.quota_table import EditAudit


def run_sql(settings: Settings, statement: str, audit: EditAudit) -> list[dict[str, Any]]:
    """Run one statement on the table `quotas` in a session of its own.

    The table's CHECK constraints refuse bad bounds and modes. Only the job sees a duplicate entity; it then
    keeps the last valid version (`kquota doctor` names the row).

    Returns:
        The rows of its result: of an UPDATE the number of rows it touched.

    Raises:
        QuotaEditRefused: Spark or a constraint refuses the statement; the table is as it was.
        QuotaTableBusy: Another edit holds the lock.
    """
    table = open_quota_table(settings.tables)
    location = table.uri if "://" in table.uri else Path(table.uri).resolve().as_uri()
    os.environ["JAVA_HOME"] = str(find_java().home)
    session = build_spark_session(settings.spark, spark_jars(), app_name="kquota-quotas-sql")
    try:
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", json.dumps(asdict(audit)))
        session.sql(f"CREATE TABLE quotas USING DELTA LOCATION '{location}'")
        with table.lock():
            return [row.asDict() for row in session.sql(statement).collect()]
    except PySparkException as exc:
        raise QuotaEditRefused([str(exc).strip().splitlines()[0]]) from exc
    finally:
        session.stop()
