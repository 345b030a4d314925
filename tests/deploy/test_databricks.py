"""The Databricks bundle against the models and the schema of Databricks' own tools; its scripts in Spark."""

import copy
import runpy
from pathlib import Path
from typing import Any

import pytest

from pipeline.tables.layout import TABLES, create_missing
from tests.deploy.checkers import checker, given_schemas, mistakes_by, run
from tests.deploy.commands import DEPLOY, bundle

FOLDER = DEPLOY / "databricks"


def test_the_models_of_databricks_take_all_resources() -> None:
    assert mistakes_by("against_bundle.py", bundle()["resources"]) == ""


def test_a_field_that_they_do_not_have_is_found() -> None:
    spoilt = copy.deepcopy(bundle()["resources"])
    spoilt["jobs"]["kquota"]["continous"] = {}
    assert "continous" in mistakes_by("against_bundle.py", spoilt)


@pytest.mark.parametrize("path", [FOLDER / "databricks.yml", *sorted(FOLDER.glob("resources/*.yml"))])
def test_the_schema_of_bundles_allows_the_file(path: Path) -> None:
    schema = given_schemas() / "bundle.json"
    if not schema.exists():
        pytest.skip(f"needs {schema.name}, which `databricks bundle schema` prints")
    done = run(checker("check-jsonschema"), "--schemafile", schema, path)
    assert done.returncode == 0, done.stdout


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
def test_the_statements_run_and_the_tables_are_found_by_name(spark: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "it's here")
    create_missing(root)
    try:
        for _ in range(2):
            for statement in statements("spark_catalog", "kquota_registered", root):
                spark.sql(statement)
        found = {row.tableName for row in spark.sql("SHOW TABLES IN spark_catalog.kquota_registered").collect()}
        assert found == set(TABLES)
        assert spark.table("spark_catalog.kquota_registered.usage").count() == 0
    finally:
        spark.sql("DROP SCHEMA IF EXISTS spark_catalog.kquota_registered CASCADE")
