"""Sums over the roll-ups by minute, made by delta-rs' own engine: a month of minutes is never in memory."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from arro3.core import Array, Table
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.address import table_uri
from pipeline.tables.opening import newest_in, oldest_in, open_table
from pipeline.tables.reading import run

Client = tuple[str, str]
"""User and client-id."""

MINUTE_MS: Final = 60_000
MEASURES: Final[Mapping[str, str]] = {
    "producer_byte_rate": "sum(produced_bytes) / 60.0",
    "consumer_byte_rate": "sum(fetched_bytes) / 60.0",
    # Percent of one thread: a nanosecond of a second is 1e-7 %.
    "request_percentage": "(coalesce(sum(io_time_ns), 0) + coalesce(sum(network_time_ns), 0)) * 1e-7 / 60.0",
}
"""Quota type -> the rate of a minute, per second; null for a minute in which nothing of that type was used."""

_TIME: Final = "minute_start_ms"
_MEASURED: Final = "io_time_ns IS NOT NULL OR network_time_ns IS NOT NULL"
_TOUCHED: Final = {
    "producer_byte_rate": "produced_bytes IS NOT NULL",
    "consumer_byte_rate": "fetched_bytes IS NOT NULL",
    "request_percentage": _MEASURED,
}


class Minutes:
    """One of the roll-ups by minute, at its newest version.

    A row belongs to a range if its minute begins in it: `start_ms` is inclusive, `end_ms` exclusive.
    """

    def __init__(self, root: str, name: str) -> None:
        self._table = open_table(table_uri(root, name))

    def span(self) -> tuple[int, int] | None:
        """Begin of the first minute and end of the last one; None without rows. No data file is opened."""
        first_ms, last_ms = oldest_in(self._table, _TIME), newest_in(self._table, _TIME)
        return None if first_ms is None or last_ms is None else (first_ms, last_ms + MINUTE_MS)

    def used_by_client(self, start_ms: int, end_ms: int) -> pa.Table:
        """What each client used: user, client_id, bytes, request time and requests; a sum of nothing is 0."""
        return self._run(
            'SELECT "user", client_id, coalesce(sum(produced_bytes), 0) AS produced_bytes, '
            "coalesce(sum(fetched_bytes), 0) AS fetched_bytes, "
            "coalesce(sum(io_time_ns), 0) + coalesce(sum(network_time_ns), 0) AS request_time_ns, "
            "coalesce(sum(exempt_time_ns), 0) AS exempt_time_ns, sum(request_count) AS request_count "
            f'FROM source WHERE {_in(start_ms, end_ms)} GROUP BY "user", client_id'
        )

    def held_by_client(self, start_ms: int, end_ms: int) -> pa.Table:
        """How each client was held: user, client_id, the last owner, minutes with any time held, time, counts."""
        by_minute = (
            'SELECT minute_start_ms, "user", client_id, max(owner) AS owner, sum(held_ms) AS held_ms, '
            "sum(throttle_count) AS throttle_count, sum(renewal_count) AS renewal_count "
            f'FROM source WHERE {_in(start_ms, end_ms)} GROUP BY minute_start_ms, "user", client_id'
        )
        return self._run(
            'SELECT "user", client_id, last_value(owner ORDER BY minute_start_ms) AS owner, '
            "sum(CASE WHEN held_ms > 0 THEN 1 ELSE 0 END) AS minutes, sum(held_ms) AS held_ms, "
            "sum(throttle_count) AS throttle_count, sum(renewal_count) AS renewal_count "
            f'FROM ({by_minute}) GROUP BY "user", client_id'
        )

    def over_time(self, columns: Iterable[str], start_ms: int, part_ms: int, end_ms: int) -> dict[int, list[int]]:
        """The sums of some columns in each part of a range that has a row, by the number of the part."""
        sums = ", ".join(f"coalesce(sum({name}), 0) AS {name}_sum" for name in columns)
        found = self._run(
            f"SELECT (minute_start_ms - {int(start_ms)}) / {int(part_ms)} AS part, {sums} "
            f"FROM source WHERE {_in(start_ms, end_ms)} GROUP BY 1"
        )
        rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
        return {part: list(figures) for part, *figures in rows}

    def clients(self, start_ms: int, end_ms: int) -> pa.Table:
        """The clients that have rows in a range: user, client_id."""
        return self._run(f'SELECT DISTINCT "user", client_id FROM source WHERE {_in(start_ms, end_ms)}')

    def rates(
        self, quota_type: str, sensors: Mapping[Client, int], start_ms: int, end_ms: int, *, per_broker: bool
    ) -> pa.Table:
        """The rates of sensors, minute by minute, over the minutes in which each was used.

        * `sensors`: Client -> number of the sensor it goes to. Other clients are left out.
        * `per_broker`: A rate is that at one broker, and each sensor has a row for each broker.

        Returns:
            sensor, `p95`, `p99` and `most` per second, and `minutes`; sensors that were not used are left out.
        """
        keys = "sensor, broker_id" if per_broker else "sensor"
        rates = (
            f"SELECT minute_start_ms, {keys}, {MEASURES[quota_type]} AS rate FROM source "
            'JOIN sensors ON source."user" = sensors.sensor_of_user AND source.client_id = sensors.sensor_of_client_id '
            f"WHERE {_in(start_ms, end_ms)} AND ({_TOUCHED[quota_type]}) GROUP BY minute_start_ms, {keys}"
        )
        with TemporaryDirectory() as folder:
            # The engine joins Delta tables only.
            write_deltalake(folder, _table_of(sensors))
            return self._run(
                "SELECT sensor, percentile_cont(0.95) WITHIN GROUP (ORDER BY rate) AS p95, "
                "percentile_cont(0.99) WITHIN GROUP (ORDER BY rate) AS p99, max(rate) AS most, count(*) AS minutes "
                f"FROM ({rates}) GROUP BY {keys}",
                {"sensors": DeltaTable(Path(folder))},
            )

    def _run(self, sql: str, others: Mapping[str, DeltaTable] | None = None) -> pa.Table:
        return run(self._table, sql, others or {})


def _table_of(sensors: Mapping[Client, int]) -> Table:
    # Not by pyarrow: it imports pandas to check whether a list is a series, which takes 0.2 s.
    columns: dict[str, Any] = {
        "sensor_of_user": Array([user for user, _ in sensors], pa.string()),
        "sensor_of_client_id": Array([client_id for _, client_id in sensors], pa.string()),
        "sensor": Array(list(sensors.values()), pa.int64()),
    }
    return Table.from_pydict(columns)


def _in(start_ms: int, end_ms: int) -> str:
    first, last = (datetime.fromtimestamp(ms / 1000, UTC).date().isoformat() for ms in (start_ms, end_ms))
    days = f"date >= DATE '{first}' AND date <= DATE '{last}'"
    return f"{days} AND minute_start_ms >= {int(start_ms)} AND minute_start_ms < {int(end_ms)}"
