"""Instants as people read them on a page: in UTC."""

from datetime import UTC, datetime


def minute_text(instant_ms: int) -> str:
    """An instant to the minute, without the zone: `2026-11-22 17:10`."""
    return f"{datetime.fromtimestamp(instant_ms / 1000, UTC):%Y-%m-%d %H:%M}"
