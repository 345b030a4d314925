"""What the rows of DESCRIBE DETAIL say about the place of tables in a catalog. No Spark is asked."""

from typing import Any

import pytest

from pipeline.settings.places import CatalogRoot

pytest.importorskip("pyspark")

from pipeline.errors import UsageError
from pipeline.tables.catalog import CatalogPlace, folder_of, plain, properties_at, refuse_unfit

ROOT = CatalogRoot("catalog:main.kquota", None)


@pytest.mark.parametrize(
    ("location", "address"),
    [
        ("file:/a/usage", "/a/usage"),
        ("file:///a%20b/usage/", "/a b/usage"),
        ("abfss://c@a/t/usage", "abfss://c@a/t/usage"),
        ("s3://b/a%20b/usage", "s3://b/a%20b/usage"),
    ],
)
def test_a_location_becomes_an_address(location: str, address: str) -> None:
    assert plain(location) == address
    assert folder_of(location, "usage") == address.removesuffix("/usage")


def test_a_managed_table_lies_at_a_place_of_no_name() -> None:
    assert folder_of("abfss://c@a/__unitystorage/tables/0f3c", "usage") is None


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (CatalogPlace("/t", is_managed=False), "lie under /t: what works without Spark opens them with --tables /t"),
        (CatalogPlace(None, is_managed=False), "each at a place of its own: only Spark can open them by their names"),
        (CatalogPlace("/t", is_managed=True), "which manages their commits: only Spark can open them"),
    ],
)
def test_the_log_says_who_can_open_them(place: CatalogPlace, told: str) -> None:
    assert place.described(ROOT).endswith(told)


def test_commits_in_s3_need_something_that_orders_them() -> None:
    detail = {"location": "s3://bucket/t/usage"}
    refuse_unfit(ROOT, "usage", detail, is_ordered=True)
    with pytest.raises(UsageError, match=r"catalog:main.kquota.usage is in S3 at"):
        refuse_unfit(ROOT, "usage", detail, is_ordered=False)


def commit(version: int, operation: str, properties: str | None = None) -> dict[str, Any]:
    parameters = {} if properties is None else {"properties": properties}
    return {"version": version, "operation": operation, "operationParameters": parameters}


@pytest.mark.parametrize(
    ("version", "mode"), [(0, "enforce"), (1, "enforce"), (2, "shadow"), (3, "shadow"), (4, "enforce")]
)
def test_the_mode_of_a_version_is_what_the_last_change_before_it_says(version: int, mode: str) -> None:
    commits = [
        commit(4, "UNSET TBLPROPERTIES", '["kquota.mode"]'),
        commit(3, "WRITE"),
        commit(2, "SET TBLPROPERTIES", '{"kquota.mode":"shadow"}'),
        commit(1, "MERGE"),
        commit(0, "CREATE TABLE", '{"kquota.mode":"enforce","kquota.scope":"broker"}'),
    ]
    assert properties_at(commits, {}, version) == {"kquota.mode": mode, "kquota.scope": "broker"}


def test_a_mode_whose_commit_is_no_longer_kept_is_the_newest_one() -> None:
    assert properties_at([commit(9, "WRITE")], {"kquota.mode": "shadow"}, 9)["kquota.mode"] == "shadow"
