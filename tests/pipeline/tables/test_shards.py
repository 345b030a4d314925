"""The tables know how their users are divided, and no job divides them in another way."""

from pathlib import Path

import pytest

from pipeline.errors import Conflict, Refused
from pipeline.settings.model import Settings
from pipeline.tables.from_settings import claim, claim_shards, create_tables, open_quota_table, refuse_other_division
from pipeline.tables.layout import TABLES
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import EditAudit, QuotaTable

AUDIT = EditAudit("carol", "ops1", "0.1.0", "")


def settings_of(folder: Path, shard: str | None) -> Settings:
    return Settings.model_validate({"tables": {"root": str(folder)}, "shard": shard})


def claimed(folder: Path, shard: str | None) -> QuotaTable:
    settings = settings_of(folder, shard)
    create_tables(settings.tables)
    table = open_quota_table(settings.tables)
    claim_shards(table, settings)
    return table


def test_the_tables_of_a_shard_are_below_and_the_quotas_beside_them(tmp_path: Path) -> None:
    claimed(tmp_path, "0/2")
    claimed(tmp_path, "1/2")
    assert sorted(place.name for place in tmp_path.iterdir() if place.is_dir()) == [
        "quotas",
        "shard-0-of-2",
        "shard-1-of-2",
    ]
    assert {place.name for place in (tmp_path / "shard-1-of-2").iterdir()} == set(TABLES) - {"quotas"}


def test_a_shard_starts_again_and_writes_nothing_into_the_quota_table(tmp_path: Path) -> None:
    version = claimed(tmp_path, "0/2").read().version
    assert claimed(tmp_path, "0/2").read().version == claimed(tmp_path, "1/2").read().version == version
    table = open_quota_table(settings_of(tmp_path, "0/2").tables)
    table.set_shards(2, AUDIT)  # as one of two that start at the same time does
    assert table.read().version == version


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ("0/2", "0/3", "divided as for one of 2; this is one of 3"),
        ("0/2", None, "divided as for one of 2; this is one job for all users"),
    ],
)
def test_users_that_are_divided_are_not_divided_in_another_way(
    tmp_path: Path, first: str, then: str | None, message: str
) -> None:
    claimed(tmp_path, first)
    with pytest.raises(Conflict, match=message):
        claimed(tmp_path, then)


def test_a_start_that_is_refused_makes_no_tables(tmp_path: Path) -> None:
    refuse_other_division(settings_of(tmp_path, "0/3"))
    claimed(tmp_path, "0/2")
    with pytest.raises(Conflict):
        refuse_other_division(settings_of(tmp_path, "0/3"))
    assert not (tmp_path / "shard-0-of-3").exists()


def test_users_of_one_job_are_not_divided(tmp_path: Path) -> None:
    claimed(tmp_path, None)
    claim(str(tmp_path), "kquota")
    with pytest.raises(Conflict, match=r"divided as for one job for all users; this is one of 2"):
        claimed(tmp_path, "0/2")


def test_a_quota_without_a_user_forbids_the_first_start_and_says_which(tmp_path: Path) -> None:
    table = claimed(tmp_path, None)
    table.alter(
        [QuotaChange("", "etl", {"producer_byte_rate": 1.0}), QuotaChange("", "<default>", {"mode": "exempt"})], AUDIT
    )
    with pytest.raises(Refused, match=r"the quota of .*names no user.*\(and 1 more\)"):
        claimed(tmp_path, "0/2")
    assert table.shards() == 1


def test_an_edit_makes_no_quota_without_a_user_while_users_are_divided(tmp_path: Path) -> None:
    table = claimed(tmp_path, "0/2")
    with pytest.raises(Refused, match=r"the quota of .*etl.* names neither a user nor the default user"):
        table.alter([QuotaChange("", "etl", {"producer_byte_rate": 1.0})], AUDIT)
    with pytest.raises(Refused):
        table.plan(lambda _rows: [{"user": "", "client_id": "etl", "producer_byte_rate": 1.0}])
    table.alter([QuotaChange("<default>", "etl", {"producer_byte_rate": 1.0})], AUDIT)
    assert [row["user"] for row in table.read().rows] == ["<default>"]


def test_a_row_of_another_tool_can_be_removed_and_stops_no_other_edit(tmp_path: Path) -> None:
    table = claimed(tmp_path, None)
    table.alter([QuotaChange("", "etl", {"producer_byte_rate": 1.0})], AUDIT)
    table.set_shards(2, AUDIT)
    table.alter([QuotaChange("bob", "", {"producer_byte_rate": 1.0})], AUDIT)
    share = settings_of(tmp_path, "0/2").share
    assert QuotaSource(table, share).pin().version < table.read().version
    table.alter([QuotaChange("", "etl", remove=True)], AUDIT)
    assert QuotaSource(table, share).pin().version == table.read().version
