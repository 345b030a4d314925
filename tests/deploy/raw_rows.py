"""What the views must say, by plain Python over the raw rows that delta-rs reads."""

from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from typing import Any, Final

from quota.entity import Owners
from tests.deploy.written_tables import Row, Written

MINUTE_MS: Final = 60_000
USED: Final = ("produced_bytes", "fetched_bytes", "request_time_ns", "exempt_time_ns", "request_count")


def complete_usage(written: Written) -> list[Row]:
    """Raw usage of the minutes that are rolled up."""
    newest_ms = max(row["minute_start_ms"] for row in written.rows("usage_by_minute"))
    return [row for row in written.rows("usage") if row["sample_start_ms"] < newest_ms + MINUTE_MS]


def used(row: Row) -> Counter[str]:
    return Counter(
        produced_bytes=row["produced_bytes"] or 0,
        fetched_bytes=row["fetched_bytes"] or 0,
        request_time_ns=(row["io_time_ns"] or 0) + (row["network_time_ns"] or 0),
        exempt_time_ns=row["exempt_time_ns"] or 0,
        request_count=row["request_count"],
    )


def summed(rows: list[Row], key: Any) -> dict[Any, Counter[str]]:
    sums: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in rows:
        sums[key(row)].update(used(row))
    return sums


def told(rows: list[Row], *keys: str) -> dict[Any, Counter[str]]:
    found = {tuple(row[key] for key in keys): Counter({name: row[name] for name in USED}) for row in rows}
    assert len(found) == len(rows), "no key twice"
    return found


def owners(written: Written) -> Owners:
    return Owners(written.rows("quotas"))


def day_of(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def set_of(rows: list[Row], names: tuple[str, ...]) -> set[Any]:
    return {tuple(row[name] for name in names) for row in rows}
