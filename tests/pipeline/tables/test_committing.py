"""A commit is made again if another one came first; what others have done to a table is told, with the way out."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable

from pipeline.errors import Conflict, PipelineError, Refused
from pipeline.tables.committing import committed
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, changes_of_others, create_missing
from pipeline.tables.opening import FIT
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.tables.reading import TimeSlices
from pipeline.tables.upkeep import clean, trim
from tests.pipeline.tables.test_delta_rs import dead_letters
from tests.touched_tables import add_columns, add_to_log

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
