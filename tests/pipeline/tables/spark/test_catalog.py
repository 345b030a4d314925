"""Tables in Spark's own catalog: created, found again, read and kept up through Spark, by their names."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.errors import Conflict, TableMissing, UsageError
from pipeline.settings.model import Settings, TablesSettings
from pipeline.settings.places import CatalogRoot
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.from_settings import claim_tables, open_catalog, open_quota_versions, open_upkeep, owner_of
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.tables.reading import DeltaRsReader
from pipeline.tables.throttle_by_minute import ThrottleByMinute
from pipeline.tables.usage_roll_ups import UsageByMinute, UsageBySecond
from quota.entity import Owners
from schemas.arrow import arrow_schema, conform
from schemas.usage import UsageRow
from tests.fakes.table import MemoryTable, MemoryWriter
from tests.pages.blocks import ROOT, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.tables.port import RolledTable

pytestmark = pytest.mark.spark

PAGE = ROOT / "docs" / "catalog-tables.md"
AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.2.0", reason="#42")
MINUTE_MS = 60_000
T0_MS = 1_700_000_040_000
HOT = {"delta.logRetentionDuration": ({"interval 3 minutes"}, "interval 6 hours")}
"""Delta-Spark takes no log that is kept for less long than replaced files."""


@pytest.fixture
def tables(spark: "SparkSession", tmp_path: Path) -> TablesSettings:
    """Settings of a schema of its own; no table is there."""
    schema = re.sub(r"\W", "_", f"{tmp_path.parent.name}_{tmp_path.name}")
    values = {"root": f"catalog:spark_catalog.{schema}", "location": str(tmp_path / "t"), "writer": "delta-spark"}
    return Settings.model_validate({"tables": values}).tables


def root_of(tables: TablesSettings) -> CatalogRoot:
    assert isinstance(tables.root, CatalogRoot)
    return tables.root


def forget(spark: "SparkSession", root: CatalogRoot) -> None:
    """What the end of a session does to a catalog in memory: names are gone, files stay."""
    for name in TABLES:
        spark.sql(f"DROP TABLE IF EXISTS {root.table(name).sql_name}")
    spark.sql(f"DROP SCHEMA {root.sql_schema}")


def stored(folder: str, name: str) -> dict[str, Any]:
    table = DeltaTable(f"{folder}/{name}")
    metadata, protocol = table.metadata(), table.protocol()
    return {
        "schema": json.loads(table.schema().to_json()),
        "partition": metadata.partition_columns,
        "description": metadata.description,
        "protocol": (protocol.min_reader_version, protocol.min_writer_version),
        # Both engines write the rules of constraints in a form of their own.
        "properties": {
            key: None if key.startswith("delta.constraints.") else value
            for key, value in metadata.configuration.items()
        },
    }


@pytest.mark.long
def test_spark_creates_what_delta_rs_creates_and_finds_it_again(
    spark: "SparkSession", tables: TablesSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, other = root_of(tables), str(tmp_path / "other")
    with caplog.at_level("INFO"):
        open_catalog(tables)
    assert f"lie under {tables.location}" in caplog.text
    create_missing(other)
    for name in TABLES:
        wanted, found = stored(other, name), stored(str(tables.location), name)
        for key, (by_delta_rs, by_spark) in HOT.items():
            if wanted["properties"][key] in by_delta_rs:
                wanted["properties"][key] = by_spark
        assert found == wanted, name
    claim_tables(tables, "first")
    spark.sql(f"INSERT INTO {root.table('quotas').sql_name} VALUES ('a', '', 1, null, null, 'enforce', null, null)")  # noqa: S608
    forget(spark, root)
    with pytest.raises(TableMissing, match=rf"no Delta table at {root}.quotas"):
        open_quota_versions(tables)
    versions = [DeltaTable(f"{tables.location}/{name}").version() for name in TABLES]
    open_catalog(tables)
    assert [DeltaTable(f"{tables.location}/{name}").version() for name in TABLES] == versions
    assert [row["user"] for row in open_quota_versions(tables).read().rows] == ["a"]
    with pytest.raises(Conflict):
        claim_tables(tables, "second")


def test_tables_of_delta_rs_are_registered_as_and_where_they_are(tables: TablesSettings) -> None:
    create_missing(str(tables.location))
    before = {name: stored(str(tables.location), name) for name in TABLES}
    open_catalog(tables)
    assert {name: stored(str(tables.location), name) for name in TABLES} == before
    claim_tables(tables, "first")
    assert owner_of(str(tables.location)) == "first"
    moved = tables.model_copy(update={"root": CatalogRoot(str(tables.root), f"{tables.location}-2")})
    with pytest.raises(UsageError, match=r"quotas lies at .*/t/quotas, not at .*-2/quotas, where 'tables.location'"):
        open_catalog(moved)


@pytest.mark.long
def test_quotas_are_read_as_they_were_at_a_version_whoever_wrote_them(
    spark: "SparkSession", tables: TablesSettings
) -> None:
    create_missing(str(tables.location))
    open_catalog(tables)
    quotas, by_address = open_quota_versions(tables), QuotaTable(tables.root)
    name = root_of(tables).table("quotas").sql_name
    first = quotas.version()
    by_address.alter([QuotaChange("alice", "", {"producer_byte_rate": 5.0})], AUDIT)
    by_address.set_mode("shadow", AUDIT)
    spark.sql(f"UPDATE {name} SET producer_byte_rate = 7 WHERE user = 'alice'")  # noqa: S608
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('kquota.mode' = 'enforce')")
    newest = quotas.version()
    assert newest > first
    for version in range(first, newest + 1):
        assert quotas.read(version) == by_address.read(version), version
    assert quotas.read() == quotas.read(newest)
    assert {quotas.read(version).mode for version in range(first, newest + 1)} == {"enforce", "shadow"}
    with pytest.raises(TableMissing, match=rf"no version {newest + 1} of .*: the newest is {newest}"):
        quotas.read(newest + 1)


@pytest.mark.long
def test_the_statements_of_the_page_edit_the_quotas(spark: "SparkSession", tables: TablesSettings) -> None:
    create_missing(str(tables.location))
    open_catalog(tables)
    source = QuotaSource(open_quota_versions(tables))
    (text,) = (block.text for block in blocks_of(PAGE.read_text(encoding="utf-8")) if block.language == "sql")
    bounds, modes = [], []
    for statement in text.replace("spark_catalog.kquota.quotas", root_of(tables).table("quotas").sql_name).split(";"):
        if statement.strip():
            spark.sql(statement).collect()
            source.poll()
            newest = open_quota_versions(tables).read()
            assert source.pin().version == newest.version
            bounds.append([row["producer_byte_rate"] for row in newest.rows])
            modes.append(newest.mode)
    assert bounds == [[1_000_000.0], [1_000_000.0], [], [], []]
    assert modes == ["enforce", "enforce", "enforce", "shadow", "shadow"]


def usage(batch_id: int, evaluated_at_ms: int, *samples: tuple[str, int, int]) -> pa.Table:
    """(client-id, start of the sample window, bytes)."""
    names, starts, sizes = zip(*samples, strict=True)
    columns = {"sample_start_ms": starts, "client_id": names, "produced_bytes": sizes, "last_event_ms": starts}
    same: dict[str, Any] = {"cluster": "c", "query_id": "q", "quota_version": 1, "request_count": 1, "user": "u"}
    rows = pa.table(columns)
    return conform(rows, UsageRow, batch_id=batch_id, evaluated_at_ms=evaluated_at_ms, broker_id="", **same)


def rolled(table: "RolledTable", name: str) -> list[dict[str, Any]]:
    """What a roll-up writes that reads through this adapter."""
    memory = MemoryTable(name, arrow_schema(TABLES[name].model).empty_table())
    writer = MemoryWriter(memory, "job")
    writer.raise_epoch(1)
    if name == "usage_by_second":
        UsageBySecond(table, writer, "job", 86_400_000).step()
    elif name == "usage_by_minute":
        UsageByMinute(table, writer, "job").step()
    else:
        ThrottleByMinute(table, writer, "job", lambda _: Owners(())).step()
    return sorted(memory.rows.to_pylist(), key=str)


@pytest.mark.long
def test_roll_ups_that_read_through_spark_write_what_those_through_delta_rs_write(
    spark: "SparkSession", tables: TablesSettings
) -> None:
    from pipeline.tables.delta_spark import DeltaSparkReader  # noqa: PLC0415 - loads pyspark

    create_missing(str(tables.location))
    open_catalog(tables)
    writer = DeltaRsWriter(f"{tables.location}/usage", "job")
    writer.raise_epoch(1)
    early, late = T0_MS + 5_000, T0_MS + 5 * MINUTE_MS
    writer.append(usage(0, early, ("a", T0_MS, 5), ("b", T0_MS + 1_000, 7)), {"q": 0}, {})
    writer.append(usage(1, late, ("a", late - 1_000, 9), ("a", T0_MS, 1)), {"q": 1}, {})
    # The last second of a minute and the first one of the next: no row is left out, and none is read twice.
    edges = (("a", T0_MS + MINUTE_MS - 1_000, 2), ("a", T0_MS + MINUTE_MS, 3), ("b", T0_MS + 2 * MINUTE_MS, 4))
    writer.append(usage(2, late, *edges), {"q": 2}, {})
    for name, least in (("usage_by_second", 2), ("usage_by_minute", 2)):
        by_spark = rolled(DeltaSparkReader(spark, root_of(tables).table("usage")), name)
        assert by_spark == rolled(DeltaRsReader(f"{tables.location}/usage"), name)
        assert len(by_spark) >= least, name


@pytest.mark.long
def test_upkeep_deletes_merges_and_cleans_by_name(spark: "SparkSession", tables: TablesSettings) -> None:
    from pipeline.tables.catalog import SparkUpkeep  # noqa: PLC0415 - loads pyspark

    create_missing(str(tables.location))
    open_catalog(tables)
    writer = DeltaRsWriter(f"{tables.location}/usage", "job")
    writer.raise_epoch(1)
    for batch_id in range(4):
        writer.append(usage(batch_id, T0_MS + batch_id, ("a", T0_MS, 5)), {"q": batch_id}, {})
    upkeep = open_upkeep(tables)
    assert upkeep.newest_value("usage", "evaluated_at_ms") == T0_MS + 3
    assert upkeep.trim("usage", "evaluated_at_ms", T0_MS + 2) == 2
    assert upkeep.trim("usage", "evaluated_at_ms", T0_MS + 2) == 0
    assert not upkeep.merge("usage")
    assert SparkUpkeep(spark, root_of(tables), many_files=1).merge("usage")
    upkeep.clean("usage", files=True)
    table = DeltaTable(f"{tables.location}/usage")
    assert len(table.file_uris()) == 1
    assert sorted(writer.read(["batch_id"])["batch_id"].to_pylist()) == [2, 3]
    assert writer.append(usage(4, T0_MS + 4, ("a", T0_MS, 5)), {"q": 4}, {})


def test_a_catalog_in_memory_without_a_location_is_refused(spark: "SparkSession", tables: TablesSettings) -> None:
    nowhere = tables.model_copy(update={"root": CatalogRoot(str(tables.root), None)})
    with pytest.raises(UsageError, match=r"keeps the catalog of catalog:spark_catalog\..* in memory"):
        open_catalog(nowhere)
