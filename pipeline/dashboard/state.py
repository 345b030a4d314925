"""The state of one moment: the immutable value that the reader makes, and every judgement of it. Pure.

The API gives these judgements, and the page only draws them: so whoever asks gets the same one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from pipeline.job.status import Health
from pipeline.tables.rates import NEAR
from pipeline.tables.throttles import Held, count_text
from quota.effective import borrowed, lending_text, sensor_text
from quota.tenants import DEMAND_SHARE, Tenant, bounds_of
from quota.units import age_text, rate_text
from schemas.throttle_record import Target, verb, written_ms

_MANY_TIMES: Final = 2
_WHOLE_TIMES: Final = 10

Standing = Literal["over", "near", "within", "shadow", "unused"]


def standing(used: float | None, mode: str, near: float = NEAR) -> Standing:
    """How a rate stands to its bound: `used` is O / T, None without usage. A shadow quota is never over or near."""
    if mode == "shadow":
        return "shadow"
    if not used:
        return "unused"
    return "over" if used > 1 else "near" if used >= near else "within"


def client_text(user: str, client_id: str | None) -> str:
    """The client as commands take it: `alice/etl`, `alice` without a client-id, `alice/*` for all its client-ids."""
    return f"{user}/*" if client_id is None else f"{user}/{client_id}" if client_id else user


def used_text(used: float) -> str:
    """A rate in terms of its bound, cut off, so that 100 % is never shown of what is below it.

    >>> used_text(0.997), used_text(1.26), used_text(5.0), used_text(31.4)
    ('99 %', '126 %', '5 ×', '31 ×')
    """
    if used < _MANY_TIMES:
        return f"{int(used * 100)} %"
    return f"{int(used)} ×" if used >= _WHOLE_TIMES else f"{int(used * 10) / 10:g} ×"


def times_text(used: float) -> str:
    """The rate as it is written before "its quota": "126 % of", "5 ×"."""
    text = used_text(used)
    return f"{text} of" if text.endswith("%") else text


def verdict(now_ms: int, held: Sequence[Mapping[str, Any]], nearest: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The sentence that the view Now begins with.

    Args:
        now_ms: The instant, by wall clock.
        held: Rows of `throttled_row` that count as a hold.
        nearest: Sensors, the nearest to their bound first: user, client_id, share and mode.

    Returns:
        `kind`: held, over, near, within, or none (no usage under a quota); and `text`.
    """
    if held:
        return {"kind": "held", "text": _held_text(now_ms, held)}
    if not nearest:
        return {"kind": "none", "text": "no client used anything under a quota lately"}
    first = next((row for row in nearest if row["mode"] == "enforce"), nearest[0])
    who = f"{client_text(first['user'], first['client_id'])} {used_text(first['share'])}"
    if first["mode"] != "enforce":
        return {"kind": "within", "text": f"no quota is enforced here, all are in shadow mode; nearest: {who}"}
    if first["share"] > 1:
        return {"kind": "over", "text": f"kquota holds no client; over its quota for a moment: {who}"}
    text = f"all within their quotas; nearest: {who}"
    return {"kind": "near" if first["share"] >= NEAR else "within", "text": text}


def _held_text(now_ms: int, held: Sequence[Mapping[str, Any]]) -> str:
    worst = max(held, key=lambda row: (row["most_used"] or 0, row["throttled_until_ms"]))
    counts = Held(held).counts
    times = "" if worst["most_used"] is None else f", {times_text(worst['most_used'])} its quota"
    who = client_text(worst["user"], worst["client_id"])
    most = ": " if sum(counts) == 1 else "; most over is "
    left = age_text(max(worst["throttled_until_ms"] - now_ms, 1_000))
    return f"kquota holds {count_text(*counts)}{most}{who}, {left} left{times}"


def collapsed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records, newest first, as one row per target: its newest, with their number (`records`) and the first's instant.

    `rows` have the columns of `Target`, and `at_ms`.
    """
    found: dict[Target, dict[str, Any]] = {}
    for row in rows:
        newest = found.setdefault(Target.of(row), {**row, "records": 0})
        newest |= {"records": newest["records"] + 1, "first_ms": row["at_ms"]}
    return [*found.values()]


# Tenants: a bar of C with the members inside it.

MOST_TENANTS: Final = 20


def nearest_tenants(uses: Iterable[Mapping[str, Any]], tenants: Sequence[Tenant]) -> list[dict[str, Any]]:
    """Rows of `Rates.tenants` with their standing, and then the tenants without usage."""
    idle = {"broker_id": "", "used": 0.0, "share": 0.0, "members": 0, "held": 0, "tenant_level": None}
    found = [dict(row) for row in uses]
    modes, used = {one.name: one.mode for one in tenants}, {(row["tenant"], row["quota_type"]) for row in found}
    for (name, quota_type), bound in sorted(bounds_of(tenants).items()):
        if (name, quota_type) not in used:
            of_tenant = {"tenant": name, "quota_type": quota_type, "mode": modes[name], "bound": bound}
            found.append({**idle, **of_tenant, "is_at_bound": False})
    return [{**row, "standing": standing(row["share"], row["mode"], DEMAND_SHARE)} for row in found]


def tenant_row(row: Mapping[str, Any], members: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of `nearest_tenants` with those of its members that use the most, and a sentence.

    Each member has a `name`, what it `borrowed`, and `throttled`.
    """
    of_tenant = ("tenant", "quota_type", "broker_id", "mode")
    shown = [
        {
            **picked(one, ("sensor_user", "sensor_client_id", "level", "observed", "bound", "own_bound")),
            "name": sensor_text(one["level"], one["sensor_user"], one["sensor_client_id"]),
            "borrowed": borrowed(one),
            "throttled": one["held_until_ms"] is not None,
        }
        for one in members
        if all(one[name] == row[name] for name in of_tenant)
    ]
    return {**row, "shown": shown, "text": _tenant_text(row, shown)}


def _tenant_text(row: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    tenant, quota_type = row["tenant"], row["quota_type"]
    lending = lending_text(tenant, quota_type, shown)
    if lending is not None and (row["tenant_level"] is None or row["tenant_level"] >= 1):
        return lending
    used, bound = rate_text(quota_type, row["used"]), rate_text(quota_type, row["bound"])
    if not row["members"]:
        return f"no member of {tenant} uses anything"
    if row["is_at_bound"]:
        return f"{tenant} is at its bound: its members want more than {bound}, and have {used}"
    if row["share"] >= DEMAND_SHARE:
        return f"{tenant} is nearly full: it uses {used} of its {bound}"
    return f"{tenant} uses {used} of its {bound}: all that its members want fits"


# The figures of the view Pipeline, each with what it should be.

_AGE_TARGET_MS: Final = 5_000
_DELAY_TARGET_MS: Final = 5_000
_PUNCTUAL_MS: Final = 50


def gauges(
    *,
    age_ms: int | None,
    delay_ms: int | None,
    ahead_ms: int,
    events_per_second: float | None,
    late: int,
    held: int,
    late_p99_ms: int | None,
    unreadable: int,
) -> list[dict[str, Any]]:
    """The figures on top of the view Pipeline, each with its target, how it stands to it, and what it means.

    Returns:
        `name`, `label`, `value` (None = not known), `unit` (ms, count or per_second), `target` in words ("" for none),
        `standing` (good, bad or unknown) and `why`.
    """
    delay = (
        ("Clock ahead", ahead_ms, "By how much the clock of the usage is ahead of this machine's.", 0)
        if ahead_ms
        else ("Delay of usage", delay_ms, "How old the newest usage was when the job read it.", _DELAY_TARGET_MS)
    )
    return [
        _gauge(
            "age", "Last update", age_ms, "ms", _AGE_TARGET_MS,
            "How long ago the job stored its newest micro-batch. If it grows, running throttles end by themselves and "
            "no new ones begin.",
        ),
        _gauge("delay", delay[0], delay[1], "ms", delay[3], delay[2]),
        _late(events_per_second, late),
        _gauge("held", "Held", held, "count", None, "Throttles of clients and users that have not ended."),
        _gauge(
            "punctuality", "Release punctuality", late_p99_ms, "ms", _PUNCTUAL_MS,
            "How late a client is let go after the end of its throttle: 99 of 100 releases are within this time.",
        ),
        _gauge(
            "unreadable", "Unreadable messages", unreadable, "count", 0,
            "Messages of the last hour that are not usage events. They are kept as dead letters, and count for no one.",
        ),
    ]  # fmt: skip


def _late(events_per_second: float | None, late: int) -> dict[str, Any]:
    why = "Usage events that the job reads. One that is late is older than the windows of the rates: it counts for the "
    found = _gauge("events", "Usage events", events_per_second, "per_second", None, f"{why}debt, not for the rate.")
    target = "none late" if not late else f"none late, {late:,} are"
    return found | {"target": target, "standing": "bad" if late else "unknown" if events_per_second is None else "good"}


def _gauge(name: str, label: str, value: float | None, unit: str, most: int | None, why: str) -> dict[str, Any]:
    target = ""
    if most is not None:
        target = f"at most {most / 1000:g} s" if most >= 1_000 else f"at most {most} ms" if most else "0"
    stands = "unknown" if value is None or most is None else "good" if value <= most else "bad"
    return {
        "name": name,
        "label": label,
        "value": value,
        "unit": unit,
        "target": target,
        "standing": stands,
        "why": why,
    }


# The view Now. Pure.

MOST_THROTTLED: Final = 200
MOST_RECENT: Final = 30


def picked(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Some columns of a row."""
    return {name: row[name] for name in names}


_CLIENT: Final = ("user", "client_id", "broker_id", "quota_type", "observed", "bound")
_RECORD: Final = ("cause", "throttled_until_ms", "decision_id", "quota_version")


def throttled_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Who is held, a client or a user: by what, since when and until when, whose, and at which level."""
    return {
        **picked(
            row,
            (*_CLIENT, *_RECORD, "except_client_ids", "since_ms", "records", "most_used", "level", "owner", "tenant"),
        ),
        "owed_until_ms": max(written_ms(row) + row["owed_ms"], row["throttled_until_ms"]),
    }


def talker_row(row: Mapping[str, Any], held: Held) -> dict[str, Any]:
    """A sensor and how much of its bound it uses."""
    shown = (*_CLIENT, "sensor_user", "sensor_client_id", "clients", "level", "mode", "owner", "tenant")
    judged = {"used": row["share"], "standing": standing(row["share"], row["mode"])}
    return {**picked(row, shown), **judged, "throttled": bool(held.by(row["user"], row["client_id"]))}


def event_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record of the throttle topic, in short, with who is responsible for its client now."""
    return {
        **picked(row, (*_CLIENT, *_RECORD, "throttle_time_ms", "owed_ms", "lateness_ms", "publish_seq", "owner")),
        "at_ms": written_ms(row),
        "verb": verb(row),
    }


@dataclass(frozen=True, slots=True)
class State:
    """All of it.

    Attributes:
        now_ms: The instant.
        seq: Counts up with every value that differs in more than its time.
        quotas: Version in force, the newest version, scope and mode.
        batch: The newest row of `batches`; None before the first, and `cluster`, too.
        running: Rows of `running_throttles` with `holds_of`, level and owner; who is held longest comes first.
        recent: The newest rows of `throttle_events` with their owner, newest first.
        seconds: (second, produced bytes, fetched bytes, requests) of the last minutes.
        nearest: Of `Rates.nearest`, with the owner.
        tenants: Rows of `tenant_row`.
        counts: Of `Rates.counts`, with the number of active clients and what all of them used per second.
        rates_at_ms: The instant of the rates, in event time.
    """

    now_ms: int
    seq: int
    health: Health
    cluster: str | None = None
    quotas: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, Any] | None = None
    running: Sequence[Mapping[str, Any]] = ()
    recent: Sequence[Mapping[str, Any]] = ()
    seconds: Sequence[tuple[int, int, int, int]] = ()
    nearest: Sequence[Mapping[str, Any]] = ()
    tenants: Sequence[Mapping[str, Any]] = ()
    counts: Mapping[str, Any] = field(default_factory=dict)
    rates_at_ms: int = 0

    @property
    def held(self) -> Held:
        """Who is held."""
        return Held(self.running)

    def head(self) -> dict[str, Any]:
        """What every view needs: the time, the health, the versions."""
        return {
            "now_ms": self.now_ms,
            "seq": self.seq,
            "health": asdict(self.health),
            "as_of_ms": self.now_ms - (self.health.last_batch_age_ms or 0),
            "cluster": self.cluster,
            "quotas": dict(self.quotas),
            "batch_id": None if self.batch is None else self.batch["batch_id"],
        }

    def summary(self) -> dict[str, Any]:
        """The view Now: the verdict, totals, who is held, the nearest to their bound, the newest records by client."""
        throttled = [throttled_row(row) for row in self.running]
        held = self.held
        by_type = dict(Counter(row["quota_type"] for row in self.running))
        return {
            **self.head(),
            "rates_at_ms": self.rates_at_ms,
            "verdict": verdict(self.now_ms, throttled, self.nearest),
            "totals": {**self.counts, "throttled": len(throttled), "throttled_by_type": by_type},
            "throttled": throttled[:MOST_THROTTLED],
            "tenants": [dict(row) for row in self.tenants],
            "talkers": [talker_row(row, held) for row in self.nearest],
            "recent": collapsed(event_row(row) for row in self.recent)[:MOST_RECENT],
            "seconds": [list(second) for second in self.seconds],
        }
