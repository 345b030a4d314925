"""What Spark needs for a checkpoint in a store."""

import pytest
from pydantic import SecretStr

from pipeline.settings.model import Settings, SparkSettings, StoreSettings, StreamSettings, TablesSettings
from pipeline.stream.session import jar_sets, with_store

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
ENDPOINT = "spark.hadoop.fs.s3a.endpoint"


def settings(root: str, checkpoint: str = ".kquota/checkpoint", **conf: str) -> Settings:
    return Settings(
        store=StoreSettings(endpoint="http://store:9000"),
        tables=TablesSettings(root=root),
        stream=StreamSettings(checkpoint=checkpoint),
        spark=SparkSettings(conf={key: SecretStr(value) for key, value in conf.items()}),
    )


@pytest.mark.parametrize(
    ("found", "sets"),
    [
        (settings(".kquota/tables"), ()),
        (settings("s3://b/tables"), ()),
        (settings(".kquota/tables", "s3a://b/checkpoint"), ("s3",)),
        (settings("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/c"), ()),
    ],
)
def test_the_jars_for_s3_are_needed_only_for_a_checkpoint_there(found: Settings, sets: tuple[str, ...]) -> None:
    assert jar_sets(found) == sets
    assert (ENDPOINT in with_store(found).plain_conf()) is bool(sets)


def test_a_checkpoint_in_the_store_gets_the_manager_that_writes_in_one_put() -> None:
    stored = with_store(settings("s3://b/tables", "s3://b/checkpoint")).plain_conf()
    assert stored[MANAGER].endswith(".AbortableStreamBasedCheckpointFileManager")
    assert MANAGER not in with_store(settings("s3://b/tables")).plain_conf()


def test_an_entry_of_the_operator_stays() -> None:
    own = settings(".kquota/tables", "s3://b/checkpoint", **{ENDPOINT: "https://other", MANAGER: "a.Manager"})
    conf = with_store(own).plain_conf()
    assert (conf[ENDPOINT], conf[MANAGER]) == ("https://other", "a.Manager")
