"""What Spark needs where it reads or writes an object store itself: settings, and an optional set of jars.

It does so for a checkpoint in a store, for tables that the writer delta-spark writes, and for SQL on the quota table.
With a local checkpoint and the writer delta-rs it needs none of this, whatever the tables' root is.
"""

from typing import Final

from pipeline.settings.model import Settings, SparkSettings
from pipeline.store.access import S3_SCHEMES, hadoop_settings, scheme_of

_S3_JARS: Final = "s3"
# Of the jars of that set: it writes a file of the checkpoint in one put. Spark's other managers write a file under
# another name and rename it, which a store does by a copy.
_CHECKPOINT_MANAGER: Final = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


def jar_sets(settings: Settings, *, reads_tables: bool = False) -> tuple[str, ...]:
    """The optional sets of jars that Spark needs.

    Args:
        settings: The whole tree.
        reads_tables: Spark reads or writes tables, whatever writer the settings name.
    """
    return (_S3_JARS,) if _reaches_s3(settings, reads_tables) else ()


def with_store(settings: Settings, *, reads_tables: bool = False) -> SparkSettings:
    """The settings of Spark, with what it needs to reach the store. The operator's own entries stay as they are.

    Args:
        settings: The whole tree.
        reads_tables: As above.
    """
    if not _reaches_s3(settings, reads_tables):
        return settings.spark
    entries = hadoop_settings(settings.store)
    if scheme_of(settings.stream.checkpoint) in S3_SCHEMES:
        entries["spark.sql.streaming.checkpointFileManagerClass"] = _CHECKPOINT_MANAGER
    return settings.spark.with_default_conf(entries)


def _reaches_s3(settings: Settings, reads_tables: bool) -> bool:
    tables = settings.tables
    by_spark = [settings.stream.checkpoint]
    by_spark += [tables.root] if reads_tables or tables.writer == "delta-spark" else []
    return any(scheme_of(address) in S3_SCHEMES for address in by_spark)
