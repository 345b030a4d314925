"""Tables as they are created, and the SQL of `kquota tables views`, which tests/deploy/test_sql.py runs."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pipeline.demo.run import make_tables
from pipeline.errors import Conflict, UsageError
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.layout import (
    QUOTA_HISTORY,
    TABLES,
    VIEWS,
    changes_of_others,
    claim_tables,
    create_missing,
    owner_of,
    view_sql,
)
from pipeline.tables.opening import open_table
from pipeline.tables.port import EDITED, TableOfAnotherBuild, table_uri
from schemas.arrow import arrow_schema
from schemas.asyncapi import MODELS
from schemas.rows import QuotaRow
from tests.object_store import ObjectStore
from tests.pipeline.cli.running import kquota
from tests.pipeline.tables.factories import new_table


def test_a_creation_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    uri = table_uri(str(tmp_path), "quotas")
    DeltaTable.create(uri, arrow_schema(QuotaRow))
    assert create_missing(str(tmp_path), [TABLES["quotas"]]) == []
    row = pa.Table.from_pylist([{**QUOTA, "mode": "off"}], schema=arrow_schema(QuotaRow))
    with pytest.raises(DeltaError, match="failed validation check"):
        write_deltalake(uri, row, mode="append")


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
    assert ("error", str(refused.value)) in changes_of_others(table_uri(root, name), TABLES[name])
    with pytest.raises(TableOfAnotherBuild, match=r"Fix: start over: .*demo --fresh, or make run FRESH=1"):
        make_tables(Settings(tables=TablesSettings(root=root)))


def test_the_fields_of_every_table_are_published() -> None:
    told = "add it to MODELS of schemas/asyncapi.py, then run python -m schemas.asyncapi"
    assert {name: one.model for name, one in TABLES.items() if MODELS.get(name) is not one.model} == {}, told


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_has_the_columns_of_its_model_and_the_plain_protocol(tmp_path: Path, name: str) -> None:
    table = DeltaTable(new_table(tmp_path, name))
    protocol = table.protocol()
    assert table.to_pyarrow_table().schema.names == arrow_schema(TABLES[name].model).names
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 3 if name in EDITED else 2)
    assert table.metadata().partition_columns == ([] if name in {*EDITED, "rates"} else ["date"])


QUOTA = {"user": "alice", "client_id": "", "producer_byte_rate": 1.0, "mode": "enforce"}
TENANT = {"tenant": "a", "user_patterns": ["a-*"], "client_id_patterns": [], "lend": False, "mode": "enforce"}
BROKEN: list[tuple[str, dict[str, object]]] = [
    ("quotas", {"producer_byte_rate": 0.0}),
    ("quotas", {"consumer_byte_rate": -1.0}),
    ("quotas", {"request_percentage": float("nan")}),
    ("quotas", {"request_percentage": float("inf")}),
    ("quotas", {"mode": "off"}),
    ("quotas", {"user": "", "client_id": ""}),
    ("tenants", {"tenant": ""}),
    ("tenants", {"producer_byte_rate": 0.0}),
    ("tenants", {"member_request_percentage": float("nan")}),
    ("tenants", {"ceiling": 0.9}),
    ("tenants", {"mode": "exempt"}),
]
VALID: list[tuple[str, dict[str, object]]] = [
    ("quotas", {"producer_byte_rate": None, "mode": "exempt"}),
    ("quotas", {"producer_byte_rate": float(2**63 - 1)}),
    ("quotas", {"request_percentage": 1e-300}),
    ("quotas", {"user": "", "client_id": "<default>", "mode": "shadow"}),
    ("tenants", {"member_consumer_byte_rate": 1e-300, "mode": "shadow"}),
    ("tenants", {"lend": True, "ceiling": 1.0}),
]


@pytest.mark.parametrize("name", EDITED)
def test_the_table_refuses_an_impossible_row_and_takes_one_that_is_just_valid(name: str, tmp_path: Path) -> None:
    uri = new_table(tmp_path, name)
    schema, row = arrow_schema(TABLES[name].model), {"quotas": QUOTA, "tenants": TENANT}[name]

    def append(values: dict[str, object]) -> None:
        write_deltalake(uri, pa.Table.from_pylist([row | values], schema=schema), mode="append")

    for values in (values for table, values in BROKEN if table == name):
        with pytest.raises(DeltaError, match="failed validation check"):
            append(values)
    valid = [values for table, values in VALID if table == name]
    for values in valid:
        append(values)
    assert DeltaTable(uri).count() == len(valid)


def test_a_table_in_a_store_has_more_checkpoints(store: ObjectStore, tmp_path: Path) -> None:
    for root, interval in ((str(tmp_path), "50"), (store.address("layout"), "10")):
        configuration = open_table(new_table(root, "usage")).metadata().configuration
        assert configuration["delta.checkpointInterval"] == interval


def test_tables_belong_to_the_first_job_that_starts_on_them(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert owner_of(root) is None, "there is no table"
    new_table(root, "batches")
    assert owner_of(root) is None
    claim_tables(root, "first")
    claim_tables(root, "first")
    with pytest.raises(Conflict, match=r"belong to job 'first', not to 'second'.*--job first") as refused:
        claim_tables(root, "second")
    assert refused.value.exit_code == 4
    assert owner_of(root) == "first"


@pytest.mark.parametrize(
    ("root", "schema", "refused"),
    [
        *(
            ("s3://lake", schema, "is not a name, nor a catalog and")
            for schema in ("", "a.b.c", "a b", "a;b", "1a", "a.")
        ),
        *((root, "kquota", "cannot be used in SQL") for root in ("s3://it's", "/a`b", "/a\\b", "/a${b}")),
    ],
)
def test_a_schema_or_a_root_that_would_not_be_one_in_sql_is_refused(root: str, schema: str, refused: str) -> None:
    with pytest.raises(UsageError, match=refused):
        view_sql(VIEWS, root, schema)


def test_the_command_prints_the_file_for_the_tables_of_the_settings() -> None:
    assert f"LOCATION '{Path.cwd()}/here/usage'" in view_sql(VIEWS, "here", "kquota"), "a folder is a whole path"
    for file, flags in ((VIEWS, ()), (QUOTA_HISTORY, ("--quota-history",))):
        printed = kquota("tables", "views", "--tables", "s3://lake/kquota", "--schema", "main.kquota", *flags)
        assert (printed.exit_code, printed.stdout) == (0, view_sql(file, "s3://lake/kquota", "main.kquota"))
        assert "${" not in printed.stdout
        assert "USE main.kquota;" in printed.stdout
        assert "s3://lake/kquota/quotas" in printed.stdout
    refused = kquota("tables", "views", "--schema", "a-b")
    assert (refused.exit_code, "--schema a-b is not a name" in refused.stderr) == (2, True)
