"""What Spark needs for a checkpoint in an object store: settings, and an optional set of jars.

With a local checkpoint it needs none of this, wherever the tables are: delta-rs reads and writes those.
"""

from typing import Final

from pipeline.settings.model import Settings, SparkSettings
from pipeline.store.access import S3_SCHEMES, hadoop_settings, scheme_of

_S3_JARS: Final = "s3"
# Of the jars of that set: it writes a file of the checkpoint in one put. Spark's other managers write a file under
# another name and rename it, which a store does by a copy.
_CHECKPOINT_MANAGER: Final = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


def jar_sets(settings: Settings) -> tuple[str, ...]:
    """The optional sets of jars that Spark needs."""
    return (_S3_JARS,) if _is_checkpoint_in_s3(settings) else ()


def with_store(settings: Settings) -> SparkSettings:
    """The settings of Spark, with what it needs to reach the store. The operator's own entries stay as they are."""
    if not _is_checkpoint_in_s3(settings):
        return settings.spark
    entries = hadoop_settings(settings.store)
    entries["spark.sql.streaming.checkpointFileManagerClass"] = _CHECKPOINT_MANAGER
    return settings.spark.with_default_conf(entries)


def _is_checkpoint_in_s3(settings: Settings) -> bool:
    return scheme_of(settings.stream.checkpoint) in S3_SCHEMES
