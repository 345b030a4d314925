"""A writer that tells when it has written, for metrics."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from pipeline.tables.port import Condition, Instant, TableWriter


class NotedWriter:
    """A `TableWriter` that calls a function after each commit with rows.

    Args:
        writer: Does the work.
        noted: Must be quick and must not raise.
    """

    def __init__(self, writer: TableWriter, noted: Callable[[], None]) -> None:
        self._writer = writer
        self._noted = noted

    @property
    def version(self) -> int:
        """See `TableWriter`; so all others."""
        return self._writer.version

    def raise_epoch(self, epoch: int) -> None:  # noqa: D102
        self._writer.raise_epoch(epoch)

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:  # noqa: D102
        has_written = self._writer.append(rows, versions, metadata)
        if has_written and rows.num_rows:
            self._noted()
        return has_written

    def is_fenced(self) -> bool:  # noqa: D102
        return self._writer.is_fenced()

    def recorded_version(self, app_id: str) -> int | None:  # noqa: D102
        return self._writer.recorded_version(app_id)

    def commit_metadata(self, limit: int) -> list[dict[str, str]]:  # noqa: D102
        return self._writer.commit_metadata(limit)

    def read(self, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:  # noqa: D102
        return self._writer.read(columns, where)

    def newest_value(self, column: str) -> int | None:  # noqa: D102
        return self._writer.newest_value(column)

    def newest_instant(self) -> Instant | None:  # noqa: D102
        return self._writer.newest_instant()

    def newest_of_each(  # noqa: D102
        self, keys: Sequence[str], order: str, columns: Sequence[str], where: Sequence[Condition] = ()
    ) -> pa.Table:
        return self._writer.newest_of_each(keys, order, columns, where)
