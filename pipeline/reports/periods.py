"""The periods of a report: UTC days, ISO weeks (from Monday on) and months; and the owners of clients over time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Final

from pipeline.errors import TableMissing, UsageError
from pipeline.tables.quotas.table import QuotaTable
from quota.entity import Owners

MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Period:
    """A period, as far as it lies in the range of a report; its name is `2026-11-23`, `2026-W48` or `2026-11`."""

    name: str
    start_ms: int
    end_ms: int


# First day of the period of a day; and of such a first day, that of the next period, and the name.
_KINDS: Final[Mapping[str, tuple[Callable[[date], date], Callable[[date], date], Callable[[date], str]]]] = {
    "day": (lambda day: day, lambda day: day + timedelta(days=1), date.isoformat),
    "week": (
        lambda day: day - timedelta(days=day.weekday()),
        lambda day: day + timedelta(days=7),
        lambda day: f"{day:%G-W%V}",
    ),
    "month": (
        lambda day: day.replace(day=1),
        lambda day: (day + timedelta(days=31)).replace(day=1),
        lambda day: f"{day:%Y-%m}",
    ),
}


def known_period(given: str) -> str:
    """`day`, `week` or `month`; another word is a `UsageError`."""
    if given not in _KINDS:
        msg = f"unknown period --by {given}; use day, week or month"
        raise UsageError(msg, "for example --by week")
    return given


def periods(by: str, since_ms: int, until_ms: int) -> Iterator[Period]:
    """The periods of a range, in order; the first and the last one may be cut. `until_ms` is exclusive."""
    first, following, name = _KINDS[by]
    day = first(datetime.fromtimestamp(since_ms / 1000, UTC).date())
    while (start_ms := _epoch_ms(day)) < until_ms:
        next_day = following(day)
        begin_ms, end_ms = max(start_ms, since_ms), min(_epoch_ms(next_day), until_ms)
        if begin_ms < end_ms:
            yield Period(name(day), begin_ms, end_ms)
        day = next_day


def length_ms(by: str, name_day_ms: int) -> int:
    """How long the whole period is in which an instant lies."""
    first, following, _ = _KINDS[by]
    day = first(datetime.fromtimestamp(name_day_ms / 1000, UTC).date())
    return (following(day) - day).days * _DAY_MS


def whole_minutes(since_ms: int, until_ms: int) -> tuple[int, int]:
    """The range of the minutes that begin in a range: both ends are rounded up to full minutes."""
    since_ms, until_ms = (-(-ms // MINUTE_MS) * MINUTE_MS for ms in (since_ms, until_ms))
    return since_ms, until_ms


def _epoch_ms(day: date) -> int:
    return (day - date(1970, 1, 1)).days * _DAY_MS


# Owners over time.

OwnerOf = Callable[[str, str], str | None]
"""The owner of a client, by user and client-id; None if it has no owner."""


@dataclass(frozen=True, slots=True)
class OwnerTimes:
    """The owners since an instant, in order of time; versions that name the same owners are one.

    Usage without an owner when it happened is that of the first owner named later. So owners that are given to clients
    after a month hold for that month too, and a client that changes hands is still charged to whom it belonged.

    `from_ms` is when each came into force, ascending. The first one also holds before its time.
    """

    from_ms: tuple[int, ...]
    owners: tuple[Owners, ...]

    @classmethod
    def of(cls, table: QuotaTable, since_ms: int) -> "OwnerTimes":
        """The owners since an instant, by the times of the commits. Versions that are no longer kept are left out."""
        found: list[tuple[int, Owners]] = []
        for commit in table.history(None):
            try:
                owners = Owners(table.read(commit.version).rows)
            except TableMissing:
                break
            if found and found[-1][1] == owners:
                found[-1] = commit.committed_at_ms, owners
            else:
                found.append((commit.committed_at_ms, owners))
            if commit.committed_at_ms <= since_ms:
                break
        found.reverse()
        return cls(tuple(at_ms for at_ms, _ in found), tuple(owners for _, owners in found))

    def spans(self, start_ms: int, end_ms: int) -> list[tuple[int, int, OwnerOf]]:
        """A range, cut where the owners change: of each part its begin, its end, and who owns a client."""
        cuts = [start_ms, *(ms for ms in self.from_ms[1:] if start_ms < ms < end_ms), end_ms]
        return [(begin, end, partial(self._owner, begin)) for begin, end in pairwise(cuts)]

    def _owner(self, instant_ms: int, user: str, client_id: str) -> str | None:
        place = max(sum(ms <= instant_ms for ms in self.from_ms) - 1, 0)
        named = (owners.of(user, client_id) for owners in self.owners[place:])
        return next((owner for owner in named if owner is not None), None)
