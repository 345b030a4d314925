"""Which quotas apply to a client: the row at each of the eight levels, which match, and who shares its sensors.

The same question about two versions of the quotas shows for which clients an edit changes anything.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.engine import QuotaEngine
from quota.entity import DEFAULT, QUOTA_TYPES, Level, can_name, entity_at
from quota.snapshot import Quota, QuotaSnapshot
from quota.tenants import MEMBER_LEVEL, Tenant, bounds_in_force
from quota.throttle_time import throttle_time_of
from quota.units import age_text, rate_text, rounded_up

_SENSOR: Final = ("quota_type", "sensor_user", "sensor_client_id", "tenant")
"""A tenant has a sensor of its own for the clients of a user that have no quota."""
OF_TENANT: Final = ("tenant", "tenant_level", "own_bound")
"""What rows about a sensor say of its tenant."""
_COMPARED: Final = ("level", "bound", "mode", "tenant")


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level, for a client: its quota entity there, the row of that entity, and the types it applies for."""

    level: Level
    user: str
    client_id: str
    quota: Quota | None
    matched: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The row for people and programs; mode and bounds are None without a row."""
        bounds = zip(QUOTA_TYPES, self.quota.bounds, strict=True) if self.quota else ()
        return {
            "level": int(self.level),
            "user": self.user,
            "client_id": self.client_id,
            "mode": self.quota.mode if self.quota else None,
            "bounds": {name: bound for name, bound in bounds if bound is not None} if self.quota else None,
            "matches": list(self.matched),
        }


@dataclass(frozen=True, slots=True)
class EffectiveQuota:
    """The quota of one type that applies to a client; level and mode None if no row matches, T also for an exempt row.

    `shared_with` are the other clients whose usage goes to the same sensor, as (user, client-id), sorted.

    The sensor may be a member of a tenant: then T is the bound in force, `own_bound` its own one, `tenant_bound` C, and
    `tenant_level` λ; None at rest. `in_shadow` is the same for a tenant in shadow mode that would have it as a member.
    """

    quota_type: str
    level: int | None
    bound: float | None
    mode: str | None
    sensor_user: str
    sensor_client_id: str
    shared_with: tuple[tuple[str, str], ...]
    tenant: str | None = None
    tenant_level: float | None = None
    own_bound: float | None = None
    tenant_bound: float | None = None
    in_shadow: "EffectiveQuota | None" = None

    @property
    def sharing(self) -> str | None:
        """What the sensor may use of its tenant's bound, as a sentence without a full stop; None without a tenant."""
        would = self.in_shadow.sharing if self.in_shadow else None
        if self.tenant is None or self.own_bound is None or self.bound is None:
            return would
        who = sensor_text(self.level, self.sensor_user, self.sensor_client_id)
        own, in_force, is_at_rest = self.own_bound, self.bound, self.tenant_level is None
        of_tenant = self.tenant, self.tenant_bound, own, in_force, is_at_rest
        text = sharing_text(who, self.quota_type, *of_tenant, is_shadow=self.mode == "shadow")
        return f"{text}; {would}" if would else text


@dataclass(frozen=True, slots=True)
class Effective:
    """The answer for a client: the eight levels, and one quota per type in the order of `QUOTA_TYPES`."""

    levels: tuple[LevelRow, ...]
    by_type: tuple[EffectiveQuota, ...]


LevelsOf = Callable[[Collection[str]], Mapping[tuple[str, str, str], float]]
"""λ of some tenants now, by tenant, quota type and mode; those at rest are left out."""


def effective(
    snapshot: QuotaSnapshot, user: str, client_id: str, others: pa.Table, levels_of: LevelsOf | None = None
) -> Effective:
    """Resolve one client as the engine does, and find those of others (user, client_id) that share its sensors.

    * `levels_of`: asked if the client has a tenant; None = every tenant is at rest.
    """
    own = resolved(pa.table({"user": [user], "client_id": [client_id]}), snapshot)
    # Equal tags find equal rows. So the answers are either all from the enforced side, or all from the shadow side.
    sharing: defaultdict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
    for row in resolved(others, snapshot):
        sharing[_sensor_of(row)].add((row["user"], row["client_id"]))
    tenants = {tenant.name: tenant for tenant in snapshot.tenants}
    would = _of_shadow_tenants(own, snapshot)
    names = {row["tenant"] for row in (*own, *would.values()) if row["tenant"]}
    levels = levels_of(names) if names and levels_of is not None else {}

    def quota_of(row: Mapping[str, Any], shared_with: Iterable[tuple[str, str]]) -> EffectiveQuota:
        columns = {name: row[name] for name in ("level", "bound", "mode", *_SENSOR)}
        return EffectiveQuota(**columns | _in_tenant(row, tenants, levels), shared_with=tuple(sorted(shared_with)))

    in_shadow = {name: quota_of(row, ()) for name, row in would.items()}
    found = [(quota_of(row, sharing[_sensor_of(row)] - {(user, client_id)}), row["quota_type"]) for row in own]
    by_type = tuple(replace(one, in_shadow=in_shadow.get(name)) for one, name in found)
    return Effective(_levels(snapshot, user, client_id, by_type), by_type)


def _of_shadow_tenants(own: Sequence[Mapping[str, Any]], snapshot: QuotaSnapshot) -> dict[str, dict[str, Any]]:
    """By quota type the rows of `resolved`, of one client, that change if the tenants in shadow mode are enforced.

    Where nothing is enforced, `resolved` itself gives the tenant in shadow mode.
    """
    enforced = {row["quota_type"]: row["tenant"] for row in own if row["mode"] == "enforce"}
    if not enforced or not any(one.is_shadow for one in snapshot.tenants):
        return {}
    tenants = tuple(replace(one, mode="enforce") for one in snapshot.tenants)
    client = pa.table({name: [own[0][name]] for name in _CLIENT})
    rows = {row["quota_type"]: row for row in resolved(client, replace(snapshot, tenants=tenants))}
    return {name: {**rows[name], "mode": "shadow"} for name, was in enforced.items() if rows[name]["tenant"] != was}


def _in_tenant(
    row: Mapping[str, Any], tenants: Mapping[str, Tenant], levels: Mapping[tuple[str, str, str], float]
) -> dict[str, Any]:
    """What a row of `resolved` is in its tenant now; empty without one."""
    if row["tenant"] is None:
        return {}
    tenant, quota_type = tenants[row["tenant"]], row["quota_type"]
    whole, level = tenant.bounds[QUOTA_TYPES.index(quota_type)], levels.get((tenant.name, quota_type, row["mode"]))
    given = (np.array([value]) for value in (row["own_bound"], tenant.factor, level or np.inf, whole))
    return {
        "tenant": tenant.name,
        "tenant_level": level,
        "own_bound": row["own_bound"],
        "tenant_bound": whole,
        "bound": float(bounds_in_force(*given)[0]),
    }


def sensor_text(level: int | None, user: str, client_id: str) -> str:
    """A sensor as answers name it: `alice`, `alice/etl`, or those clients of a user that have no quota of their own."""
    if level == MEMBER_LEVEL:
        return f"{user} without a quota of its own"
    return f"{user}/{client_id}" if user and client_id else user or client_id


def resolved(clients: pa.Table, quotas: QuotaSnapshot) -> list[dict[str, Any]]:
    """What `QuotaEngine.resolve` says of clients (user, client_id), in cluster scope; for several threads."""
    engine, lock = _engine(quotas)
    with lock:
        rows: list[dict[str, Any]] = engine.resolve(clients.select(["user", "client_id"])).to_pylist()
    return rows


@lru_cache(maxsize=8)
def _engine(quotas: QuotaSnapshot) -> tuple[QuotaEngine, Lock]:
    # Loading ten thousand rows takes 300 ms, resolving a client 1 ms.
    engine = QuotaEngine()
    engine.load_quotas(quotas)
    return engine, Lock()


def _sensor_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in _SENSOR)


def _levels(
    snapshot: QuotaSnapshot, user: str, client_id: str, by_type: tuple[EffectiveQuota, ...]
) -> tuple[LevelRow, ...]:
    rows = {(quota.user, quota.client_id): quota for quota in snapshot.quotas}
    found = []
    for level in Level:
        entity = entity_at(level, user, client_id)
        quota = rows.get(entity) if any(entity) and can_name(level, client_id) else None
        matched = tuple(one.quota_type for one in by_type if one.level == level)
        found.append(LevelRow(level, *entity, quota, matched))
    return tuple(found)


def standing_changes(clients: pa.Table, before: QuotaSnapshot, after: QuotaSnapshot) -> list[dict[str, Any]]:
    """The clients (user, client_id) and types that get another level, bound, mode or tenant, in their order.

    With the prefixes old_ and new_ the rows have these as `QuotaEngine.resolve` has them.
    """
    old, new = (resolved(clients, quotas) for quotas in (before, after))
    return [
        {
            **{name: was[name] for name in ("user", "client_id", "quota_type")},
            **{f"{age}_{name}": row.get(name) for name in _COMPARED for age, row in (("old", was), ("new", now))},
        }
        for was, now in zip(old, new, strict=True)
        if any(was.get(name) != now.get(name) for name in _COMPARED)
    ]


# Bounds that clients could not work with.

REQUEST_TIMEOUT_MS: Final = 30_000
"""`request.timeout.ms` of Kafka's clients by default."""

MAX_POLL_INTERVAL_MS: Final = 300_000
"""`max.poll.interval.ms` of Kafka's consumers by default."""

_CLIENT: Final = ["user", "client_id"]
_BYTES: Final = {"producer_byte_rate": "produced_bytes", "consumer_byte_rate": "fetched_bytes"}
_REQUESTS: Final = {
    "producer_byte_rate": ("produce request", "batch.size and max.request.size"),
    "consumer_byte_rate": ("fetch", "fetch.max.bytes and max.partition.fetch.bytes"),
}
"""What a request is called, and the client's settings that bound it."""
_LEAST_LIMIT_BYTES: Final = 16_384
"""`batch.size` of Kafka's producers by default. A client with much less could not send its records."""


def bound_warnings(moved: Sequence[Mapping[str, Any]], usage: pa.Table, engine: QuotaEngine) -> list[str]:
    """What an edit would do to clients as they are now, a sentence for each client and type that it would stop.

    A byte rate below one of its requests holds each of them up for more than a second. At a wait above
    `REQUEST_TIMEOUT_MS` its requests expire, and it sends them again; above `MAX_POLL_INTERVAL_MS` a consumer that
    waits for them leaves its group.

    Args:
        moved: of `standing_changes`. Bounds that rise, are removed, or are not enforced are left alone.
        usage: recent rows of `usage`, as `QuotaEngine.record` takes them, and their `request_count`.
        engine: new, with the quotas after the edit, in the scope that they hold in.
    """
    lowered = [row for row in moved if row["new_mode"] == "enforce" and _is_lower(row["old_bound"], row["new_bound"])]
    if not lowered or not usage.num_rows:
        return []
    largest = _largest_requests(usage)
    now_ms = pc.max(usage["last_event_ms"]).as_py()
    engine.record(usage, now_ms)
    clients = pa.table({name: [row[name] for row in lowered] for name in ("user", "client_id")})
    rows = engine.evaluate(clients.append_column("broker_id", pa.array([""] * len(lowered))), now_ms).to_pylist()
    waits_ms = {(row["user"], row["client_id"], row["quota_type"]): throttle_time_of(row) for row in rows}
    found = []
    for row in lowered:
        client, quota_type, bound = (row["user"], row["client_id"]), row["quota_type"], row["new_bound"]
        found += _large_request(client, quota_type, bound, largest)
        who = f"{'/'.join(client)}: {quota_type} {rate_text(quota_type, bound)}"
        wait_ms = waits_ms[*client, quota_type]
        if wait_ms > REQUEST_TIMEOUT_MS:
            limits = f"requests expire at {age_text(REQUEST_TIMEOUT_MS)}"
            if wait_ms > MAX_POLL_INTERVAL_MS:
                limits += f", and a consumer leaves its group at {age_text(MAX_POLL_INTERVAL_MS)}"
            found.append(f"{who} would make it wait {age_text(wait_ms)} at its present rate; {limits}")
    return found


def name_warnings(entity: tuple[str, str], clients: Iterable[tuple[str, str]]) -> list[str]:
    """The names of a quota entity that no client has, with the most similar name that one has.

    Args:
        entity: user and client-id, as in a row of `quotas`.
        clients: user and client-id of every client that was seen; without any nothing is said.
    """
    seen = list(clients)
    found = []
    for place, word in enumerate(("user", "client-id")):
        name, names = entity[place], sorted({client[place] for client in seen})
        if seen and name not in {"", DEFAULT, *names}:
            alike = get_close_matches(name, names, n=1)
            found.append(f"{word} '{name}' was never seen" + (f"; did you mean {alike[0]}?" if alike else ""))
    return found


def pattern_warnings(pattern: tuple[str, str], clients: Iterable[tuple[str, str]]) -> list[str]:
    """The same of a pattern of a tenant: of users, or of client-ids; the other one is empty."""
    place = 0 if pattern[0] else 1
    text, seen = pattern[place], list(clients)
    if not text.endswith("*"):
        return name_warnings(pattern, seen)
    if not seen or any(client[place].startswith(text[:-1]) for client in seen):
        return []
    return [f"{('user', 'client-id')[place]} pattern {text} matches no name that was seen"]


def _is_lower(old: float | None, new: float | None) -> bool:
    return new is not None and (old is None or new < old)


def large_requests(usage: pa.Table, quotas: QuotaSnapshot) -> list[str]:
    """A sentence for each client with requests that take more than a second of its bound: how large, and what to do.

    Seconds are rounded to a tenth.

    * `usage`: Rows of `usage`: user, client_id, sample_start_ms, produced_bytes, fetched_bytes, request_count. Scraped
        ones do not say how many requests there were, and do not count.
    """
    clients, largest = usage.group_by(_CLIENT).aggregate([]), _largest_requests(usage)
    return [
        sentence
        for row in resolved(clients, quotas)
        if row["mode"] == "enforce" and row["bound"] is not None
        for sentence in _large_request((row["user"], row["client_id"]), row["quota_type"], row["bound"], largest)
    ]


def _large_request(
    client: tuple[str, str], quota_type: str, bound: float, largest: Mapping[tuple[str, str, str], float]
) -> list[str]:
    largest_bytes = largest.get((*client, quota_type), 0.0)
    seconds = round(largest_bytes / bound, 1)
    if seconds <= 1.0:
        return []
    name, limits = _REQUESTS[quota_type]
    size, rate = (rate_text(quota_type, one) for one in (largest_bytes, bound))
    enough = rate_text(quota_type, rounded_up(largest_bytes, quota_type))
    smaller = f"set {limits} to at most {int(bound)}, or " if bound >= _LEAST_LIMIT_BYTES else ""
    return [
        f"one {name} of {'/'.join(client)} had at least {size.removesuffix('/s')}, {seconds} s of its {quota_type} "
        f"{rate}: {smaller}raise the quota to {enough}"
    ]


def _largest_requests(usage: pa.Table) -> dict[tuple[str, str, str], float]:
    """User, client-id and quota type -> bytes: the mean request of the sample window in which that was largest."""
    by_window = usage.filter(pc.field("request_count") > 0).group_by([*_CLIENT, "sample_start_ms"])
    counted = by_window.aggregate([(name, "sum") for name in (*_BYTES.values(), "request_count")])
    means = {name: pc.divide(counted[f"{of}_sum"], counted["request_count_sum"]) for name, of in _BYTES.items()}
    of_client = pa.table({name: counted[name] for name in _CLIENT} | means).group_by(_CLIENT)
    rows = of_client.aggregate([(name, "max") for name in means]).to_pylist()
    return {(row["user"], row["client_id"], name): row[f"{name}_max"] or 0.0 for row in rows for name in means}


# Tenants in words.

_NAMED: Final = 2
_ABOUT_EQUAL: Final = 1e-9


def sharing_text(
    who: str,
    quota_type: str,
    tenant: str,
    whole: float | None,
    own: float,
    in_force: float,
    is_at_rest: bool,
    *,
    is_shadow: bool = False,
) -> str:
    """What a member may use now, as a sentence without a full stop.

    Args:
        whole: C; None if it is not known any more.
        own: T of the member.
        in_force: what it may use now.
        is_at_rest: whether all that the members want fits into C.
        is_shadow: whether it is in shadow mode: then it would share.

    >>> sharing_text("alice", "producer_byte_rate", "team-a", 10e6, 1e6, 3.6e6, False)
    "alice shares team-a's 10.0 MB/s; 3.6 × its own 1.0 MB/s while others are idle"
    """
    of_tenant = f"{tenant}'s bound" if whole is None else f"{tenant}'s {rate_text(quota_type, whole)}"
    its_own, now = rate_text(quota_type, own), rate_text(quota_type, in_force)
    if abs(in_force - own) <= own * _ABOUT_EQUAL:
        may = f"at most its own {its_own}"
    elif is_at_rest:
        may = f"up to {now} while others are idle" if in_force > own else f"at most {now}, not its own {its_own}"
    elif in_force > own:
        may = f"{_times(in_force / own)} its own {its_own} while others are idle"
    else:
        may = f"{_times(in_force / own)} its own {its_own}, because its members want more than it has"
    return f"{who} {'would share' if is_shadow else 'shares'} {of_tenant}; {may}"


def borrowed(member: Mapping[str, Any]) -> float:
    """What a member uses above its own bound, as far as its bound in force lets it: more than that was not lent.

    * `member`: A row of the table `rates`.
    """
    used: float = min(member["observed"], member["bound"]) - member["own_bound"]
    return max(used, 0.0)


def lending_text(tenant: str, quota_type: str, members: Iterable[Mapping[str, Any]]) -> str | None:
    """Who uses more than its own bound, and who leaves that free, as a sentence without a full stop; None if none does.

    A tenth above it is worth a sentence.

    * `members`: Rows of the table `rates`, of the members with usage.

    >>> alice = {"level": 3, "sensor_user": "alice", "sensor_client_id": "", "observed": 3.7e6, "own_bound": 1e6}
    >>> bob = {"level": 3, "sensor_user": "bob", "sensor_client_id": "", "observed": 0.2e6, "own_bound": 3e6}
    >>> lending_text("team-a", "producer_byte_rate", [alice | {"bound": 3.6e6}, bob | {"bound": 4e6}])
    'team-a lends alice 2.6 MB/s that bob leaves free: it uses 3.6 × its own 1.0 MB/s'
    """
    named = [
        (borrowed(one), sensor_text(one["level"], one["sensor_user"], one["sensor_client_id"]), one) for one in members
    ]
    above = sorted(
        ((lent, name, one["own_bound"]) for lent, name, one in named if lent >= one["own_bound"] / 10), reverse=True
    )
    if not above:
        return None
    free = sorted(
        (one["observed"] - own, name) for _, name, one in named if one["observed"] < (own := one["own_bound"])
    )
    lent, others = rate_text(quota_type, sum(one[0] for one in above)), _names([name for _, name in free]) or "others"
    leave = "leaves" if len(free) == 1 else "leave"
    lends = f"{tenant} lends {_names([name for _, name, _ in above])} {lent} that {others} {leave} free"
    if len(above) > 1:
        return lends
    more, _, own = above[0]
    return f"{lends}: it uses {_times(1 + more / own)} its own {rate_text(quota_type, own)}"


def _times(factor: float) -> str:
    return f"{factor:.1f} ×" if factor >= 1 else f"{factor:.2g} ×"


def _names(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return " and ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
