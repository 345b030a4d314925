"""Bytes and request time by owner and period, exact to the byte.

The owner of a client is that of `quota.entity`, in the quotas that were in force when the minute began; if these name
none, the first one named later.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from pipeline.reports.page import BARS, bar_chart, page, parts_of, span_facts, table, time_chart
from pipeline.reports.periods import OwnerTimes, Period, whole_minutes
from pipeline.tables.minute_sums import Client, Minutes
from quota.units import rate_text


@dataclass(slots=True)
class Use:
    """What was used; `request_time_ns` of io and network threads is without that of exempt requests."""

    produced_bytes: int = 0
    fetched_bytes: int = 0
    request_time_ns: int = 0
    exempt_time_ns: int = 0
    request_count: int = 0

    def add(self, other: "Use") -> None:
        """Add what else was used."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def total_bytes(self) -> int:
        """Bytes produced and fetched."""
        return self.produced_bytes + self.fetched_bytes


@dataclass(frozen=True, slots=True)
class Charge:
    """What an owner is charged for, in one period; owner None: clients that no quota row with an owner covers."""

    period: str
    owner: str | None
    clients: dict[Client, Use]

    @property
    def use(self) -> Use:
        """The sum of all."""
        total = Use()
        for one in self.clients.values():
            total.add(one)
        return total

    def to_row(self) -> dict[str, Any]:
        """One flat row for printing."""
        return {"period": self.period, "owner": self.owner, "clients": len(self.clients), **asdict(self.use)}

    def client_rows(self) -> Iterator[dict[str, Any]]:
        """One flat row for each client, the largest first."""
        ordered = sorted(self.clients.items(), key=lambda item: (-item[1].total_bytes, item[0]))
        for (user, client_id), use in ordered:
            yield {"period": self.period, "owner": self.owner, "user": user, "client_id": client_id, **asdict(use)}


def charges(minutes: Minutes, owner_times: OwnerTimes, periods: Iterable[Period]) -> list[Charge]:
    """What each owner used in each period, by `usage_by_minute`: in order of the periods, then of the bytes.

    A minute belongs to the period, and to the owners, of the instant at which it begins.
    """
    found = []
    for period in periods:
        by_owner: dict[str | None, Charge] = {}
        for begin_ms, end_ms, owner_of in owner_times.spans(period.start_ms, period.end_ms):
            for client, use in _used(minutes, begin_ms, end_ms):
                owner = owner_of(*client)
                charge = by_owner.setdefault(owner, Charge(period.name, owner, {}))
                charge.clients.setdefault(client, Use()).add(use)
        found += sorted(by_owner.values(), key=lambda one: (-one.use.total_bytes, one.owner or ""))
    return found


def _used(minutes: Minutes, begin_ms: int, end_ms: int) -> Iterator[tuple[Client, Use]]:
    columns = minutes.used_by_client(*whole_minutes(begin_ms, end_ms)).to_pydict()
    clients = zip(columns.pop("user"), columns.pop("client_id"), strict=True)
    figures = zip(*(columns[field.name] for field in fields(Use)), strict=True)
    for client, values in zip(clients, figures, strict=True):
        yield client, Use(*values)


# The page.

_SERIES: Final = ("produced", "fetched")
NO_OWNER: Final = "no owner"


def chargeback_page(charges: Sequence[Charge], minutes: Minutes, span_ms: tuple[int, int]) -> str:
    """The page; `minutes` is `usage_by_minute`."""
    sections = {
        "Bytes per second, all clients": _time_chart(minutes, span_ms),
        "Bytes by owner": _bars(charges),
        "Owners": table([_readable(one.to_row()) for one in charges]),
        "Clients": table([_readable(row) for one in charges for row in one.client_rows()]),
    }
    return page("Chargeback · kquota", "Usage by owner", span_facts(span_ms), sections)


def _time_chart(minutes: Minutes, span_ms: tuple[int, int]) -> str:
    lengths_ms = parts_of(span_ms)
    sums = minutes.over_time(("produced_bytes", "fetched_bytes"), span_ms[0], lengths_ms[0], span_ms[1])
    lines = [
        (name, [sums.get(part, (0, 0))[place] * 1000 / length for part, length in enumerate(lengths_ms)])
        for place, name in enumerate(_SERIES)
    ]
    known = [part in sums for part in range(len(lengths_ms))]
    return time_chart("Bytes per second, all clients", lines, known, span_ms, _rate)


def _bars(charges: Sequence[Charge]) -> str:
    by_owner: dict[str | None, Use] = {}
    for one in charges:
        by_owner.setdefault(one.owner, Use()).add(one.use)
    largest = sorted(by_owner.items(), key=lambda item: -item[1].total_bytes)[:BARS]
    bars = [(owner or NO_OWNER, (use.produced_bytes, use.fetched_bytes)) for owner, use in largest]
    return bar_chart("Bytes by owner", _SERIES, bars, lambda value: _rate(value).removesuffix("/s"))


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if not name.endswith("_ns")}
    times = {name.replace("_ns", "_s"): value / 1e9 for name, value in row.items() if name.endswith("_ns")}
    return shown | {"owner": row["owner"] or NO_OWNER} | times


def _rate(value: float) -> str:
    return rate_text("producer_byte_rate", value)
