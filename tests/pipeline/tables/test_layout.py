from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pipeline.demo.run import make_tables
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.address import table_uri
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.opening import open_table
from pipeline.tables.port import TableOfAnotherBuild
from schemas.arrow import arrow_schema
from schemas.rows import QuotaRow
from tests.object_store import ObjectStore


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
    assert table.metadata().partition_columns == ([] if name == "quotas" else ["date"])


def test_the_quota_table_starts_in_cluster_scope_and_enforces(tmp_path: Path) -> None:
    create_missing(str(tmp_path), [TABLES["quotas"]])
    configuration = DeltaTable(table_uri(str(tmp_path), "quotas")).metadata().configuration
    assert (configuration["kquota.scope"], configuration["kquota.mode"]) == ("cluster", "enforce")


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
