"""Counts the messages refused lately, by the rows of `batches`: `dead_letters` has a row only for some of them."""

from typing import Final

from pipeline.dashboard.reader import TablesReader
from pipeline.errors import PipelineError

_Batch = tuple[str, int]
_COLUMNS: Final = ("query_id", "batch_id", "processed_at_ms", "dead_count")


class RecentDeadLetters:
    """Counts over the last span. For one thread.

    Args:
        reader: It has looked before each `count`.
        span_ms: How far back.
    """

    def __init__(self, reader: TablesReader, span_ms: int) -> None:
        self._reader = reader
        self._span_ms = span_ms
        self._refused: dict[_Batch, tuple[int, int]] = {}
        self._has_looked_back = False

    def count(self, now_ms: int) -> int:
        """Elements and messages that were refused from `now_ms - span_ms` on."""
        rows = self._reader.batches
        if not self._has_looked_back:
            # The reader begins with the last minutes; what was refused while nobody looked counts, too.
            try:
                begin = ("processed_at_ms", ">=", now_ms - self._span_ms)
                rows = self._reader.tables["batches"].rows(_COLUMNS, [begin])
                self._has_looked_back = True
            except PipelineError:
                return 0
        of_rows = {(row["query_id"], row["batch_id"]): row for row in rows if row["dead_count"]}
        for key in of_rows.keys() - self._refused.keys():
            self._refused[key] = of_rows[key]["processed_at_ms"], of_rows[key]["dead_count"]
        begin_ms = now_ms - self._span_ms
        # None was refused after now: a clock that was ahead would make it recent until that time has come.
        refused = {key: (min(at_ms, now_ms), count) for key, (at_ms, count) in self._refused.items()}
        self._refused = {key: one for key, one in refused.items() if one[0] >= begin_ms or key in of_rows}
        return sum(count for at_ms, count in self._refused.values() if at_ms >= begin_ms)
