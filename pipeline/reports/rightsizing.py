"""Bounds compared with what clients really use: the 95th and 99th percentile of the rate per minute.

The rate is that of the sensor: of all clients that share the bound, over all brokers; in scope `broker` it is that at
the broker where it is largest. Only minutes in which it was used count, so a client that works one hour a day is
measured in that hour. A client that was throttled sent less than it wanted to: its bound is never lowered.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from pipeline.reports.page import BARS, Bars, bar_chart, page, paragraph, span_facts, table
from pipeline.tables.minute_sums import Client, Minutes
from quota.engine import QuotaEngine
from quota.entity import DEFAULT, QUOTA_TYPES, Level, entity_at
from quota.snapshot import QuotaSnapshot
from quota.units import rate_text, rounded_up

Advice = Literal["raise", "lower", "keep", "unused"]

_SPACIOUS: Final = 2.0
"""A bound is lowered only if it is more than this many times what is suggested."""


@dataclass(frozen=True, slots=True)
class Sized:
    """The bound T of a quota entity (bytes per second, or percent of one thread), and what was used of it.

    Attributes:
        p95: The 95th percentile of the rate per minute, of the sensor for which it is largest; None for no use.
        sensors: How many sensors have this bound: one, but for an entity with `<default>`.
        was_throttled: Whether one of its clients was throttled.
        suggested: The bound that would fit; None for no use.
    """

    user: str
    client_id: str
    quota_type: str
    bound: float
    p95: float | None
    p99: float | None
    sensors: int
    was_throttled: bool
    suggested: float | None

    @property
    def is_default(self) -> bool:
        """Whether the entity has a default in it: its bound also applies to clients not seen yet."""
        return DEFAULT in (self.user, self.client_id)

    @property
    def advice(self) -> Advice:
        """What to do with the bound."""
        if self.suggested is None:
            return "unused"
        if self.suggested > self.bound:
            return "raise"
        if self.suggested * _SPACIOUS < self.bound and not self.was_throttled:
            return "lower"
        return "keep"

    @property
    def new_bound(self) -> float:
        """The bound in the candidate: of a default entity, and where nothing is to be done, the old one."""
        if self.suggested is not None and self.advice in ("raise", "lower") and not self.is_default:
            return self.suggested
        return self.bound

    def to_row(self) -> dict[str, Any]:
        """One flat row for printing."""
        columns = ("user", "client_id", "quota_type", "bound", "p95", "p99", "advice", "suggested")
        return {name: getattr(self, name) for name in columns} | {
            "throttled": self.was_throttled,
            "sensors": self.sensors,
        }


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the usage.

    Attributes:
        per_broker: Whether a bound holds for each broker on its own.
        throttled: The clients that were throttled in the range.
        headroom: How far above the 99th percentile a bound should be, in percent.
    """

    snapshot: QuotaSnapshot
    per_broker: bool
    span_ms: tuple[int, int]
    throttled: frozenset[Client]
    headroom: float


def sized(minutes: Minutes, question: Question) -> list[Sized]:
    """Every bound, compared with its use in `usage_by_minute`; the most used share first, unused ones last."""
    engine = QuotaEngine()
    engine.load_quotas(question.snapshot)
    clients = minutes.clients(*question.span_ms)
    levels = engine.resolve(clients).to_pylist() if clients.num_rows else []
    found = []
    for quota_type in QUOTA_TYPES:
        bound_rows = [row for row in levels if row["quota_type"] == quota_type and row["bound"] is not None]
        held_entities = {_entity(row) for row in bound_rows if (row["user"], row["client_id"]) in question.throttled}
        by_entity = _figures(minutes, quota_type, bound_rows, question)
        for entity, bound in _bounds(question.snapshot, quota_type):
            figures = by_entity.get(entity, [])
            busiest = max(figures, key=lambda sensor: sensor["p99"], default={"p95": None, "p99": None})
            p99, sensors = busiest["p99"], len({one["sensor"] for one in figures})
            suggested = rounded_up(p99 * (1 + question.headroom / 100), quota_type) if p99 else None
            held = entity in held_entities
            found.append(Sized(*entity, quota_type, bound, busiest["p95"], p99, sensors, held, suggested))
    return sorted(found, key=lambda one: (-(one.p99 or 0) / one.bound, one.user, one.client_id, one.quota_type))


def candidate_rows(rows: Sequence[Mapping[str, Any]], found: Sequence[Sized]) -> list[dict[str, Any]]:
    """The rows of the quota table with the new bounds."""
    bounds = {(one.user, one.client_id, one.quota_type): one.new_bound for one in found}
    return [
        {**row, **{name: bounds.get((row["user"], row["client_id"], name), row[name]) for name in QUOTA_TYPES}}
        for row in rows
    ]


def _bounds(snapshot: QuotaSnapshot, quota_type: str) -> Iterator[tuple[Client, float]]:
    place = QUOTA_TYPES.index(quota_type)
    for quota in snapshot.quotas:
        bound = quota.bounds[place]
        if bound is not None and quota.mode != "exempt":
            yield (quota.user, quota.client_id), bound


def _figures(
    minutes: Minutes, quota_type: str, rows: Sequence[Mapping[str, Any]], question: Question
) -> dict[Client, list[dict[str, Any]]]:
    if not rows:
        return {}
    numbers: dict[Client, int] = {}
    entities: list[Client] = []
    sensors: dict[Client, int] = {}
    for row in rows:
        sensor = row["sensor_user"], row["sensor_client_id"]
        if sensor not in numbers:
            numbers[sensor] = len(numbers)
            entities.append(_entity(row))
        sensors[row["user"], row["client_id"]] = numbers[sensor]
    found: dict[Client, list[dict[str, Any]]] = {}
    for figures in minutes.rates(quota_type, sensors, *question.span_ms, per_broker=question.per_broker).to_pylist():
        found.setdefault(entities[figures["sensor"]], []).append(figures)
    return found


def _entity(row: Mapping[str, Any]) -> Client:
    return entity_at(Level(row["level"]), row["sensor_user"], row["sensor_client_id"])


# The page.

_SERIES: Final = ("p99 of the rate per minute", "bound", "suggested")
_MARKS: Final = {"raise": "new", "lower": "gone"}


def rightsizing_page(found: Sequence[Sized], headroom: float, version: int, span_ms: tuple[int, int]) -> str:
    """The page; `headroom` is in percent."""
    about = {**span_facts(span_ms), "quotas": f"v{version}", "headroom": f"{headroom:g} %"}
    sections = {f"The most used of each bound: {quota_type}": _bars(found, quota_type) for quota_type in QUOTA_TYPES}
    sections["Bounds"] = table([_readable(one) for one in found], _MARKS)
    return page("Rightsizing · kquota", "Recommended quotas", about, sections)


def _bars(found: Sequence[Sized], quota_type: str) -> str:
    used = [one for one in found if one.quota_type == quota_type and one.p99 is not None][:BARS]
    if not used:
        return paragraph("No bound of this type was used.")
    bars = [
        Bars("/".join(filter(None, (one.user, one.client_id))), (one.p99, one.bound, one.suggested)) for one in used
    ]
    return bar_chart(f"Bounds and use: {quota_type}", _SERIES, bars, partial(rate_text, quota_type))


def _readable(one: Sized) -> dict[str, Any]:
    row = one.to_row()
    rates = {
        name: None if row[name] is None else rate_text(one.quota_type, row[name])
        for name in ("bound", "p95", "p99", "suggested")
    }
    return row | rates | {"throttled": "yes" if one.was_throttled else "no"}
