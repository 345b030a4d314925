"""The records of `throttle_events` that are asked for: those of throttles that run, or the newest ones."""

from dataclasses import dataclass
from typing import Any, Final

from pipeline.tables.address import table_uri
from pipeline.tables.port import Condition
from pipeline.tables.reading.table_rows import TableRows

_MORE: Final = 8
_CLIENT: Final = ("cluster", "broker_id", "user", "client_id")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records are asked for.

    Attributes:
        user: Of this user; None = of any.
        client_id: Of this client-id, which may be ""; None = of any.
        quota_type: Of this quota type; None = of any.
        since_ms: Written at this instant or later, by wall clock; None = at any time.
    """

    user: str | None = None
    client_id: str | None = None
    quota_type: str | None = None
    since_ms: int | None = None

    def of_client(self) -> list[Condition]:
        """The conditions on the client. They hold for all of its records or for none."""
        names = (("user", self.user), ("client_id", self.client_id))
        return [(column, "=", name) for column, name in names if name is not None]

    def conditions(self) -> list[Condition]:
        """All conditions."""
        found = self.of_client()
        if self.quota_type is not None:
            found.append(("quota_type", "=", self.quota_type))
        if self.since_ms is not None:
            found.append(("evaluated_at_ms", ">=", self.since_ms))
        return found


ALL: Final = Wanted()


def running_throttles(root: str, now_ms: int, wanted: Wanted = ALL) -> list[dict[str, Any]]:
    """The last record of every wanted client that is throttled at `now_ms` (wall clock). The latest end comes first."""
    events = TableRows(table_uri(root, "throttle_events"))
    # As `last_throttles` for the job: the release of a client may end before the throttle that it ends. So from the
    # first throttle that could run on, the last record of each client counts, whatever its end.
    first = events.smallest("publish_seq", [("throttled_until_ms", ">", now_ms), *wanted.of_client()])
    if first is None:
        return []
    later: Condition = ("publish_seq", ">=", first)
    runs: list[Condition] = [("action", "=", "throttle"), ("throttled_until_ms", ">", now_ms)]
    rows = events.last_of_each(_CLIENT, "publish_seq", [later, *wanted.of_client()], [*runs, *wanted.conditions()])
    return sorted(rows, key=lambda row: (-row["throttled_until_ms"], row["publish_seq"]))


def recent_events(root: str, limit: int, wanted: Wanted = ALL) -> list[dict[str, Any]]:
    """The newest `limit` wanted records, newest first."""
    events = TableRows(table_uri(root, "throttle_events"))
    newest_seq = events.newest_value("publish_seq")
    if newest_seq is None:
        return []
    # `publish_seq` counts up by one per record. It takes more numbers where rows were lost, or are not wanted.
    numbers = limit
    while True:
        rows = events.read(None, [("publish_seq", ">", newest_seq - numbers), *wanted.conditions()])
        if len(rows) >= limit or numbers > newest_seq:
            break
        numbers *= _MORE
    return sorted(rows, key=lambda row: -row["publish_seq"])[:limit]
