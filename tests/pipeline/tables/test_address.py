"""A root in a catalog, as who has no Spark sees it: by its location, if there is one."""

from pathlib import Path

import pytest

from pipeline.job.lock import tables_lock_file
from pipeline.settings.model import Settings
from pipeline.settings.places import CatalogRoot, StoreAddress, StoreSettings
from pipeline.tables.address import TablesInCatalog, full_address, is_local, looking_at, table_missing, table_uri
from pipeline.tables.from_settings import open_quota_table
from pipeline.tables.layout import create_missing

ROOT = CatalogRoot("catalog:main.kquota", None)


def test_a_root_with_a_location_is_opened_there(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    tables = {"root": "catalog:main.kquota", "location": str(tmp_path), "writer": "delta-spark"}
    settings = Settings.model_validate({"tables": tables})
    assert open_quota_table(settings.tables).uri == f"{tmp_path}/quotas"
    assert tables_lock_file(settings.tables.root) == tmp_path / ".kquota-job.lock"


def test_a_location_in_a_store_stays_an_address_of_that_store() -> None:
    root = CatalogRoot("catalog:main.kquota", StoreAddress("abfss://c@a/t", StoreSettings(region="r1")))
    uri = table_uri(root, "usage")
    assert isinstance(uri, StoreAddress)
    assert (uri, uri.store.region) == ("abfss://c@a/t/usage", "r1")


def test_a_root_without_one_is_refused_with_the_ways_out() -> None:
    with pytest.raises(TablesInCatalog) as refused:
        table_uri(ROOT, "usage")
    assert refused.value.exit_code == 2
    assert str(refused.value) == (
        "only Spark can open catalog:main.kquota: its location is not set. Fix: "
        "set tables.location, or give --tables the place that the job logs when it starts"
    )
    assert tables_lock_file(ROOT) is None


def test_a_name_in_a_catalog_is_no_folder() -> None:
    assert not is_local(ROOT)
    assert full_address(ROOT) == ROOT
    table = ROOT.table("usage")
    assert looking_at(table) == "DESCRIBE DETAIL `main`.`kquota`.`usage`, in Spark SQL"
    assert str(table_missing(table)).startswith("no Delta table at catalog:main.kquota.usage. Fix: correct ")
