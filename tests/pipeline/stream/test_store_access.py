"""When Spark itself reaches a store, and what it needs for that."""

import pytest
from pydantic import SecretStr

from pipeline.settings.model import Settings, SparkSettings, StreamSettings, TablesSettings
from pipeline.settings.store import StoreSettings
from pipeline.stream.spark.store_access import jar_sets, with_store

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
ENDPOINT = "spark.hadoop.fs.s3a.endpoint"


def settings(root: str, checkpoint: str = ".kquota/checkpoint", writer: str = "delta-rs", **conf: str) -> Settings:
    return Settings(
        store=StoreSettings(endpoint="http://store:9000"),
        tables=TablesSettings.model_validate({"root": root, "writer": writer}),
        stream=StreamSettings(checkpoint=checkpoint),
        spark=SparkSettings(conf={key: SecretStr(value) for key, value in conf.items()}),
    )


@pytest.mark.parametrize(
    ("found", "sets"),
    [
        (settings(".kquota/tables"), ()),
        (settings("s3://b/tables"), ()),
        (settings("s3://b/tables", writer="delta-spark"), ("s3",)),
        (settings(".kquota/tables", "s3a://b/checkpoint"), ("s3",)),
        (settings("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/c"), ()),
    ],
)
def test_the_jars_for_s3_are_needed_only_where_spark_itself_reads_or_writes_there(
    found: Settings, sets: tuple[str, ...]
) -> None:
    assert jar_sets(found) == sets
    assert (ENDPOINT in with_store(found).plain_conf()) is bool(sets)


def test_sql_reads_and_writes_the_tables_by_spark_whatever_their_writer_is() -> None:
    assert jar_sets(settings("s3://b/tables"), reads_tables=True) == ("s3",)
    assert with_store(settings("s3://b/tables"), reads_tables=True).plain_conf()[ENDPOINT] == "http://store:9000"


def test_only_a_checkpoint_in_the_store_gets_the_manager_that_writes_in_one_put() -> None:
    stored = with_store(settings("s3://b/tables", "s3://b/checkpoint")).plain_conf()
    assert stored[MANAGER].endswith(".AbortableStreamBasedCheckpointFileManager")
    assert MANAGER not in with_store(settings("s3://b/tables", writer="delta-spark")).plain_conf()


def test_an_entry_of_the_operator_stays() -> None:
    own = settings(".kquota/tables", "s3://b/checkpoint", **{ENDPOINT: "https://other", MANAGER: "a.Manager"})
    conf = with_store(own).plain_conf()
    assert (conf[ENDPOINT], conf[MANAGER]) == ("https://other", "a.Manager")
