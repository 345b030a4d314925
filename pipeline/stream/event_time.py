"""Sets back event times that are ahead of the driver's clock: docs/design.md, "Event time".

The evaluation follows the newest event time, and never goes back. Without a limit, one message of a host whose clock is
five minutes ahead would make the usage of everybody else late for five minutes.

The limit changes with every batch. As a literal in the query it would make Spark generate and compile code for every
batch. So it is applied on the driver, to the sums that Spark has collected.
"""

import logging
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stream.usage_columns import CollectedBatch, merge_usage

log = logging.getLogger(__name__)

_WARNING_INTERVAL_MS: Final = 60_000
_LONGEST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class EventsAhead:
    """Usage of one micro-batch that was dated after the limit.

    Attributes:
        event_count: how many events were set back to the limit; of a sample window that holds the limit, at least one.
        ahead_ms: how far the newest event was after the limit.
    """

    event_count: int
    ahead_ms: int
    broker_id: str
    user: str
    client_id: str


def limit_event_times(
    batch: CollectedBatch, limit_ms: int, sample_window_ms: int
) -> tuple[CollectedBatch, EventsAhead | None]:
    """Set every event time after a limit back to the limit. An event at exactly the limit is not after it.

    * `sample_window_ms`: span of a sample window, > 0, the same as in `batch`.

    Returns:
        The batch as if the events had been dated so, and what was set back; None if nothing was. Rows that fall into
        the same sample window are summed. `clamped_count` counts all events of a row whose window begins after the
        limit. Of a row whose window holds the limit it counts at least one, because the single events are not known.
    """
    newest_ms = batch.newest_event_ms
    if newest_ms is None or newest_ms <= limit_ms:
        return batch, None
    is_ahead = pc.greater(batch.usage["last_event_ms"], limit_ms)
    ahead = batch.usage.filter(is_ahead)
    if not ahead.num_rows:  # the newest event is of a user of another share
        return replace(batch, newest_event_ms=limit_ms), None
    newest_ms = pc.max(ahead["last_event_ms"]).as_py()
    limited = _set_back(ahead, limit_ms, sample_window_ms)
    event_count = pc.sum(limited["clamped_count"]).as_py() - pc.sum(ahead["clamped_count"]).as_py()
    newest = ahead.slice(pc.index(ahead["last_event_ms"], newest_ms).as_py(), 1).to_pylist()[0]
    names = {name: newest[name] for name in ("broker_id", "user", "client_id")}
    return (
        replace(
            batch,
            usage=merge_usage([batch.usage.filter(pc.invert(is_ahead)), limited]),
            clamped_count=batch.clamped_count + event_count,
            newest_event_ms=limit_ms,
        ),
        EventsAhead(pc.sum(limited["clamped_count"]).as_py(), newest_ms - limit_ms, **names),
    )


def _set_back(ahead: pa.Table, limit_ms: int, sample_window_ms: int) -> pa.Table:
    """Rows that hold events after the limit, as of the limit."""
    limit_start_ms = limit_ms - limit_ms % sample_window_ms
    is_whole = pc.greater(ahead["sample_start_ms"], limit_start_ms)
    columns = {
        "sample_start_ms": pc.min_element_wise(ahead["sample_start_ms"], limit_start_ms),
        "clamped_count": pc.if_else(is_whole, ahead["event_count"], pc.max_element_wise(ahead["clamped_count"], 1)),
        "last_event_ms": pa.repeat(limit_ms, ahead.num_rows),
    }
    for name, values in columns.items():
        ahead = ahead.set_column(ahead.schema.get_field_index(name), ahead.schema.field(name), values)
    return ahead


class ClockWarning:
    """Logs events that are ahead of the driver's clock: once per batch, but at most once a minute.

    A line counts the events since the line before.
    """

    def __init__(self) -> None:
        self._events = 0
        self._logged_at_ms: int | None = None

    def take(self, ahead: EventsAhead | None, tolerance_ms: int, steady_ms: int) -> None:
        """Take note of a batch.

        * `ahead`: what was set back; None for nothing.
        * `tolerance_ms`: how far ahead of the driver's clock an event may be.
        """
        if ahead is None:
            return
        self._events += ahead.event_count
        if self._logged_at_ms is not None and steady_ms - self._logged_at_ms < _WARNING_INTERVAL_MS:
            return
        log.warning(
            "%d events are ahead of this machine's clock by more than %d ms, one by %.1f s more: of user %s, client-id "
            "%s, broker %s. They count as of now. Fix: set the clocks of brokers, meters and this machine",
            self._events,
            tolerance_ms,
            ahead.ahead_ms / 1000,
            *(_shortened(name) for name in (ahead.user, ahead.client_id, ahead.broker_id)),
        )
        self._events, self._logged_at_ms = 0, steady_ms


def _shortened(name: str) -> str:
    """A name as it can be logged: in quotes, without control characters, and not long."""
    return ascii(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")
