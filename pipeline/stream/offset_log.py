"""Which offsets a micro-batch covers, read from the query's offset log in the checkpoint.

Spark writes `offsets/<batch id>` before it calls `foreachBatch`. So the entry exists, and is the same each time the
batch is run. The file has a version line, a metadata line and one line per source.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # `kquota doctor` reads offsets where no pyspark is installed
    from pyspark.sql import SparkSession

_FIRST_SOURCE_LINE: Final = 2


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a batch by topic and partition, as JSON. `start` is "" for the first batch of a checkpoint."""

    start: str
    end: str

    @property
    def message_count(self) -> int | None:
        """How many offsets the batch covers; None for the first batch of a checkpoint, whose start is not recorded."""
        if not self.start:
            return None
        before, after = json.loads(self.start), json.loads(self.end or "{}")
        return sum(
            int(end) - int(before.get(topic, {}).get(partition, 0))
            for topic, partitions in after.items()
            for partition, end in partitions.items()
        )


def source_line(text: str) -> str:
    """The offsets in an entry of the log, as JSON; "" if the entry has none."""
    return next((line for line in text.splitlines()[_FIRST_SOURCE_LINE:] if "{" in line), "")


class OffsetLog:
    """Reads the offset log of one checkpoint, on a local disk or on any of Hadoop's file systems."""

    def __init__(self, spark: "SparkSession", checkpoint: str) -> None:
        self._spark = spark
        self._folder = f"{checkpoint.rstrip('/')}/offsets"

    def range_of(self, batch_id: int) -> OffsetRange:
        """Offsets of a batch that has begun."""
        return OffsetRange(self._source_line(batch_id - 1) if batch_id else "", self._source_line(batch_id))

    def _source_line(self, batch_id: int) -> str:
        return source_line(self._text(f"{self._folder}/{batch_id}"))

    def _text(self, path: str) -> str:
        if "://" not in path:
            file = Path(path)
            return file.read_text(encoding="utf-8") if file.exists() else ""
        jvm: Any = self._spark._jvm
        hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
        file_system = hadoop_path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        if not file_system.exists(hadoop_path):
            return ""
        stream = file_system.open(hadoop_path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
