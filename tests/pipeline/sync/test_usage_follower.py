"""Every row of `usage` is given once, whatever else is committed to the table."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipeline.brokers.sync import UsageFollower
from tests.pipeline.sync.usage_table import UsageTable

T_MS = 1_700_000_000_000


@pytest.fixture
def usage(tmp_path: Path) -> UsageTable:
    return UsageTable(tmp_path)


def users(follower: UsageFollower) -> list[str]:
    rows = follower.new_rows()
    return [] if rows is None else sorted(rows["user"].to_pylist())


def test_it_begins_with_the_last_seconds_and_goes_on_with_what_is_new(usage: UsageTable) -> None:
    usage.append(T_MS, {"user": "old"})
    usage.append(T_MS + 20_000, {"user": "recent"})
    usage.append(T_MS + 30_000, {"user": "newest"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert (users(follower), follower.known_until_ms) == (["newest", "recent"], T_MS + 30_000)
    assert follower.new_rows() is None
    usage.append(T_MS + 31_000, {"user": "a"}, {"user": "b"})
    assert (users(follower), follower.known_until_ms) == (["a", "b"], T_MS + 31_000)


def test_batches_that_are_evaluated_at_the_same_instant_are_told_apart(usage: UsageTable) -> None:
    usage.append(T_MS, {"user": "a"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert users(follower) == ["a"]
    usage.append(T_MS, {"user": "b"})
    assert users(follower) == ["b"]
    usage.append(T_MS, {"user": "c"})
    usage.append(T_MS + 1, {"user": "d"})
    assert users(follower) == ["c", "d"]
    assert users(follower) == []


@pytest.mark.parametrize("back_ms", [3_600_000, 20_000, 0, -20_000])
def test_a_new_time_epoch_is_begun_with_its_newest_rows(usage: UsageTable, back_ms: int) -> None:
    usage.append(T_MS, {"user": "a"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert (users(follower), follower.has_begun_anew) == (["a"], True)
    usage.append(T_MS + 1_000, {"user": "b"})
    assert (users(follower), follower.has_begun_anew) == (["b"], False)
    usage.append(T_MS + 2_000, {"user": "not of the epoch"})
    usage.append(T_MS - back_ms - 15_001, {"user": "too old"}, time_epoch=1)
    usage.append(T_MS - back_ms, {"user": "c"}, time_epoch=1)
    assert (users(follower), follower.has_begun_anew, follower.known_until_ms) == (["c"], True, T_MS - back_ms)
    usage.append(T_MS - back_ms + 1_000, {"user": "d"}, time_epoch=1)
    assert (users(follower), follower.has_begun_anew) == (["d"], False)
    assert users(UsageFollower(usage.uri, first_ms=15_000)) == ["c", "d"]


def test_an_empty_table_has_nothing_new_until_something_is(usage: UsageTable) -> None:
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert (follower.new_rows(), follower.known_until_ms) == (None, 0)
    usage.append(T_MS, {"user": "a"})
    assert users(follower) == ["a"]


def test_compaction_vacuum_a_new_property_and_a_shortened_log_change_nothing(usage: UsageTable) -> None:
    usage.append(T_MS, {"user": "a"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert users(follower) == ["a"]
    usage.append(T_MS + 1, {"user": "b"})
    table = DeltaTable(usage.uri)
    table.optimize.compact()
    assert users(follower) == ["b"], "the new row is in a file with an old one"
    table.alter.set_table_properties({"kquota.test": "1"}, raise_if_not_exists=False)
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert users(follower) == []
    usage.append(T_MS + 2, {"user": "c"})
    log = Path(usage.uri, "_delta_log")
    newest = DeltaTable(usage.uri)
    newest.create_checkpoint()
    for entry in sorted(log.glob("0*.json"))[:-1]:
        entry.unlink()
    usage.append(T_MS + 3, {"user": "d"})
    assert users(follower) == ["c", "d"]


def test_a_day_that_begins_hides_no_row(usage: UsageTable) -> None:
    midnight_ms = T_MS // 86_400_000 * 86_400_000
    usage.append(midnight_ms - 1, {"user": "a"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert users(follower) == ["a"]
    usage.append(midnight_ms - 1, {"user": "b"})
    usage.append(midnight_ms, {"user": "c"})
    assert users(follower) == ["b", "c"]


def test_a_handle_that_followed_many_versions_is_opened_anew_and_loses_nothing(usage: UsageTable) -> None:
    follower = UsageFollower(usage.uri, first_ms=15_000)
    found = []
    for number in range(60):
        usage.append(T_MS + number, {"user": f"{number:02}"})
        found += users(follower)
    assert found == [f"{number:02}" for number in range(60)]
