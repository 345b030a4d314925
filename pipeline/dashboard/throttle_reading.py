"""Reads of one client what was decided and published for it, and when it was held: the newest first, and no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.dashboard.client_view import DECISION_COLUMNS, RECORD_COLUMNS, bands, bands_of_minutes
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.recent_table import TIME, RecentTable
from pipeline.dashboard.series_reading import Span
from pipeline.tables.errors import TableMissing

MOST_DECISIONS: Final = 1_000
MOST_RECORDS: Final = 200
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
# A throttle that began so long before the span may still run in it.
_EARLY_MS: Final = 600_000
# What is counted back from the end of the span in each step; then all the rest.
_STEPS_MS: Final = (_HOUR_MS, 6 * _HOUR_MS, 24 * _HOUR_MS)
_HELD: Final = (
    "SELECT minute_start_ms, quota_type, sum(held_ms) AS held_ms, sum(throttle_count + renewal_count) AS records "
    "FROM source WHERE minute_start_ms >= {since_ms} AND minute_start_ms < {until_ms} "
    'AND "user" = {user} AND client_id = {client_id} GROUP BY 1, 2'
)


@dataclass(frozen=True, slots=True)
class Throttles:
    """What is known of one client in a span.

    Attributes:
        decisions: Rows of `decisions`, the newest; oldest first. With the columns that `decision_row` needs.
        records: Rows of `throttle_events`, the newest; newest first. With the columns that `record_row` needs.
        bands: See `client_view.bands`.
        decisions_total: How many there are, as far as they were read.
        records_total: Likewise.
        has_more: Whether there may be older ones that were not read.
    """

    decisions: Sequence[dict[str, Any]]
    records: Sequence[dict[str, Any]]
    bands: Sequence[dict[str, Any]]
    decisions_total: int
    records_total: int
    has_more: bool


def read_throttles(reader: TablesReader, client: tuple[str, str], span: Span) -> Throttles:
    """What was decided and published for a client.

    Where a step of the span is a minute or longer, the bands are those of `throttle_by_minute`: a day of records is not
    read to draw some minutes. Records that are not in it yet are added.

    Args:
        reader: The tables.
        client: User and client-id.
        span: Of time.
    """
    is_long = span.bin_ms >= _MINUTE_MS
    recent, enough = reader.recent, (MOST_DECISIONS, MOST_RECORDS) if is_long else (None, None)
    decisions, more_decisions = _newest(recent.decisions, DECISION_COLUMNS, client, span, enough[0])
    decisions.sort(key=lambda row: (row[TIME], row["batch_id"]))
    early = Span(span.since_ms - _EARLY_MS, span.until_ms, span.bin_ms)
    records, more_records = _newest(recent.events, RECORD_COLUMNS, client, early, enough[1])
    records.sort(key=lambda row: int(row["publish_seq"]), reverse=True)
    found = bands(records, span.since_ms)
    if more_records:
        found = _with_minutes(reader, client, span, found)
    return Throttles(
        decisions=decisions[-MOST_DECISIONS:],
        records=records[:MOST_RECORDS],
        bands=found,
        decisions_total=len(decisions),
        records_total=len(records),
        has_more=more_decisions or more_records,
    )


def _newest(
    table: RecentTable, columns: Sequence[str], client: tuple[str, str], span: Span, enough: int | None
) -> tuple[list[dict[str, Any]], bool]:
    """At least so many of the newest rows, and whether there may be more; None = all."""
    found: list[dict[str, Any]] = []
    until_ms = span.until_ms
    for back_ms in (*(() if enough is None else _STEPS_MS), span.until_ms - span.since_ms):
        since_ms = max(span.until_ms - back_ms, span.since_ms)
        try:
            found += table.rows(columns, client, since_ms, until_ms)
        except TableMissing:
            return [], False
        if since_ms <= span.since_ms:
            break
        if enough is not None and len(found) >= enough:
            return found, True
        until_ms = since_ms
    return found, False


def _with_minutes(
    reader: TablesReader, client: tuple[str, str], span: Span, of_records: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Bands by minute up to the first one that records tell, then those."""
    until_ms = min((band["start_ms"] for band in of_records), default=span.until_ms)
    user, client_id = (f"'{name.replace(chr(39), chr(39) * 2)}'" for name in client)
    try:
        rows = reader.tables["throttle_by_minute"].query(
            _HELD.format(since_ms=span.since_ms, until_ms=until_ms, user=user, client_id=client_id)
        )
    except TableMissing:
        return [*of_records]
    minutes = zip(
        *(rows[name].to_pylist() for name in ("minute_start_ms", "quota_type", "held_ms", "records")), strict=True
    )
    return [*bands_of_minutes(minutes, span.bin_ms), *of_records]
