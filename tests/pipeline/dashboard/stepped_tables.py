"""Tables of a job whose clocks, and those of its brokers, were ahead for a time and were then set back.

The rows of each time epoch are those of a job of its own, which knows nothing of the other one. So whatever is shown
as now must be what the tables of the second job alone show.
"""

import shutil
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import write_deltalake

from pipeline.tables.port import Condition, table_uri
from pipeline.tables.queries import read_table
from tests.pipeline.dashboard.lived_tables import LivedTables, Sender
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS

STEPS_MS: Final = (20_000, 3_600_000)
"""By how much the clocks were ahead: less than a minute, and for long."""
NORMAL_SECONDS: Final = 15
"""How long before the clocks were ahead, and then how long they were."""
GHOST: Final = Sender("ghost", "gone", lambda second: {"produced_bytes": 900_000 if 15 <= second < 18 else 0})
"""A client that used something only while the clocks were ahead, and that was released before they were set back."""
_WITH_EPOCHS: Final = ("usage", "batches", "decisions", "throttle_events", "sensor_state")


class SteppedTables:
    """Time passes in `live`.

    Args:
        folder: For the tables.
        step_ms: By how much the clocks were ahead.
    """

    def __init__(self, folder: Path, step_ms: int) -> None:
        self.step_ms = step_ms
        self.old = LivedTables(folder / "stepped", QUOTAS, [*SENDERS, GHOST], START_MS, at_once=True)
        self.old.live(NORMAL_SECONDS)
        self.old.job.clock.set_wall(self.old.now_ms + step_ms)
        self.old.live(NORMAL_SECONDS)
        self.root = self.old.root
        self.ahead_until_ms = self.old.now_ms
        """What the clocks showed when they were set back."""
        self.alone = LivedTables(folder / "alone", QUOTAS, SENDERS, self.old.now_ms - step_ms, at_once=True)
        """The job of the second time epoch, and its tables."""
        self.alone.job.spark.query_id = "after"
        self._first_seq = 1 + max(self._rows("throttle_events", self.root)["publish_seq"].to_pylist())
        self._copied = -1

    @property
    def now_ms(self) -> int:
        """The wall clock, which is right now."""
        return self.alone.now_ms

    def live(self, seconds: int) -> None:
        """Let seconds of the new epoch pass."""
        self.alone.live(seconds)
        last = max(self._rows("batches", self.alone.root)["batch_id"].to_pylist())
        for name in _WITH_EPOCHS:
            new: list[Condition] = [("batch_id", ">", self._copied), ("batch_id", "<=", last)]
            rows = self._rows(name, self.alone.root, new)
            write_deltalake(table_uri(self.root, name), self._of_second_epoch(rows), mode="append")
        # Of the rates there is only the newest.
        shutil.rmtree(table_uri(self.root, "rates"), ignore_errors=True)
        shutil.copytree(table_uri(self.alone.root, "rates"), table_uri(self.root, "rates"))
        self._copied = last

    def roll_up(self) -> None:
        """Write the roll-ups as far as they are complete."""
        self.old.roll_up()

    def _of_second_epoch(self, rows: pa.Table) -> pa.Table:
        columns = {"time_epoch": pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)}
        if "publish_seq" in rows.column_names:
            numbers = [seq + self._first_seq for seq in rows["publish_seq"].to_pylist()]
            columns["publish_seq"] = pa.array(numbers, pa.int64())
        for name, values in columns.items():
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
        return rows

    def _rows(self, name: str, root: str, where: list[Condition] | None = None) -> Any:
        return read_table(table_uri(root, name), None, where or [])
