"""Which offsets a micro-batch covers, read from the query's offset log in the checkpoint.

Spark writes `offsets/<batch id>` before it calls `foreachBatch`. So the entry exists, and is the same each time the
batch is run. The file has a version line, a metadata line and one line per source.
"""

import json
from dataclasses import dataclass
from typing import Final

from pipeline.stream.checkpoint_files import CheckpointFiles

_FIRST_SOURCE_LINE: Final = 2


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a batch by topic and partition, as JSON. `start` is "" for the first batch of a checkpoint."""

    start: str
    end: str

    @property
    def message_count(self) -> int | None:
        """The number of offsets of the batch; None for the first batch of a checkpoint, whose start is not recorded."""
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
    """Reads the offset log of one checkpoint."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    def range_of(self, batch_id: int) -> OffsetRange:
        """Offsets of a batch that has begun."""
        return OffsetRange(self._source_line(batch_id - 1) if batch_id else "", self._source_line(batch_id))

    def _source_line(self, batch_id: int) -> str:
        return source_line(self._files.text(f"offsets/{batch_id}") or "")
