"""The Databricks bundle against the models of Databricks' own tools; its scripts in Spark."""

import copy
import runpy
from pathlib import Path
from typing import Any

import pytest

from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from tests.deploy.checkers import mistakes_by
from tests.deploy.commands import DEPLOY, bundle

FOLDER = DEPLOY / "databricks"


def test_the_models_of_databricks_take_all_resources() -> None:
    assert mistakes_by("bundle", bundle()["resources"]) == ""


def test_a_field_that_they_do_not_have_is_found() -> None:
    spoilt = copy.deepcopy(bundle()["resources"])
    spoilt["jobs"]["kquota"]["continous"] = {}
    assert "continous" in mistakes_by("bundle", spoilt)


def test_the_job_runs_without_end_on_classic_compute_of_one_user() -> None:
    job = bundle()["resources"]["jobs"]["kquota"]
    (cluster,) = job["job_clusters"]
    assert job["continuous"] == {"pause_status": "UNPAUSED"}
    assert cluster["new_cluster"]["data_security_mode"] == "SINGLE_USER"
    assert "environments" not in job  # those are serverless


def statements(*arguments: str) -> list[str]:
    return list(runpy.run_path(str(FOLDER / "register_tables.py"))["statements"](*arguments))


def test_every_table_of_the_job_is_made_known() -> None:
    told = statements("main", "kquota", "abfss://kquota@account.dfs.core.windows.net/tables")
    assert told[0] == "CREATE SCHEMA IF NOT EXISTS `main`.`kquota`"
    assert len(told) == 1 + len(TABLES)
    assert (
        "CREATE TABLE IF NOT EXISTS `main`.`kquota`.`usage` USING DELTA "
        "LOCATION 'abfss://kquota@account.dfs.core.windows.net/tables/usage'"
    ) in told


@pytest.mark.spark
def test_the_script_makes_tables_known_that_the_job_goes_on_to_write(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, schema = str(tmp_path / "it's here"), "spark_catalog.kquota_registered"
    create_missing(root)
    monkeypatch.setattr("sys.argv", ["register_tables.py", *schema.split("."), root])
    try:
        for _ in range(2):
            runpy.run_path(str(FOLDER / "register_tables.py"), run_name="__main__")
        assert {row.tableName for row in spark.sql(f"SHOW TABLES IN {schema}").collect()} == set(TABLES)
        QuotaTable(root).alter([QuotaChange("alice", "", {"producer_byte_rate": 5.0})], local_audit(""))
        assert [row.user for row in spark.table(f"{schema}.quotas").collect()] == ["alice"]
    finally:
        spark.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    assert len(QuotaTable(root).read().rows) == 1
