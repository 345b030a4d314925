"""Whether Spark's checkpoint belongs to the job's tables.

A checkpoint of another job, an old copy of a checkpoint, or tables restored to an earlier day: with any of these Spark
would skip usage or count it twice, without any message. The tables record which query wrote them and up to which
batch. So the two are compared before a query starts. Without a checkpoint there is nothing to compare: the job begins
where its tables end.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from pipeline.stream.checkpoint_files import CheckpointFiles
from pipeline.stream.errors import CheckpointUnfit
from pipeline.stream.offset_log import source_line

RecordedBatch = Callable[[str], int | None]
"""The newest batch in the tables of the query with this id; None if they have none of it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a checkpoint.

    Attributes:
        files: Its files.
        query_id: The query it belongs to.
        planned: Newest batch in the offset log; -1 for none.
        committed: Newest batch in the commit log; -1 for none.
    """

    files: CheckpointFiles
    query_id: str
    planned: int
    committed: int

    @classmethod
    def read(cls, files: CheckpointFiles) -> Self | None:
        """Read a checkpoint; None if there is none.

        Raises:
            CheckpointUnreadable: Its file system does not answer.
        """
        metadata = files.text("metadata")
        if metadata is None:
            return None
        query_id = json.loads(metadata)["id"]
        return cls(files, query_id, _newest(files.names("offsets")), _newest(files.names("commits")))

    def next_offsets(self) -> dict[str, dict[str, int]]:
        """Where the next batch begins, or the batch to be repeated.

        Returns:
            Topic to partition to offset; empty if the query has not completed a batch.
        """
        last = min(self.planned, self.committed)
        line = source_line(self.files.text(f"offsets/{last}") or "")
        offsets: dict[str, dict[str, int]] = json.loads(line) if line else {}
        return offsets

    def check(self, recorded: RecordedBatch, newest_query_id: str | None) -> None:
        """Compare the checkpoint with the tables.

        Args:
            recorded: Looks a query up in the table `batches`.
            newest_query_id: The query that wrote the newest batch; None for tables without batches.

        Raises:
            CheckpointUnfit: The checkpoint belongs to another job, or is older or newer than the tables.
        """
        if self.planned < 0:
            return
        batch_id = recorded(self.query_id)
        wanted_and_got = None
        if batch_id is None:
            if self.committed >= 0:
                wanted_and_got = "have written these tables; got that of a query that has not"
        elif self.query_id != newest_query_id:
            wanted_and_got = "be the newest of these tables; got that of an earlier query"
        elif batch_id > self.planned:
            wanted_and_got = f"reach to batch {batch_id}, as the tables do; got one that ends at {self.planned}"
        elif batch_id < self.committed:
            wanted_and_got = f"end with the tables, at batch {batch_id}; got one that has committed {self.committed}"
        if wanted_and_got is not None:
            raise CheckpointUnfit(self.files.checkpoint, wanted_and_got)


def _newest(names: Iterable[str]) -> int:
    return max((int(name) for name in names if name.isdecimal()), default=-1)
