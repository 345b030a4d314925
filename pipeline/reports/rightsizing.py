"""Bounds compared with what clients really use: the 95th and 99th percentile of the rate per minute.

The rate is that of the sensor: of all clients that share the bound, over all brokers; in scope `broker` it is that at
the broker where it is largest. Only minutes in which it was used count, so a client that works one hour a day is
measured in that hour. A client that was throttled sent less than it wanted to: its bound is never lowered.

Nothing is suggested from less than an hour of use. The first and the last minute of the table may be partial, and are
left out. What is suggested is never below the largest rate of the last ten minutes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from pipeline.reports.page import BARS, bar_chart, page, paragraph, span_facts, table
from pipeline.tables.minute_sums import MINUTE_MS, Client, Minutes
from pipeline.tables.quotas.edit import alter_command
from quota.engine import QuotaEngine
from quota.entity import DEFAULT, QUOTA_TYPES, Level, entity_at
from quota.snapshot import QuotaSnapshot
from quota.units import rate_text, rounded_up

Advice = Literal["raise", "lower", "keep", "unused", "too little data"]

_SPACIOUS: Final = 2.0
"""A bound is lowered only if it is more than this many times what is suggested."""
LEAST_MINUTES: Final = 60
"""From fewer minutes of use nothing is suggested."""
_LAST_MS: Final = 10 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Sized:
    """The bound T of a quota entity (bytes per second, or percent of one thread), and what was used of it.

    Attributes:
        p95: The 95th percentile of the rate per minute, of the sensor for which it is largest; None for no use. A
            sensor with an hour of use goes before others.
        minutes: The minutes in which that sensor was used.
        sensors: How many sensors have this bound: one, but for an entity with `<default>`.
        was_throttled: Whether one of its clients was throttled.
        suggested: The bound that would fit; None for less than an hour of use.
    """

    user: str
    client_id: str
    quota_type: str
    bound: float
    p95: float | None
    p99: float | None
    minutes: int
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
            return "too little data" if self.minutes else "unused"
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
        columns = ("user", "client_id", "quota_type", "bound", "minutes", "p95", "p99", "advice", "suggested")
        return {name: getattr(self, name) for name in columns} | {
            "throttled": self.was_throttled,
            "sensors": self.sensors,
        }

    def command(self) -> str | None:
        """The command that makes the bound the suggested one; None if nothing is to be done."""
        if self.suggested is None or self.advice not in ("raise", "lower"):
            return None
        reason = f"rightsizing: p99 {rate_text(self.quota_type, self.p99 or 0.0)} in {self.minutes} minutes"
        return alter_command(self.user, self.client_id, {self.quota_type: self.suggested}, reason)


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
    begin_ms, end_ms = question.span_ms
    last_minutes = max(end_ms - _LAST_MS, begin_ms), end_ms
    found = []
    for quota_type in QUOTA_TYPES:
        bound_rows = [row for row in levels if row["quota_type"] == quota_type and row["bound"] is not None]
        held_entities = {_entity(row) for row in bound_rows if (row["user"], row["client_id"]) in question.throttled}
        by_entity = _figures(minutes, quota_type, bound_rows, question)
        lately = _figures(minutes, quota_type, bound_rows, replace(question, span_ms=last_minutes))
        for entity, bound in _bounds(question.snapshot, quota_type):
            figures = by_entity.get(entity, [])
            unused: dict[str, Any] = {"p95": None, "p99": None, "minutes": 0}
            busiest = max(figures, key=lambda one: (one["minutes"] >= LEAST_MINUTES, one["p99"]), default=unused)
            sensors = len({one["sensor"] for one in figures})
            suggested = suggestion(quota_type, busiest["p99"], busiest["minutes"], lately.get(entity, []), question)
            seen = busiest["p95"], busiest["p99"], busiest["minutes"]
            found.append(Sized(*entity, quota_type, bound, *seen, sensors, entity in held_entities, suggested))
    return sorted(found, key=lambda one: (-(one.p99 or 0) / one.bound, one.user, one.client_id, one.quota_type))


def suggestion(
    quota_type: str, p99: float | None, minutes: int, lately: Iterable[Mapping[str, Any]], question: Question
) -> float | None:
    """The bound that fits a sensor, or None: `p99` with headroom, and not below what was used lately.

    Args:
        minutes: In which it was used.
        lately: Figures of the entity's sensors in the last minutes.
    """
    if not p99 or minutes < LEAST_MINUTES:
        return None
    most = max((one["most"] for one in lately), default=0.0)
    return rounded_up(max(p99 * (1 + question.headroom / 100), most), quota_type)


def whole_part(span_ms: tuple[int, int], kept_ms: tuple[int, int]) -> tuple[int, int]:
    """What of a span is in whole minutes: the first and the last minute that is kept may be partial. Pure.

    >>> whole_part((60_000, 600_000), (0, 600_000))
    (60000, 540000)
    """
    return max(span_ms[0], kept_ms[0] + MINUTE_MS), min(span_ms[1], kept_ms[1] - MINUTE_MS)


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
    sections["Bounds"] = table([readable(one.to_row()) for one in found], _MARKS)
    return page("Rightsizing · kquota", "Recommended quotas", about, sections)


def _bars(found: Sequence[Sized], quota_type: str) -> str:
    used = [one for one in found if one.quota_type == quota_type and one.p99 is not None][:BARS]
    if not used:
        return paragraph("No bound of this type was used.")
    bars = [("/".join(filter(None, (one.user, one.client_id))), (one.p99, one.bound, one.suggested)) for one in used]
    return bar_chart(f"Bounds and use: {quota_type}", _SERIES, bars, partial(rate_text, quota_type))


def readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `Sized.to_row` for people: with units."""
    rates = {
        name: None if row[name] is None else rate_text(row["quota_type"], row[name])
        for name in ("bound", "p95", "p99", "suggested")
    }
    return {**row, **rates, "throttled": "yes" if row["throttled"] else "no"}
