"""Who is throttled, kept up to date from the records of `throttle_events`. Pure: records and `now_ms` come in."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.throttle_record import written_ms

Client = tuple[str, str, str]
"""(broker_id, user, client_id)."""

_RECENT: Final = 200


@dataclass(frozen=True, slots=True)
class RunningThrottle:
    """A client that is held.

    Attributes:
        row: Its last row of `throttle_events`.
        since_ms: When the throttle began, by the driver's wall clock: its first record, before all renewals.
        records: How many records it has had.
    """

    row: Mapping[str, Any]
    since_ms: int
    records: int


class RunningThrottles:
    """The last record of every client, as far as it may still run; and the newest records."""

    def __init__(self) -> None:
        self._last: dict[Client, RunningThrottle] = {}
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=_RECENT)
        self.newest_seq = -1
        """The highest `publish_seq` that was applied."""

    def apply(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take further rows of `throttle_events`. Those that were taken before are left out."""
        for row in sorted(rows, key=lambda row: int(row["publish_seq"])):
            if row["publish_seq"] <= self.newest_seq:
                continue
            self.newest_seq = row["publish_seq"]
            self._recent.append(row)
            self._take(row)

    def running(self, now_ms: int) -> list[RunningThrottle]:
        """Who is held at an instant, by wall clock; whoever is held longest comes first. Forgets what has lapsed."""
        self._last = {key: one for key, one in self._last.items() if one.row["throttled_until_ms"] > now_ms}
        return sorted(self._last.values(), key=lambda one: (one.since_ms, one.row["publish_seq"]))

    def recent(self, limit: int) -> list[Mapping[str, Any]]:
        """The newest records, newest first."""
        return [*reversed(self._recent)][:limit]

    def _take(self, row: Mapping[str, Any]) -> None:
        key = (row["broker_id"], row["user"], row["client_id"])
        if row["action"] == "release":
            self._last.pop(key, None)
            return
        before = self._last.get(key)
        written = written_ms(row)
        # What has lapsed was no longer held: nobody renewed it in time.
        goes_on = before is not None and before.row["throttled_until_ms"] >= written
        since_ms = before.since_ms if before is not None and goes_on else written
        self._last[key] = RunningThrottle(row, since_ms, before.records + 1 if before is not None and goes_on else 1)
