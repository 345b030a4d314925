"""Only the driver that started last writes the tables. A restart in its process is the same driver."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipeline.errors import Conflict, PipelineError, Refused
from pipeline.stream.job_tables import DriverEpoch
from pipeline.tables import delta_rs
from pipeline.tables.delta_rs import DeltaRsWriter, committed
from pipeline.tables.layout import TABLES, changes_of_others, create_missing
from pipeline.tables.opening import FIT
from pipeline.tables.port import table_uri
from pipeline.tables.queries import TimeSlices
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.upkeep import clean, trim
from tests.pipeline.tables.factories import AUDIT, bound, dead_letters, job_writer, new_table, quota_table
from tests.touched_tables import add_columns, add_to_log


@pytest.fixture
def job(tmp_path: Path) -> DeltaRsWriter:
    return job_writer(tmp_path, "dead_letters")


def set_property(uri: str, value: object) -> None:
    """Make a commit without rows, as maintenance does."""
    DeltaTable(uri).alter.set_table_properties({"kquota.test": str(value)}, raise_if_not_exists=False)


def clean_log(uri: str) -> None:
    """Leave a checkpoint and the newest commit."""
    newest = DeltaTable(uri)
    newest.create_checkpoint()
    for entry in Path(uri, "_delta_log").glob("*.json"):
        if int(entry.stem) < newest.version():
            entry.unlink()


def test_a_new_handle_skips_no_row_and_repeats_none(job: DeltaRsWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_rs, "_COMMITS_PER_HANDLE", 3)
    for version in range(7):
        assert job.append(dead_letters(offset=version), {"q1": version}, {})
    assert not job.append(dead_letters(), {"q1": 6}, {})
    assert sorted(job.read(["offset"])["offset"].to_pylist()) == list(range(7))


@pytest.mark.parametrize("touched", [False, True])
def test_rows_of_another_shape_are_refused(touched: bool, job: DeltaRsWriter) -> None:
    if touched:
        add_columns(job.uri)
    for rows in (pa.table({"nonsense": [1]}), dead_letters().append_column("nonsense", pa.array([1]))):
        with pytest.raises(Refused):
            job.append(rows, {"q1": 0}, {})


def test_a_column_that_others_add_while_the_job_runs_is_null_in_its_rows(job: DeltaRsWriter) -> None:
    assert job.append(dead_letters(offset=0), {"q1": 0}, {})
    add_columns(job.uri)
    assert job.append(dead_letters(offset=1), {"q1": 1}, {})
    rows = job.read(["offset", "team", "seen", "contact"]).sort_by("offset").to_pylist()
    assert rows == [{"offset": offset, "team": None, "seen": None, "contact": None} for offset in (0, 1)]


def test_a_writer_looks_again_after_a_rest(job: DeltaRsWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The log's entries of the other driver may be cleaned by then, so that nothing would refuse the old one's commit.
    monkeypatch.setattr(delta_rs, "_TRUSTED_SECONDS", 0.0)
    job.append(dead_letters(), {"q1": 0}, {})
    job_writer(tmp_path, "dead_letters", 2).append(dead_letters(), {"q1": 1}, {})
    clean_log(job.uri)
    with pytest.raises(Conflict):
        job.append(dead_letters(), {"q1": 2}, {})


@pytest.mark.parametrize("failure", [OSError("no answer"), CommitFailedError("it is there")])
def test_an_append_that_failed_and_was_made_all_the_same_counts_as_made(
    failure: Exception, job: DeltaRsWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_fail(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        write_deltalake(*arguments, **options)
        raise failure

    monkeypatch.setattr(delta_rs, "write_deltalake", write_and_fail)
    assert job.append(dead_letters(), {"q1": 0}, {})
    assert not job.append(dead_letters(), {"q1": 0}, {})
    assert job.read().num_rows == 1


def test_an_append_that_came_second_is_made_again(job: DeltaRsWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = job._committed

    def lose(*given: Any) -> bool:
        monkeypatch.undo()
        set_property(job.uri, "theirs")
        return commit(*given)

    monkeypatch.setattr(job, "_committed", lose)
    assert job.append(dead_letters(), {"q1": 0}, {})
    assert job.read().num_rows == 1


@pytest.mark.parametrize("other_commits", [0, 1, 60])
def test_an_append_is_made_although_the_log_was_cleaned(job: DeltaRsWriter, other_commits: int) -> None:
    for version in range(5):
        job.append(dead_letters(offset=version), {"q1": version}, {})
    for number in range(other_commits):
        set_property(job.uri, number)
    clean_log(job.uri)
    assert not job.append(dead_letters(), {"q1": 4}, {})
    assert job.append(dead_letters(offset=5), {"q1": 5, "q2": 0}, {})
    assert sorted(job.read(["offset"])["offset"].to_pylist()) == list(range(6))


def test_a_handle_is_trusted_for_far_less_time_than_the_log_keeps_its_entries() -> None:
    kept = {table.configuration["delta.logRetentionDuration"] for table in TABLES.values()}
    assert kept == {"interval 2 minutes", "interval 3 minutes", "interval 2 days", "interval 400 days"}
    assert delta_rs._TRUSTED_SECONDS <= 60


def test_a_driver_that_was_fenced_does_not_take_over_again(tmp_path: Path) -> None:
    create_missing(str(tmp_path))

    def writers() -> dict[str, DeltaRsWriter]:
        return {name: DeltaRsWriter(table_uri(str(tmp_path), name), "job") for name in ("usage", "batches")}

    first, second = DriverEpoch(), DriverEpoch()
    first.raise_in({"usage": writers()["usage"]}, "job")  # and was interrupted before the next table
    first.raise_in(writers(), "job")
    assert {writer.recorded_version("job") for writer in writers().values()} == {2}
    second.raise_in(writers(), "job")
    with pytest.raises(Conflict, match="another driver"):
        first.raise_in(writers(), "job")
    second.raise_in(writers(), "job")
    assert writers()["usage"].recorded_version("job") == 4


# Commits: made again if another one came first, else refused with the real reason.


@pytest.fixture
def root(tmp_path: Path) -> str:
    quota_table(tmp_path).alter([bound("alice", 1.0)], AUDIT)
    new_table(tmp_path, "dead_letters")
    return str(tmp_path)


def told(root: str, name: str) -> list[tuple[str, str]]:
    """What `kquota doctor` says."""
    return [*changes_of_others(f"{root}/{name}", TABLES[name])]


def test_the_features_that_delta_rs_writes_keep_kquota_from_nothing(root: str, job: DeltaRsWriter) -> None:
    for name in ("quotas", "dead_letters"):
        add_to_log(f"{root}/{name}", sorted(FIT))
        assert told(root, name) == []
    assert QuotaTable(root).alter([bound("alice", 2.0)], AUDIT) == QuotaTable(root).read().version
    assert all(job.append(dead_letters(), {"q": number}, {}) for number in range(2))
    DeltaTable(job.uri).optimize.compact()
    assert TimeSlices(job.uri, "appended_at_ms").read(["offset"], 0, 2**62).num_rows == 2


NO_FEATURES_OF_DELTA_RS = (
    *("clustering", "domainMetadata", "rowTracking", "inCommitTimestamp", "allowColumnDefaults", "identityColumns"),
    *("typeWidening", "icebergCompatV2", "checkpointProtection", "vacuumProtocolCheck"),
)


@pytest.mark.parametrize("feature", NO_FEATURES_OF_DELTA_RS)
def test_a_feature_that_delta_rs_does_not_have_is_refused(feature: str, root: str) -> None:
    add_to_log(f"{root}/quotas", [feature])
    with pytest.raises(PipelineError, match=rf"(?i){feature}.* Fix: undo what others have changed"):
        QuotaTable(root).alter([bound("alice", 2.0)], AUDIT)


def test_a_table_of_other_features_is_refused_with_the_reason_and_keeps_its_log(root: str, job: DeltaRsWriter) -> None:
    assert job.append(dead_letters(), {"q": 0}, {})
    for name in ("quotas", "dead_letters"):
        add_to_log(f"{root}/{name}", ["clustering", "domainMetadata"])
    refused_commits: list[Callable[[], object]] = [
        lambda: QuotaTable(root).alter([bound("alice", 2.0)], AUDIT),
        lambda: job.append(dead_letters(), {"q": 1}, {}),
        lambda: DeltaRsWriter(job.uri, "job").raise_epoch(2),
        lambda: trim(job.uri, "appended_at_ms", 1_800_000_000_000),
        lambda: clean(job.uri),
    ]
    for refuse in refused_commits:
        with pytest.raises(Conflict, match=r"clustering, domainMetadata\)\. Fix: undo what others") as refused:
            refuse()
        assert refused.value.exit_code == 4, "the job does not start again by itself"


def test_an_append_only_table_takes_appends_and_says_why_it_takes_nothing_else(root: str, job: DeltaRsWriter) -> None:
    for name in ("quotas", "dead_letters"):
        add_to_log(f"{root}/{name}", properties={"delta.appendOnly": "true"})
    assert job.append(dead_letters(), {"q": 0}, {})
    assert QuotaTable(root).set_mode("shadow", AUDIT) == QuotaTable(root).read().version
    replaced: list[Callable[[], object]] = [
        lambda: QuotaTable(root).alter([bound("alice", 2.0)], AUDIT),
        lambda: trim(job.uri, "appended_at_ms", 1_800_000_000_000),
    ]
    for refuse in replaced:
        with pytest.raises(Conflict, match=r"others have set delta\.appendOnly\. Fix: undo"):
            refuse()
    assert [severity for severity, _ in told(root, "quotas")] == ["error"]


def test_rows_that_a_limit_of_others_refuses_are_told(root: str, job: DeltaRsWriter) -> None:
    add_columns(job.uri)
    DeltaTable(job.uri).alter.add_constraint({"has_team": "team IS NOT NULL"})
    ((severity, text), *_) = told(root, "dead_letters")
    assert severity == "warning"
    assert "takes only rows that meet delta.constraints.has_team. Fix: undo what others have changed" in text
    with pytest.raises(Refused, match=r"1 rows failed validation check\. Fix: .* if it has limits, undo what"):
        job.append(dead_letters(), {"q": 0}, {})


def test_a_commit_is_made_again_only_if_another_one_came_first(job: DeltaRsWriter) -> None:
    attempts: list[int] = []

    def beaten(table: DeltaTable) -> None:
        attempts.append(table.version())
        set_property(job.uri, f"theirs {len(attempts)}")
        ours = {"kquota.test": f"ours {len(attempts)}"}
        at_once = CommitProperties(max_commit_retries=0)
        table.alter.set_table_properties(ours, raise_if_not_exists=False, commit_properties=at_once)

    newest = r"failed 5 times because other commits came first, the newest version 6, SET TBLPROPERTIES by delta-rs"
    with pytest.raises(Conflict, match=newest):
        committed(job.uri, beaten)
    assert attempts == [1, 2, 3, 4, 5]
