"""What follows from an observation: findings with their figures and reasons. Pure.

* Who gets more than its quota, because each broker gives it once: the minute in which all brokers together gave most.
* Who would be throttled if the quota held for the cluster, and for which share of the time.
* Whose bound is below one of its requests, or makes it wait longer than its request time-out at once.
* Who has no bound for a quota type, and which one would fit.

The first two are not for a cluster where a job of kquota runs: the job decides it there, and its tables have it. The
first one is not for quotas that are meant for each broker.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from pipeline.observe.observation import MEASURES, MINUTE_SECONDS, PER_UNIT, RATE_SECONDS, Figures, Sensor
from pipeline.tables.quotas.source import Scope
from quota.arrays import Ints
from quota.effective import REQUEST_TIMEOUT_MS
from quota.entity import QUOTA_TYPES, REQUEST
from quota.units import age_text, rate_text, rounded_up

HEADROOM: Final = 20
"""A suggested bound is so many percent above what was used."""

SCRAPED_SLACK: Final = 0.05
"""Scraped rates are right to about 3 %: only what is above the bound by more is found."""

_WINDOW_MS: Final = 11_000
_REQUEST_NAMES: Final = ("batch", "fetch")


@dataclass(frozen=True, slots=True)
class OverQuota:
    """A sensor that got more than its bound in a minute, although it holds on each broker.

    Attributes:
        user: Of the sensor; "" = all users share it.
        client_id: Of the sensor, likewise.
        observed: Of the minute in which it was largest, over all brokers, per second.
        by_broker: Broker-id -> its part of it.
        times: O / T, above 1.
        minutes_over: In how many minutes it was above T.
    """

    user: str
    client_id: str
    quota_type: str
    bound: float
    level: int
    observed: float
    by_broker: Mapping[str, float]
    times: float
    minutes_over: int
    minutes: int

    @property
    def reason(self) -> str:
        """Why, with the figures."""
        parts = ", ".join(f"{name or '?'}: {rate_text(self.quota_type, one)}" for name, one in self.by_broker.items())
        return (
            f"each broker allows {rate_text(self.quota_type, self.bound)}; {len(self.by_broker)} brokers gave "
            f"{rate_text(self.quota_type, self.observed)} together ({parts}), in {self.minutes_over} of "
            f"{self.minutes} minutes more than one quota"
        )


@dataclass(frozen=True, slots=True)
class WouldBeHeld:
    """A client that the shadow throttled.

    Attributes:
        held_share: Of the observed time, from 0 to 1.
        longest_wait_ms: The longest wait that was asked of it at once, before any cap.
        scope: Where it was over its bound: in the cluster, or on a broker.
    """

    user: str
    client_id: str
    quota_type: str
    bound: float
    held_seconds: int
    held_share: float
    longest_wait_ms: int
    scope: Scope = "cluster"

    @property
    def reason(self) -> str:
        """Why, with the figures."""
        where = "in the sum of all brokers" if self.scope == "cluster" else "on a broker"
        return (
            f"over {rate_text(self.quota_type, self.bound)} {where}: held {self.held_share:.0%} of the time, at most "
            f"{age_text(self.longest_wait_ms)} at once; if it then goes on as before"
        )


@dataclass(frozen=True, slots=True)
class TooSmall:
    """A bound that a client cannot work with.

    Attributes:
        request_bytes: One of its requests had at least as many; None = none is larger than the bound.
        longest_wait_ms: As of `WouldBeHeld`; None = no longer than the request time-out.
        suggested: A bound that all of this fits into.
    """

    user: str
    client_id: str
    quota_type: str
    bound: float
    request_bytes: int | None
    longest_wait_ms: int | None
    suggested: float

    @property
    def reason(self) -> str:
        """Why, with the figures."""
        found = []
        if self.request_bytes is not None:
            name = _REQUEST_NAMES[QUOTA_TYPES.index(self.quota_type)]
            size = rate_text(self.quota_type, self.request_bytes).removesuffix("/s")
            found.append(f"one {name} has at least {size}, more than a second of the bound")
        if self.longest_wait_ms is not None:
            found.append(
                f"it would wait {age_text(self.longest_wait_ms)} at once; requests time out after "
                f"{REQUEST_TIMEOUT_MS // 1000} s by default"
            )
        return "; ".join(found)


@dataclass(frozen=True, slots=True)
class NoQuota:
    """What a client used of a quota type for which it has no bound, and is not exempt.

    Attributes:
        p99: The 99th percentile of the rate per minute, over the minutes in which it was used.
        most: The largest rate of a minute.
        minutes: In how many minutes it was used.
        suggested: p99 and the headroom.
    """

    user: str
    client_id: str
    quota_type: str
    p99: float
    most: float
    minutes: int
    suggested: float

    @property
    def reason(self) -> str:
        """Why this bound."""
        of_minutes = f"{self.minutes} minute{'' if self.minutes == 1 else 's'}"
        return (
            f"p99 of {of_minutes} is {rate_text(self.quota_type, self.p99)}, and {HEADROOM} %; observed for no longer"
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """All of them; each list begins with what matters most.

    Attributes:
        seconds: How long was observed.
        over_quota: None if it was not looked for; would_be_held likewise.
        not_known: What this observation cannot tell, one sentence each.
    """

    seconds: int
    clients: int
    over_quota: Sequence[OverQuota] | None
    would_be_held: Sequence[WouldBeHeld] | None
    too_small: Sequence[TooSmall]
    no_quota: Sequence[NoQuota]
    not_known: Sequence[str]

    def to_document(self) -> dict[str, Any]:
        """As values of JSON, with the reason of each finding."""
        names = ("over_quota", "would_be_held", "too_small", "no_quota")
        lists = ((name, getattr(self, name)) for name in names)
        found = {
            name: None if rows is None else [asdict(one) | {"reason": one.reason} for one in rows]
            for name, rows in lists
        }
        return {"seconds": self.seconds, "clients": self.clients, **found, "not_known": list(self.not_known)}


def findings_of(figures: Figures, *, is_of_job: bool = False) -> Findings:
    """All findings of an observation. `is_of_job`: a job of kquota decides who is over its quota, and held."""
    over_quota: list[OverQuota] | None = None
    would_be_held: list[WouldBeHeld] | None = None
    if not is_of_job and figures.scope == "cluster":
        over_quota = sorted(_over_quota(figures), key=lambda one: (-one.times, one.user, one.client_id))
    if not is_of_job:
        would_be_held = sorted(_would_be_held(figures), key=lambda one: (-one.held_seconds, one.user, one.client_id))
    return Findings(
        seconds=figures.seconds,
        clients=len(figures.clients),
        over_quota=over_quota,
        would_be_held=would_be_held,
        too_small=sorted(_too_small(figures), key=lambda one: (one.bound / one.suggested, one.user, one.client_id)),
        no_quota=sorted(_no_quota(figures), key=lambda one: (one.quota_type == QUOTA_TYPES[REQUEST], -one.p99)),
        not_known=list(_not_known(figures, is_of_job)),
    )


def _over_quota(figures: Figures) -> Iterator[OverQuota]:
    lengths = figures.minute_seconds()
    whole = np.flatnonzero((lengths >= RATE_SECONDS) | (len(lengths) == 1))
    slack = 1.0 if figures.is_exact else 1 + SCRAPED_SLACK
    for quota_type in range(len(QUOTA_TYPES)):
        sensors = list(dict.fromkeys(one for one in figures.sensors[quota_type] if one.bound is not None))
        sums = _sums_of_sensors(figures, quota_type, sensors)[:, :, whole]
        rates = sums.sum(axis=1) / np.maximum(lengths[whole], 1) * PER_UNIT[quota_type]
        for at, sensor in enumerate(sensors):
            over = np.flatnonzero((rates[at] > (sensor.bound or 0) * slack) & ((sums[at] > 0).sum(axis=0) > 1))
            if len(over):
                minute, bound = over[rates[at, over].argmax()], sensor.bound or 0.0
                observed = float(rates[at, minute])
                of_minute = sums[at, :, minute] / lengths[whole][minute] * PER_UNIT[quota_type]
                parts = sorted(zip(figures.brokers, of_minute.tolist(), strict=True))
                yield OverQuota(
                    sensor.user,
                    sensor.client_id,
                    QUOTA_TYPES[quota_type],
                    bound,
                    sensor.level,
                    observed,
                    {name: rate for name, rate in parts if rate > 0},
                    observed / bound,
                    len(over),
                    len(whole),
                )


def _sums_of_sensors(figures: Figures, quota_type: int, sensors: Sequence[Sensor]) -> Ints:
    """The sums of each sensor, broker and minute: int64[sensors, brokers, minutes]."""
    numbers = {sensor: number for number, sensor in enumerate(sensors)}
    of_client = np.array([numbers.get(sensor, -1) for sensor in figures.sensors[quota_type]], np.int64)
    sums = np.zeros((len(sensors), len(figures.brokers), len(figures.minute_seconds())), np.int64)
    if len(sensors):
        rows = figures.minutes
        sensor = of_client[rows["client"].to_numpy()]
        used = sensor >= 0
        places = sensor[used], rows["broker"].to_numpy()[used], rows["minute"].to_numpy()[used]
        np.add.at(sums, places, rows[MEASURES[quota_type]].to_numpy()[used])
    return sums


def _would_be_held(figures: Figures) -> Iterator[WouldBeHeld]:
    for at in np.flatnonzero(figures.held_seconds).tolist():
        quota_type = int(figures.owed_type[at])
        bound = figures.sensors[quota_type][at].bound
        if bound is not None:  # else its quota was taken away meanwhile
            held = int(figures.held_seconds[at])
            client = figures.clients[at]
            yield WouldBeHeld(
                *client,
                QUOTA_TYPES[quota_type],
                bound,
                held,
                held / figures.seconds,
                int(figures.owed_ms[at]),
                figures.scope,
            )


def _too_small(figures: Figures) -> Iterator[TooSmall]:
    for quota_type in range(REQUEST):
        for at, client in enumerate(figures.clients):
            bound = figures.sensors[quota_type][at].bound
            if bound is None:
                continue
            request_bytes = int(figures.request_bytes[quota_type, at]) if figures.is_exact else 0
            wait_ms = int(figures.owed_ms[at]) if figures.owed_type[at] == quota_type else 0
            is_too_long = wait_ms > REQUEST_TIMEOUT_MS
            if request_bytes > bound or is_too_long:
                # O · W = T · (X + W): with this bound X is the time-out.
                patient = bound * (wait_ms + _WINDOW_MS) / (REQUEST_TIMEOUT_MS + _WINDOW_MS)
                yield TooSmall(
                    *client,
                    QUOTA_TYPES[quota_type],
                    bound,
                    request_bytes if request_bytes > bound else None,
                    wait_ms if is_too_long else None,
                    rounded_up(max(request_bytes, patient), QUOTA_TYPES[quota_type]),
                )


def _no_quota(figures: Figures) -> Iterator[NoQuota]:
    lengths = np.maximum(figures.minute_seconds(), 1)
    rows = figures.minutes
    client, minute = rows["client"].to_numpy(), rows["minute"].to_numpy()
    for quota_type, measure in enumerate(MEASURES):
        of_type = figures.sensors[quota_type]
        unbounded = [at for at, one in enumerate(of_type) if one.bound is None and one.mode != "exempt"]
        sums = np.zeros((len(figures.clients), len(lengths)), np.int64)
        np.add.at(sums, (client, minute), rows[measure].to_numpy())
        for at in unbounded:
            used = np.flatnonzero(sums[at])
            # A last minute of some seconds is not one.
            used = used[(lengths[used] >= RATE_SECONDS) | (len(lengths) == 1)]
            if len(used):
                rates = sums[at, used] / lengths[used] * PER_UNIT[quota_type]
                p99, name = float(np.percentile(rates, 99)), QUOTA_TYPES[quota_type]
                suggested = rounded_up(p99 * (1 + HEADROOM / 100), name)
                yield NoQuota(*figures.clients[at], name, p99, float(rates.max()), len(used), suggested)


def _not_known(figures: Figures, is_of_job: bool) -> Iterator[str]:
    if is_of_job:
        yield "who is over its quota, and held, is not found here: the job decides it"
    elif figures.scope == "broker":
        yield "who gets more than its quota is not found here: each broker has its own"
    if figures.seconds < 60 * MINUTE_SECONDS:
        yield f"only {age_text(figures.seconds * 1000)} were observed: clients of other hours are not in it"
    if not figures.is_exact:
        yield "scraped rates are means of 10 to 12 s: bursts and the sizes of requests are not known"
    elif not figures.request_bytes.any():
        yield "the usage has no counts of requests: how large a batch or a fetch is, is not known"
    else:
        yield "a batch or a fetch may be larger than the mean of its second, which is what is known"
    yield "request.timeout.ms and max.poll.interval.ms of the clients are not known: 30 s is the default"
