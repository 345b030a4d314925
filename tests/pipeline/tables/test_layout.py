"""The SQL that `kquota tables views` prints; tests/deploy/test_sql.py runs it."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pipeline.demo.run import make_tables
from pipeline.errors import Conflict, UsageError
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.layout import QUOTA_HISTORY, TABLES, VIEWS, claim_tables, create_missing, owner_of, view_sql
from pipeline.tables.opening import open_table
from pipeline.tables.port import TableOfAnotherBuild, table_uri
from schemas.arrow import arrow_schema
from schemas.rows import QuotaRow
from tests.object_store import ObjectStore
from tests.pipeline.cli.running import kquota


def quota_rows(**values: object) -> pa.Table:
    row = {"user": "alice", "client_id": "", "producer_byte_rate": 1.0, "mode": "enforce", **values}
    return pa.Table.from_pylist([row], schema=arrow_schema(QuotaRow))


def test_creating_twice_creates_once(tmp_path: Path) -> None:
    assert create_missing(str(tmp_path)) == list(TABLES)
    assert create_missing(str(tmp_path)) == []


def test_a_creation_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    DeltaTable.create(table_uri(str(tmp_path), "quotas"), arrow_schema(QuotaRow))
    assert create_missing(str(tmp_path), [TABLES["quotas"]]) == []
    with pytest.raises(DeltaError, match="failed validation check"):
        write_deltalake(table_uri(str(tmp_path), "quotas"), quota_rows(mode="off"), mode="append")


@pytest.mark.parametrize(("name", "column"), [("usage", "time_epoch"), ("quotas", "note")])
def test_a_table_of_an_earlier_build_is_refused_in_one_line(tmp_path: Path, name: str, column: str) -> None:
    root = str(tmp_path / "tables")
    fields = [field for field in arrow_schema(TABLES[name].model) if field.name != column]
    DeltaTable.create(table_uri(root, name), pa.schema(fields))
    with pytest.raises(TableOfAnotherBuild) as refused:
        create_missing(root)
    assert refused.value.exit_code == 5
    assert str(refused.value).startswith(f"{root}/{name} lacks {column}: an earlier build has made it, or others ")
    assert str(refused.value).endswith(f"tables create --tables {root}-new")
    with pytest.raises(TableOfAnotherBuild, match=r"Fix: start over: .*demo --fresh, or make run FRESH=1"):
        make_tables(Settings(tables=TablesSettings(root=root)))


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_has_the_columns_of_its_model_and_the_plain_protocol(tmp_path: Path, name: str) -> None:
    create_missing(str(tmp_path), [TABLES[name]])
    table = DeltaTable(table_uri(str(tmp_path), name))
    protocol = table.protocol()
    assert table.to_pyarrow_table().schema.names == arrow_schema(TABLES[name].model).names
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 3 if name == "quotas" else 2)
    assert table.metadata().partition_columns == ([] if name in {"quotas", "rates"} else ["date"])


@pytest.mark.parametrize(
    "broken",
    [
        {"producer_byte_rate": 0.0},
        {"consumer_byte_rate": -1.0},
        {"request_percentage": float("nan")},
        {"request_percentage": float("inf")},
        {"mode": "off"},
        {"user": "", "client_id": ""},
    ],
    ids=str,
)
def test_a_row_that_is_no_quota_is_refused_by_the_table(tmp_path: Path, broken: dict[str, object]) -> None:
    create_missing(str(tmp_path), [TABLES["quotas"]])
    with pytest.raises(DeltaError, match="failed validation check"):
        write_deltalake(table_uri(str(tmp_path), "quotas"), quota_rows(**broken), mode="append")


@pytest.mark.parametrize(
    "valid",
    [
        {"producer_byte_rate": None, "mode": "exempt"},
        {"producer_byte_rate": float(2**63 - 1)},
        {"request_percentage": 1e-300},
        {"user": "", "client_id": "<default>", "mode": "shadow"},
    ],
    ids=str,
)
def test_a_row_that_is_just_valid_is_accepted(tmp_path: Path, valid: dict[str, object]) -> None:
    create_missing(str(tmp_path), [TABLES["quotas"]])
    uri = table_uri(str(tmp_path), "quotas")
    write_deltalake(uri, quota_rows(**valid), mode="append")
    assert DeltaTable(uri).count() == 1


def test_a_table_in_a_store_has_a_checkpoint_more_often_than_one_on_a_disk(store: ObjectStore, tmp_path: Path) -> None:
    intervals = {}
    for root in (str(tmp_path), store.address("layout")):
        create_missing(root, [TABLES["usage"]])
        configuration = open_table(table_uri(root, "usage")).metadata().configuration
        intervals[root] = configuration["delta.checkpointInterval"]
    assert list(intervals.values()) == ["50", "10"]


def test_tables_belong_to_the_first_job_that_starts_on_them(tmp_path: Path) -> None:
    create_missing(str(tmp_path))
    assert owner_of(str(tmp_path)) is None
    claim_tables(str(tmp_path), "first")
    claim_tables(str(tmp_path), "first")
    with pytest.raises(Conflict, match=r"belong to job 'first', not to 'second'.*--job first") as refused:
        claim_tables(str(tmp_path), "second")
    assert refused.value.exit_code == 4
    assert owner_of(str(tmp_path)) == "first"


def test_a_root_without_tables_belongs_to_nobody(tmp_path: Path) -> None:
    assert owner_of(str(tmp_path)) is None


@pytest.mark.parametrize("file", [VIEWS, QUOTA_HISTORY])
def test_no_variable_is_left(file: str) -> None:
    text = view_sql(file, "s3://lake/kquota/", "main.kquota")
    assert "${" not in text
    assert "USE main.kquota;" in text
    assert "s3://lake/kquota/quotas" in text


def test_a_folder_is_a_whole_path() -> None:
    assert f"LOCATION '{Path.cwd()}/here/usage'" in view_sql(VIEWS, "here", "kquota")


@pytest.mark.parametrize("schema", ["", "a.b.c", "a b", "a;DROP TABLE usage", "1a", "a."])
def test_a_schema_that_is_no_name_is_refused(schema: str) -> None:
    with pytest.raises(UsageError, match="is not a name, nor a catalog and a name"):
        view_sql(VIEWS, "s3://lake", schema)


@pytest.mark.parametrize("root", ["s3://it's", "/a`b", "/a\\b", "/a${b}"])
def test_a_root_that_would_end_the_text_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be used in SQL"):
        view_sql(VIEWS, root, "kquota")


def test_the_command_prints_the_file_for_the_tables_of_the_settings() -> None:
    printed = kquota("tables", "views", "--tables", "s3://lake/kquota", "--schema", "main.kquota")
    assert (printed.exit_code, printed.stdout) == (0, view_sql(VIEWS, "s3://lake/kquota", "main.kquota"))
    edits = kquota("tables", "views", "--tables", "s3://lake/kquota", "--quota-history")
    assert edits.stdout == view_sql(QUOTA_HISTORY, "s3://lake/kquota", "kquota")
    refused = kquota("tables", "views", "--schema", "a-b")
    assert refused.exit_code == 2
    assert "--schema a-b is not a name" in refused.stderr
