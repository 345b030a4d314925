"""The throttles that may still run: the last row of each client in `throttle_events`, if it is not a release."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.arrow_values import arrow_scalar
from pipeline.tables.port import Condition, TableReader

_CLIENT: Final = ("cluster", "broker_id", "user", "client_id")
_NO_ROWS: Final[list[Condition]] = [("publish_seq", "<", 0)]


def last_throttles(events: TableReader, since_ms: int, of_clients: Sequence[Condition] = ()) -> pa.Table:
    """The last row of each client, if it is a throttle that ends at an instant or later; in no order.

    To find these rows, only the columns that are needed are read, and only the files from the first such throttle on.

    Args:
        events: the table `throttle_events`.
        since_ms: the instant, by wall clock, inclusive.
        of_clients: conditions on the columns that name a client.
    """
    running = _running(events, since_ms, of_clients)
    if not len(running):
        return events.read(None, _NO_ROWS)
    ends = pc.min_max(running)
    rows = events.read(
        None,
        [
            ("publish_seq", ">=", ends["min"].as_py()),
            ("publish_seq", "<=", ends["max"].as_py()),
            ("throttled_until_ms", ">=", since_ms),
            ("action", "=", "throttle"),
            *of_clients,
        ],
    )
    return rows.filter(pc.is_in(rows["publish_seq"], value_set=running.combine_chunks()))


def _running(events: TableReader, since_ms: int, of_clients: Sequence[Condition]) -> "pa.ChunkedArray":
    """The `publish_seq` of each row that `last_throttles` returns."""
    candidates = events.read(["publish_seq"], [("throttled_until_ms", ">=", since_ms), *of_clients])["publish_seq"]
    if not len(candidates):
        return candidates
    # The release of a client may end before the throttle that it ends. So from the first candidate on all rows count,
    # whatever their end.
    later: Condition = ("publish_seq", ">=", pc.min(candidates).as_py())
    last = events.newest_of_each(_CLIENT, "publish_seq", ["action", "throttled_until_ms"], [later, *of_clients])
    runs = pc.and_(
        pc.equal(last["action"], arrow_scalar("throttle")),
        pc.greater_equal(last["throttled_until_ms"], arrow_scalar(since_ms)),
    )
    return last["publish_seq"].filter(runs)
