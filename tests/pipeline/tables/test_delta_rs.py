"""Only the driver that started last writes the tables. A restart in its process is the same driver."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable

from pipeline.errors import Conflict, PipelineError, Refused
from pipeline.stream.job_tables import DriverEpoch
from pipeline.tables import delta_rs
from pipeline.tables.delta_rs import DeltaRsWriter, committed
from pipeline.tables.layout import TABLES, changes_of_others, create_missing
from pipeline.tables.opening import FIT
from pipeline.tables.port import TableUnwritable, table_uri
from pipeline.tables.queries import TimeSlices
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.tables.upkeep import clean, trim
from schemas.arrow import conform
from schemas.rows import DeadLetterRow
from tests.touched_tables import add_columns, add_to_log


@pytest.fixture
def uri(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES["dead_letters"]])
    return table_uri(str(tmp_path), "dead_letters")


def dead_letters(count: int = 1, offset: int = 0) -> pa.Table:
    rows = pa.table({"offset": range(offset, offset + count)})
    return conform(
        rows.append_column("value", pa.array([b"{"] * count)),
        DeadLetterRow,
        cluster="c1",
        query_id="q1",
        batch_id=0,
        appended_at_ms=1_700_000_000_000,
        topic="quota.usage.v1",
        partition=0,
        cause="no JSON",
    )


def writer(uri: str, epoch: int) -> DeltaRsWriter:
    opened = DeltaRsWriter(uri, "job")
    opened.raise_epoch(epoch)
    return opened


def test_of_two_drivers_the_older_is_fenced_and_no_row_is_lost_or_stored_twice(uri: str) -> None:
    older, newer = writer(uri, 1), DeltaRsWriter(uri, "job")
    fenced: list[Conflict] = []

    def race() -> None:
        for version in range(2_000):  # far more than it makes until it is fenced, however slow the other one is
            try:
                older.append(dead_letters(offset=version), {"q1": version}, {})
            except Conflict as exc:
                fenced.append(exc)
                return

    thread = threading.Thread(target=race)
    thread.start()
    while not older.recorded_version("q1"):
        pass
    newer.raise_epoch(2)
    start = (newer.recorded_version("q1") or 0) + 1
    for version in range(start, start + 20):
        assert newer.append(dead_letters(offset=version), {"q1": version}, {})
    thread.join()
    assert ["epoch 2 is recorded" in exc.message for exc in fenced] == [True]
    assert sorted(newer.read(["offset"])["offset"].to_pylist()) == list(range(start + 20))


def test_an_append_is_made_again_if_a_commit_of_maintenance_comes_first(uri: str) -> None:
    job = writer(uri, 1)
    stop = threading.Event()

    def keep_committing() -> None:
        number = 0
        while not stop.wait(0.02):
            number += 1
            DeltaTable(uri).alter.set_table_properties({"kquota.test": str(number)}, raise_if_not_exists=False)

    thread = threading.Thread(target=keep_committing)
    thread.start()
    try:
        for version in range(40):
            assert job.append(dead_letters(offset=version), {"q1": version}, {})
    except Conflict:
        pass  # other commits may come first five times in a row; what must hold is asserted below
    finally:
        stop.set()
        thread.join()
    offsets = sorted(job.read(["offset"])["offset"].to_pylist())
    assert offsets == list(range((job.recorded_version("q1") or 0) + 1))


def test_a_writer_that_opens_a_new_handle_skips_no_row_and_repeats_none(uri: str) -> None:
    job = writer(uri, 1)
    for version in range(120):
        assert job.append(dead_letters(offset=version), {"q1": version}, {})
    assert not job.append(dead_letters(), {"q1": 119}, {})
    assert job.read(["offset"]).num_rows == 120
    assert list(Path(uri, "_delta_log").glob("*.checkpoint.parquet"))


@pytest.mark.parametrize("touched", [False, True])
def test_rows_of_another_shape_are_refused(touched: bool, uri: str) -> None:
    if touched:
        add_columns(uri)
    for rows in (pa.table({"nonsense": [1]}), dead_letters().append_column("nonsense", pa.array([1]))):
        with pytest.raises(Refused):
            writer(uri, DeltaTable(uri).version()).append(rows, {"q1": 0}, {})


def test_a_column_that_others_add_while_the_job_runs_is_null_in_its_rows(uri: str) -> None:
    job = writer(uri, 1)
    assert job.append(dead_letters(offset=0), {"q1": 0}, {})
    add_columns(uri)
    assert job.append(dead_letters(offset=1), {"q1": 1}, {})
    rows = job.read(["offset", "team", "seen", "contact"]).sort_by("offset").to_pylist()
    assert rows == [{"offset": offset, "team": None, "seen": None, "contact": None} for offset in (0, 1)]


def test_the_error_of_an_unwritable_store_names_the_table_and_the_remedy(uri: str) -> None:
    job = writer(uri, 1)
    Path(uri, "date=2023-11-14").write_text("a file where the partition's folder should be")
    with pytest.raises(TableUnwritable, match=r"cannot be written: .* Fix: nothing was written; .* ls -ld /"):
        job.append(dead_letters(), {"q1": 0}, {})


def test_a_writer_that_has_rested_looks_again_before_it_appends(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The log's entries of the other driver may be cleaned by then, so that nothing would refuse the old one's commit.
    monkeypatch.setattr(delta_rs, "_TRUSTED_SECONDS", 0.0)
    older = writer(uri, 1)
    older.append(dead_letters(), {"q1": 0}, {})
    newer = writer(uri, 2)
    newer.append(dead_letters(), {"q1": 1}, {})
    log = Path(uri, "_delta_log")
    DeltaTable(uri).create_checkpoint()
    for entry in sorted(log.glob("*.json"))[1:]:
        entry.unlink()
    with pytest.raises(Conflict):
        older.append(dead_letters(), {"q1": 2}, {})


@pytest.mark.parametrize("other_commits", [0, 1, 60])
def test_an_append_is_made_although_the_log_was_cleaned_since_the_commit_before(uri: str, other_commits: int) -> None:
    job = writer(uri, 1)
    for version in range(5):
        job.append(dead_letters(offset=version), {"q1": version}, {})
    for number in range(other_commits):
        DeltaTable(uri).alter.set_table_properties({"kquota.test": str(number)}, raise_if_not_exists=False)
    newest = DeltaTable(uri)
    newest.create_checkpoint()
    for entry in Path(uri, "_delta_log").glob("*.json"):
        if int(entry.stem) < newest.version():
            entry.unlink()
    assert not job.append(dead_letters(), {"q1": 4}, {})
    assert job.append(dead_letters(offset=5), {"q1": 5, "q2": 0}, {})
    assert sorted(job.read(["offset"])["offset"].to_pylist()) == list(range(6))


def test_a_handle_is_trusted_for_far_less_time_than_the_log_keeps_its_entries() -> None:
    kept = {table.configuration["delta.logRetentionDuration"] for table in TABLES.values()}
    assert kept == {"interval 2 minutes", "interval 3 minutes", "interval 2 days", "interval 400 days"}
    assert delta_rs._TRUSTED_SECONDS <= 60


def writers(root: Path) -> dict[str, DeltaRsWriter]:
    return {name: DeltaRsWriter(table_uri(str(root), name), "job") for name in ("usage", "batches")}


def test_a_driver_that_was_fenced_does_not_take_over_again(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    first, second = DriverEpoch(), DriverEpoch()
    first.raise_in(writers(tmp_path), "job")
    first.raise_in(writers(tmp_path), "job")
    second.raise_in(writers(tmp_path), "job")
    with pytest.raises(Conflict, match="another driver"):
        first.raise_in(writers(tmp_path), "job")
    second.raise_in(writers(tmp_path), "job")
    assert writers(tmp_path)["usage"].recorded_version("job") == 4


def test_a_start_that_was_interrupted_between_two_tables_can_be_repeated(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    epoch = DriverEpoch()
    only_usage = {"usage": writers(tmp_path)["usage"]}
    epoch.raise_in(only_usage, "job")
    epoch.raise_in(writers(tmp_path), "job")
    assert {writer.recorded_version("job") for writer in writers(tmp_path).values()} == {2}


# Commits: made again if another one came first, else refused with the real reason.


AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")
AT_ONCE = CommitProperties(max_commit_retries=0)
NO_FEATURES_OF_DELTA_RS = (
    *("clustering", "domainMetadata", "rowTracking", "inCommitTimestamp", "allowColumnDefaults", "identityColumns"),
    *("typeWidening", "icebergCompatV2", "checkpointProtection", "vacuumProtocolCheck"),
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES["quotas"], TABLES["dead_letters"]])
    alter(str(tmp_path), 1.0)
    return str(tmp_path)


def alter(root: str, rate: float) -> int:
    return QuotaTable(root).alter([QuotaChange("alice", "", {"producer_byte_rate": rate})], AUDIT)


def told(root: str, name: str) -> list[tuple[str, str]]:
    """What `kquota doctor` says."""
    return [*changes_of_others(f"{root}/{name}", TABLES[name])]


@pytest.mark.parametrize("feature", [*sorted(FIT), *NO_FEATURES_OF_DELTA_RS])
def test_the_features_that_delta_rs_writes_are_those_that_keep_kquota_from_nothing(feature: str, root: str) -> None:
    add_to_log(f"{root}/quotas", [feature])
    if feature in FIT:
        assert alter(root, 2.0) == QuotaTable(root).read().version
        assert told(root, "quotas") == []
        return
    with pytest.raises(PipelineError, match=rf"(?i){feature}.* Fix: undo what others have changed"):
        alter(root, 2.0)


@pytest.mark.parametrize("feature", ["deletionVectors", "v2Checkpoint"])
def test_a_table_with_a_feature_that_only_spark_writes_is_written_read_and_merged(feature: str, root: str) -> None:
    add_to_log(f"{root}/dead_letters", [feature])
    job = DeltaRsWriter(f"{root}/dead_letters", "job")
    job.raise_epoch(1)
    assert all(job.append(dead_letters(), {"q": number}, {}) for number in range(2))
    DeltaTable(job.uri).optimize.compact()
    assert TimeSlices(job.uri, "appended_at_ms").read(["offset"], 0, 2**62).num_rows == 2
    assert told(root, "dead_letters") == []


def test_a_job_whose_table_gets_such_a_feature_ends_with_the_reason_and_its_log_is_kept(root: str) -> None:
    uri = f"{root}/dead_letters"
    job = DeltaRsWriter(uri, "job")
    job.raise_epoch(1)
    assert job.append(dead_letters(), {"q": 0}, {})
    add_to_log(uri, ["clustering", "domainMetadata"])
    refused_commits: list[Callable[[], object]] = [
        lambda: job.append(dead_letters(), {"q": 1}, {}),
        lambda: DeltaRsWriter(uri, "job").raise_epoch(2),
        lambda: trim(uri, "appended_at_ms", 1_800_000_000_000),
        lambda: clean(uri),
    ]
    for refuse in refused_commits:
        with pytest.raises(Conflict, match=r"clustering, domainMetadata\)\. Fix: undo what others") as refused:
            refuse()
        assert refused.value.exit_code == 4, "the job does not start again by itself"


def test_an_append_only_table_takes_appends_and_says_why_it_takes_nothing_else(root: str) -> None:
    for name in ("quotas", "dead_letters"):
        add_to_log(f"{root}/{name}", properties={"delta.appendOnly": "true"})
    job = DeltaRsWriter(f"{root}/dead_letters", "job")
    job.raise_epoch(1)
    assert job.append(dead_letters(), {"q": 0}, {})
    assert QuotaTable(root).set_mode("shadow", AUDIT) == QuotaTable(root).read().version
    replaced: list[Callable[[], object]] = [
        lambda: alter(root, 2.0),
        lambda: trim(job.uri, "appended_at_ms", 1_800_000_000_000),
    ]
    for refuse in replaced:
        with pytest.raises(Conflict, match=r"others have set delta\.appendOnly\. Fix: undo"):
            refuse()
    assert [severity for severity, _ in told(root, "quotas")] == ["error"]


def test_rows_that_a_limit_of_others_refuses_are_told(root: str) -> None:
    uri = f"{root}/dead_letters"
    add_columns(uri)
    DeltaTable(uri).alter.add_constraint({"has_team": "team IS NOT NULL"})
    ((severity, text), *_) = told(root, "dead_letters")
    assert severity == "warning"
    assert "takes only rows that meet delta.constraints.has_team. Fix: undo what others have changed" in text
    job = DeltaRsWriter(uri, "job")
    job.raise_epoch(1)
    with pytest.raises(Refused, match=r"1 rows failed validation check\. Fix: .* if it has limits, undo what"):
        job.append(dead_letters(), {"q": 0}, {})


def test_columns_of_others_and_columns_that_are_gone_are_told(root: str) -> None:
    add_columns(f"{root}/quotas")
    kept = "quotas: columns of others, without effect: team, seen, contact (kept as they are, null in new rows)"
    assert told(root, "quotas") == [("ok", kept)]
    newest = sorted(Path(root, "quotas", "_delta_log").glob("*.json"))[-1]
    newest.write_text(
        newest.read_text().replace(json.dumps('"name":"note"')[1:-1], json.dumps('"name":"remark"')[1:-1])
    )
    (severity, text), _ = told(root, "quotas")
    assert severity == "error"
    assert re.fullmatch(r".*/quotas lacks note: an earlier build has made it, or others .* tables create .*-new", text)


def test_a_commit_is_made_again_only_if_another_one_came_first(root: str) -> None:
    uri = f"{root}/quotas"
    attempts: list[int] = []

    def beaten(table: DeltaTable) -> None:
        attempts.append(table.version())
        for handle, value in ((DeltaTable(uri), "theirs"), (table, "ours")):
            handle.alter.set_table_properties(
                {"kquota.test": f"{value} {len(attempts)}"}, raise_if_not_exists=False, commit_properties=AT_ONCE
            )

    with pytest.raises(Conflict) as lost:
        committed(uri, beaten)
    assert attempts == [2, 3, 4, 5, 6]
    newest = r"failed 5 times because other commits came first, the newest version 7, SET TBLPROPERTIES by delta-rs"
    assert re.search(newest, lost.value.message)
