"""A shard has a job, tables and a checkpoint of its own, made of what all shards are given."""

from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.settings.loading import load_settings
from pipeline.settings.model import Settings
from pipeline.settings.places import above_shard, job_of, other_jobs, shard_at
from pipeline.tables.address import shared_root, table_uri
from quota.snapshot import ALL_USERS, Share


def of_shard(**given: object) -> Settings:
    return Settings.model_validate({"stream": {"checkpoint": "/state/checkpoint"}, **given})


def test_a_shard_has_names_and_folders_of_its_own() -> None:
    settings = of_shard(shard="1/3", job="night", tables={"root": "s3://lake/quotas/"})
    assert settings.share == Share(1, 3)
    assert settings.job == "night-1of3"
    assert settings.tables.root == "s3://lake/quotas/shard-1-of-3"
    assert settings.stream.checkpoint == "/state/checkpoint/shard-1-of-3"
    assert other_jobs(settings.job, settings.share) == ("night-0of3", "night-2of3")


def test_all_shards_have_one_quota_table() -> None:
    settings = of_shard(shard="1/3", tables={"root": "s3://lake/tables"}, store={"region": "eu-1"})
    assert table_uri(settings.tables.root, "quotas") == "s3://lake/tables/quotas"
    assert table_uri(settings.tables.root, "quotas").store.region == "eu-1"  # type: ignore[attr-defined]
    assert table_uri(settings.tables.root, "usage") == "s3://lake/tables/shard-1-of-3/usage"
    assert shared_root(settings.tables.root).store.region == "eu-1"  # type: ignore[attr-defined]
    assert table_uri("/a/b", "quotas") == "/a/b/quotas"


def test_the_root_of_a_shard_names_it() -> None:
    settings = of_shard(tables={"root": "/tables/shard-0-of-2"})
    assert (settings.shard, settings.job) == ("0/2", "kquota-0of2")
    assert settings.stream.checkpoint == "/state/checkpoint/shard-0-of-2"


def test_settings_that_are_checked_again_stay_as_they_are() -> None:
    settings = of_shard(shard="0/2", tables={"root": "/tables"})
    assert Settings.model_validate(settings.model_dump()) == settings


def test_without_a_shard_one_job_decides_for_all() -> None:
    settings = of_shard(tables={"root": "/tables"})
    assert (settings.share, settings.job, settings.tables.root) == (ALL_USERS, "kquota", "/tables")
    assert other_jobs("kquota", ALL_USERS) == ()


@pytest.mark.parametrize("shard", ["", "1", "2/2", "-1/2", "0/1", "0/65", "a/b", "0/2/2", "0 / 2", "\u0661/2"])
def test_what_is_no_shard_is_refused_with_what_it_must_be(shard: str) -> None:
    with pytest.raises(UsageError, match=r"'shard' must be i/n, with i from 0 to n \u2212 1 and n from 2 to 64"):
        load_settings(flags={"shard": shard})


def test_the_root_of_another_shard_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'shard' 1/2 is not that of 'tables.root' /tables/shard-0-of-2"):
        load_settings(flags={"shard": "1/2", "tables": {"root": "/tables/shard-0-of-2"}})


@pytest.mark.parametrize(
    ("place", "share", "above"),
    [
        ("/a/shard-0-of-2", Share(0, 2), "/a"),
        ("/a/shard-0-of-2/", Share(0, 2), "/a"),
        ("/a/shard-2-of-2", None, "/a/shard-2-of-2"),
        ("/a/shards", None, "/a/shards"),
        ("shard-0-of-2", None, "shard-0-of-2"),
    ],
)
def test_only_the_folder_of_a_possible_shard_is_one(place: str, share: Share | None, above: str) -> None:
    assert (shard_at(place), above_shard(place)) == (share, above)


def test_a_name_gets_one_ending() -> None:
    assert job_of(job_of("a", Share(0, 2)), Share(0, 2)) == "a-0of2"


def test_the_environment_names_the_shard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KQUOTA_SHARD", "0/2")
    assert load_settings(flags={"tables": {"root": str(tmp_path)}}).tables.root == f"{tmp_path}/shard-0-of-2"


def test_tables_in_a_catalog_are_not_divided() -> None:
    with pytest.raises(ValueError, match=r"'shard' 0/2 is set, but tables in a catalog"):
        of_shard(shard="0/2", tables={"root": "catalog:main.kquota", "writer": "delta-spark"})
