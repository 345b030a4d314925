"""Settings of tables in a Spark catalog."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.settings.loading import load_settings
from pipeline.settings.model import Settings
from pipeline.settings.places import TRIGGER_MS, CatalogRoot, StoreAddress


def in_catalog(**tables: Any) -> dict[str, Any]:
    return {"tables": {"root": "catalog:main.kquota", "writer": "delta-spark", **tables}}


def test_a_root_in_a_catalog_knows_its_parts() -> None:
    root = load_settings(None, in_catalog(location="/data/tables")).tables.root
    assert isinstance(root, CatalogRoot)
    assert (root, root.catalog, root.schema, root.location) == ("catalog:main.kquota", "main", "kquota", "/data/tables")
    assert root.table("usage") == "catalog:main.kquota.usage"
    assert root.table("usage").sql_name == "`main`.`kquota`.`usage`"
    copy = pickle.loads(pickle.dumps(root))  # noqa: S301 - our own
    assert (copy, copy.schema, copy.location) == (root, "kquota", "/data/tables")


@pytest.mark.parametrize(
    "root", ["catalog:main", "catalog:main.a.b", "catalog:", "catalog:ma`in.kquota", "catalog:a.b-c"]
)
def test_a_root_that_is_no_schema_of_a_catalog_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match=r"'tables.root' .* is not catalog:CATALOG.SCHEMA of letters") as refused:
        load_settings(None, in_catalog(root=root))
    assert f" {root} " in refused.value.message


def test_only_spark_writes_to_a_catalog() -> None:
    with pytest.raises(UsageError, match=r"'tables.writer' delta-rs cannot write to catalog:main.kquota"):
        load_settings(None, in_catalog(writer="delta-rs"))


def test_a_location_without_a_root_is_refused_and_one_beside_a_folder_is_not_used() -> None:
    with pytest.raises(UsageError, match=r"'tables.location' needs a 'tables.root'"):
        load_settings(None, {"tables": {"location": "/data/tables"}})
    assert load_settings(None, {"tables": {"root": "there", "location": "/data/tables"}}).tables.root == "there"


def test_a_location_that_delta_takes_for_another_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'tables.location' .* contains #"):
        load_settings(None, in_catalog(location=str(tmp_path / "a#b")))


def test_a_location_in_a_store_knows_how_the_store_is_reached() -> None:
    tables = load_settings(None, {**in_catalog(location="abfss://c@a/t"), "store": {"region": "r1"}}).tables
    assert isinstance(tables.root, CatalogRoot)
    assert isinstance(tables.root.location, StoreAddress)
    assert tables.root.location.store.region == "r1"


@pytest.mark.parametrize(
    ("given", "trigger_ms"),
    [
        ({}, Settings().stream.trigger_ms),
        (in_catalog(), TRIGGER_MS),
        ({**in_catalog(), "stream": {"starting_offsets": "latest"}}, TRIGGER_MS),
        ({**in_catalog(), "stream": {"trigger_ms": 500}}, 500),
    ],
)
def test_the_default_trigger_in_a_catalog_is_longer(given: dict[str, Any], trigger_ms: int) -> None:
    assert load_settings(None, given).stream.trigger_ms == trigger_ms
    assert Settings().stream.trigger_ms < TRIGGER_MS
