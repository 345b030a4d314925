"""The rules a second time, written as simply as possible: dicts, loops, one number at a time.

It shares nothing with `quota`. So the engine, and everything else that computes quota decisions, can be compared with
it. It is slow on purpose.
"""

import math
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any, NamedTuple

DEFAULT = "<default>"
MEMBER_LEVEL = 9
Row = Mapping[str, Any]


class Sensed(NamedTuple):
    """The tags of a sensor. `apart`: the tenant that has this sensor of a user for itself; "" for none."""

    user: str
    client_id: str
    apart: str = ""


class Standing(NamedTuple):
    """What holds for a sensor: level, mode, T (None for an exempt one), and the tenant that it is a member of."""

    level: int
    mode: str
    own_bound: float | None
    tenant: Row | None


class QuotaRows:
    """The rows of a quota table, and of a table of tenants."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.tenants: dict[str, Row] = {}

    def load_quotas(self, rows: Iterable[Row], mode: str = "enforce", tenants: Iterable[Row] = ()) -> None:
        """Replace all quotas. With `mode` "shadow" every `enforce` row becomes a `shadow` row."""
        self.rows = {}
        for row in rows:
            own = row.get("mode") or "enforce"
            own = "shadow" if mode == "shadow" and own == "enforce" else own
            self.rows[row.get("user") or "", row.get("client_id") or ""] = {**row, "mode": own}
        self.tenants = {
            row["tenant"]: {**row, "mode": "shadow" if mode == "shadow" else row.get("mode") or "enforce"}
            for row in tenants
        }

    def seen(self, side: str, quota_type: str) -> dict[tuple[str, str], Row]:
        """The rows that one side sees for a type."""
        return {
            entity: row
            for entity, row in self.rows.items()
            if row["mode"] == "exempt"
            or (row.get(quota_type) is not None and (side == "shadow" or row["mode"] == "enforce"))
        }

    def records(self, side: str, quota_type: str) -> bool:
        """True if usage of the type is recorded on this side at all."""
        wanted = "enforce" if side == "enforced" else "shadow"
        rows = [*self.rows.values(), *self.tenants.values()]
        return any(row["mode"] == wanted and row.get(quota_type) is not None for row in rows)

    def tags(self, side: str, quota_type: str, user: str, client: str) -> tuple[str, str]:
        """The tags of the sensor to which the usage of an entity goes."""
        rows = self.seen(side, quota_type)
        kinds = {(bool(row_user), bool(row_client)) for row_user, row_client in rows}
        if len(kinds) != 1:
            first = next((e for e in levels(user, client).values() if e in rows), ("", "client"))
            kinds = {(bool(first[0]), bool(first[1]))}
        ((has_user, has_client),) = kinds
        return user if has_user else "", client if has_client else ""

    def quota_of(self, side: str, quota_type: str, tags: tuple[str, str]) -> tuple[int, Row] | None:
        """Level and row that bound a sensor, found by its tags. Only rows that name the same parts count."""
        rows = self.seen(side, quota_type)
        for level, entity in levels(*tags).items():
            if entity in rows and (bool(entity[0]), bool(entity[1])) == (bool(tags[0]), bool(tags[1])):
                return level, rows[entity]
        return None

    def tenant_by_name(self, side: str, part: str, name: str) -> Row | None:
        """The tenant that a user or a client-id is in: by its name before the beginning of it, the longest first."""
        found = None
        for tenant in self.tenants.values():
            for pattern in tenant.get(part) or ():
                is_match = name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
                place = not pattern.endswith("*"), len(pattern)
                is_seen = side == "shadow" or tenant["mode"] == "enforce"
                if name and is_seen and is_match and (found is None or place > found[0]):
                    found = place, tenant
        return None if found is None else found[1]

    def tenant_of(self, side: str, quota_type: str, user: str, client: str) -> Row | None:
        """The tenant of a user and a client-id ("" for none) that bounds the type; a user's pattern comes first."""
        of_user = self.tenant_by_name(side, "user_patterns", user)
        found = of_user or self.tenant_by_name(side, "client_id_patterns", client)
        return None if found is None or found.get(quota_type) is None else found

    def sensor(self, side: str, quota_type: str, user: str, client: str) -> Sensed:
        """The sensor to which the usage of an entity goes: that of its tags, or of a user's clients in a tenant."""
        tags = self.tags(side, quota_type, user, client)
        tenant = self.tenant_of(side, quota_type, user, client)
        if not user or tenant is None or self.quota_of(side, quota_type, tags) is not None:
            return Sensed(*tags)
        return Sensed(user, "", "" if self.tenant_by_name(side, "user_patterns", user) else tenant["tenant"])

    def standing(self, side: str, quota_type: str, sensor: Sensed) -> Standing | None:
        """What holds for a sensor; None for no quota and no tenant."""
        user, client, apart = sensor
        quota = None if apart else self.quota_of(side, quota_type, (user, client))
        if quota is not None:
            level, row = quota
            if row["mode"] == "exempt":
                return Standing(level, "exempt", None, None)
            tenant = self.tenant_of(side, quota_type, user, client) if user else None
            is_shadow = "shadow" in {row["mode"], "" if tenant is None else tenant["mode"]}
            return Standing(level, "shadow" if is_shadow else "enforce", float(row[quota_type]), tenant)
        tenant = self.tenants.get(apart) if apart else None if client else self.tenant_of(side, quota_type, user, "")
        is_seen = tenant is not None and (side == "shadow" or tenant["mode"] == "enforce")
        if tenant is None or not is_seen or tenant.get(quota_type) is None:
            return None
        own_bound = tenant.get(f"member_{quota_type}") or tenant[quota_type] * 0.1
        return Standing(MEMBER_LEVEL, tenant["mode"], float(own_bound), tenant)


def levels(user: str, client: str) -> dict[int, tuple[str, str]]:
    """Per level the entity that a quota row must name to match. An empty or reserved name has no row of its own."""
    own_user = user if user not in {"", DEFAULT} else "no such user\0"
    own_client = client if client not in {"", DEFAULT} else "no such client\0"
    return {
        1: (own_user, own_client),
        2: (own_user, DEFAULT),
        3: (own_user, ""),
        4: (DEFAULT, own_client),
        5: (DEFAULT, DEFAULT),
        6: (DEFAULT, ""),
        7: ("", own_client),
        8: ("", DEFAULT),
    }


__all__ = ["DEFAULT", "TYPES", "ScalarModel", "Sensed"]
TYPES = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
Key = tuple[str, str, str, Sensed]
"""Side, quota type, broker and sensor."""


def java_round(x: float) -> int:
    """Java's `Math.round(double)`: half up; NaN is 0; values outside a long become its limits."""
    if math.isnan(x):
        return 0
    if math.isinf(x) or abs(x) >= 2.0**63:
        return 2**63 - 1 if x > 0 else -(2**63)
    floor = math.floor(x)
    return floor + 1 if x - floor >= 0.5 else floor


def divided(a: float, b: float) -> float:
    """a / b with doubles: an overflow is infinity."""
    try:
        return a / b
    except OverflowError:
        return math.inf


class Sensor:
    """Sample windows (start -> [sum, last event]), one token bucket, and when it wanted more than its bound."""

    def __init__(self) -> None:
        self.windows: dict[int, list[int]] = {}
        self.tokens: float | None = None
        self.refilled_at_ms = 0
        self.demanded_at_ms: int | None = None


class Level:
    """λ of a tenant, when it was moved last, and under which terms; under others it begins at rest."""

    def __init__(self, tenant: Row | None = None) -> None:
        self.value = math.inf
        self.moved_at_ms: int | None = None
        self.terms = terms_of(tenant or {})


def terms_of(tenant: Row) -> dict[str, Any]:
    """What λ depends on: not who is responsible, and why."""
    return {name: value for name, value in tenant.items() if name not in {"owner", "note"}}


def factor_of(tenant: Row) -> float:
    """H / T."""
    return float(tenant.get("ceiling") or math.inf) if tenant.get("lend") else 1.0


def level_of(members: Iterable[tuple[float, float, float]], bound: float) -> float:
    """The largest x with Σ min(d, H, x · T) ≤ C, of (d, T, H) of each; infinity if all fits."""
    ratios = sorted((min(demand, highest) / own, own) for demand, own, highest in members)
    ratios = [one for one in ratios if one[0] > 0]
    used, found = 0.0, -math.inf
    for at, (ratio, own) in enumerate(ratios):
        rest = 0.0
        for _, other in reversed(ratios[at:]):
            rest += other
        found = max(found, (bound - used) / rest)
        used += ratio * own
    return math.inf if used <= bound else found


class ScalarModel(QuotaRows):
    """A simple quota engine. Its arguments are those of `QuotaEngine`, but `caps` maps a quota type to its cap."""

    def __init__(
        self,
        num_samples: int = 11,
        sample_window_ms: int = 1000,
        caps: Mapping[str, str | int] | None = None,
        scope: str = "cluster",
        carry_debt: bool = True,
    ) -> None:
        super().__init__()
        self.n = num_samples
        self.w = sample_window_ms
        self.caps = {TYPES[0]: "window", TYPES[1]: "window", TYPES[2]: "sample_window", **(caps or {})}
        self.by_broker = scope == "broker"
        self.carry_debt = carry_debt
        self.sensors: dict[Key, Sensor] = {}
        self.tenant_levels: dict[tuple[str, str, str, str], Level] = {}
        self.evaluated_at_ms: int | None = None

    def used(self, row: Row, quota_type: str) -> int | None:
        """What a usage row used of a type: bytes or ns; None for no request of the type."""
        if quota_type == "producer_byte_rate":
            return row.get("produced_bytes")
        if quota_type == "consumer_byte_rate":
            return row.get("fetched_bytes")
        io, network = row.get("io_time_ns"), row.get("network_time_ns")
        return None if io is None and network is None else (io or 0) + (network or 0)

    def key(self, side: str, quota_type: str, entity: Row) -> Key:
        broker = (entity.get("broker_id") or "") if self.by_broker else ""
        return side, quota_type, broker, self.sensor(side, quota_type, entity["user"] or "", entity["client_id"] or "")

    def level(self, key: Key, tenant: Row) -> Level:
        """λ of a tenant: on a side, of a type and a broker."""
        level = self.tenant_levels.get((*key[:3], tenant["tenant"]))
        return level if level is not None and level.terms == terms_of(tenant) else Level(tenant)

    def bound(self, key: Key) -> float | None:
        """The bound in force of a sensor: T, or of a member min(H, λ · T, C). None for none."""
        standing = self.standing(key[0], key[1], key[3])
        if standing is None or standing.own_bound is None or standing.tenant is None:
            return None if standing is None else standing.own_bound
        factor, level = factor_of(standing.tenant), self.level(key, standing.tenant).value
        return min(min(factor, level) * standing.own_bound, float(standing.tenant[key[1]]))

    def about(self, key: Key) -> dict[str, Any]:
        """The columns of a sensor: its tags; of a member its tenant, λ (None at rest), and T."""
        standing = self.standing(key[0], key[1], key[3])
        columns = {"broker_id": key[2], "quota_type": key[1]}
        columns |= {"sensor_user": key[3].user, "sensor_client_id": key[3].client_id}
        if standing is None or standing.tenant is None:
            return columns | dict.fromkeys(("tenant", "tenant_level", "own_bound"))
        level = self.level(key, standing.tenant).value
        of_level = None if math.isinf(level) else level
        return columns | {
            "tenant": standing.tenant["tenant"],
            "tenant_level": of_level,
            "own_bound": standing.own_bound,
        }

    def move_levels(self, side: str, quota_type: str, used: Collection[Key], now: int) -> None:
        """Move λ of each tenant that has a member with usage in a batch, in its broker."""
        moving: dict[tuple[str, str], dict[Key, Standing]] = {}
        for key in self.sensors:
            user, client, apart = key[3]
            in_force = self.sensor(side, quota_type, user, client)
            is_in_force = self.standing(side, quota_type, in_force) is None if apart else in_force == key[3]
            standing = self.standing(side, quota_type, key[3]) if key[:2] == (side, quota_type) else None
            if is_in_force and standing is not None and standing.tenant is not None:
                moving.setdefault((key[2], standing.tenant["tenant"]), {})[key] = standing
        for members in moving.values():
            if any(key in used for key in members):
                self.move_level(members, now)

    def move_level(self, members: Mapping[Key, Standing], now: int) -> None:
        """Move λ of one tenant with these members: down at once, up by a tenth a second."""
        found, rest, wanting = [], 0.0, []
        key, standing = next(iter(members.items()))
        tenant = standing.tenant
        assert tenant is not None
        level, most = self.level(key, tenant), float(tenant[key[1]])
        for key, standing in members.items():
            sensor, bound, own = self.sensors[key], self.bound(key), standing.own_bound
            assert bound is not None
            assert own is not None
            observed, _ = self.rate(key, now)
            if observed >= 0.9 * bound or self.debt_ms(key, bound, now) > 0:
                sensor.demanded_at_ms = now
                wanting.append(key)
            elif sensor.demanded_at_ms is not None:
                sensor.demanded_at_ms = min(sensor.demanded_at_ms, now)
            is_recent = sensor.demanded_at_ms is not None and now - sensor.demanded_at_ms < self.n * self.w
            demand = math.inf if is_recent else observed
            highest = factor_of(tenant) * own
            found.append((demand, own, highest))
            rest = max(rest, min(highest, most) / own if demand > 0 else 0.0)
        target = level_of(found, most)
        since_ms = 0 if level.moved_at_ms is None else now - level.moved_at_ms
        risen = level.value * (1.0 + 0.1 * (since_ms / 1000.0))
        after = target if target <= level.value else min(target, risen)
        level.value = math.inf if after >= rest else after
        level.moved_at_ms = now
        self.tenant_levels[(*key[:3], tenant["tenant"])] = level
        for key in wanting:
            bound, (observed, window_ms) = self.bound(key), self.rate(key, now)
            assert bound is not None
            x = java_round(divided(observed - bound, bound) * window_ms) if observed > bound else 0
            owed_ms = max(min(x, self.n * self.w), java_round(self.debt_ms(key, bound, now)))
            self.sensors[key].demanded_at_ms = now + owed_ms

    def debt_ms(self, key: Key, bound: float, now: int) -> float:
        """How long the bucket of a sensor needs to come back to 0; 0 if it owes nothing, and without a bucket."""
        if key[0] != "enforced" or not self.carry_debt:
            return 0.0
        return max(divided(-self.tokens_at(key, bound, now), bound) * 1000.0, 0.0)

    def begin_epoch(self, last_ms: int, now_ms: int) -> None:
        """The clocks were set back: all windows are empty, and the times of the buckets move with the clocks."""
        for sensor in self.sensors.values():
            sensor.windows.clear()
            sensor.refilled_at_ms += now_ms - last_ms
            if sensor.demanded_at_ms is not None:
                sensor.demanded_at_ms += now_ms - last_ms
        for level in self.tenant_levels.values():
            if level.moved_at_ms is not None:
                level.moved_at_ms += now_ms - last_ms
        self.evaluated_at_ms = now_ms

    def forgive(self, user: str, client: str) -> None:
        """The sensors with these tags, or those of all clients of the user, are as new."""
        for (_, _, _, tags), sensor in self.sensors.items():
            if tags.user == user and (tags.client_id == client or (client == DEFAULT and tags.client_id)):
                sensor.windows.clear()
                sensor.tokens = None
                sensor.demanded_at_ms = None

    def record(self, rows: Iterable[Row], evaluated_at_ms: int) -> list[dict[str, Any]]:
        """Add usage, then decide. Returns the violated quotas in the order of the engine's answer."""
        now = self.evaluated_at_ms = evaluated_at_ms
        self.tenant_levels = {
            key: level
            for key, level in self.tenant_levels.items()
            if key[3] in self.tenants and level.terms == terms_of(self.tenants[key[3]])
        }
        oldest = (now // self.w - self.n) * self.w
        rows = sorted(rows, key=lambda row: row["sample_start_ms"])
        violated = []
        for side in ("enforced", "shadow"):
            for quota_type in TYPES:
                if not self.records(side, quota_type):
                    continue
                charges: dict[Key, dict[tuple[int, bool], int]] = {}
                entities = {}
                in_time: set[Key] = set()
                behind: set[Key] = set()
                for row in rows:
                    used = self.used(row, quota_type)
                    if used is None:
                        continue
                    key = self.key(side, quota_type, row)
                    sensor = self.sensors.setdefault(key, Sensor())
                    entities[key[2], row["user"] or "", row["client_id"] or ""] = key
                    start = row["sample_start_ms"]
                    in_time |= {key} if start >= oldest else set()
                    behind |= {key} if start < (now // self.w - 1) * self.w else set()
                    if start >= oldest:
                        window = sensor.windows.setdefault(start, [0, start])
                        window[0] += used
                        window[1] = max(window[1], row["last_event_ms"])
                    by_window = charges.setdefault(key, {})
                    place = start, not row.get("in_gap")
                    by_window[place] = by_window.get(place, 0) + used
                if side == "enforced" and self.carry_debt:
                    for key, by_window in charges.items():
                        self.charge(key, by_window, now)
                self.move_levels(side, quota_type, charges, now)
                violated += self.violations(side, quota_type, entities, in_time, behind, now)
        self.apply(violated)
        violated.sort(
            key=lambda d: (d["broker_id"], d["user"], d["client_id"], TYPES.index(d["quota_type"]), d["mode"])
        )
        return violated

    def charge(self, key: Key, by_window: dict[tuple[int, bool], int], now: int) -> None:
        """Charge the sensor's bucket, window by window, in each the usage of a gap first."""
        bound = self.bound(key)
        if bound is None:
            return
        sensor = self.sensors[key]
        burst = self.n * (self.w / 1000.0) * bound
        for (start, is_heard), used in sorted(by_window.items()):
            most_bursts = 10.0 if is_heard else 1.0
            refill_to = min(start + self.w, now)
            if sensor.tokens is None:
                sensor.tokens, sensor.refilled_at_ms = burst, refill_to
            since_ms = max(refill_to - sensor.refilled_at_ms, 0)
            tokens = max(sensor.tokens, -10.0 * burst) + bound * (since_ms / 1000.0)
            sensor.refilled_at_ms += since_ms
            tokens = min(tokens, burst)
            amount = used * 1e-7 if key[1] == "request_percentage" else float(used)
            sensor.tokens = max(tokens - amount, min(tokens, -most_bursts * burst))

    def rate(self, key: Key, now: int) -> tuple[float, int]:
        """O and W of a sensor."""
        sensor = self.sensors.get(key, Sensor())
        kept = {start: w for start, w in sensor.windows.items() if now - w[1] < self.n * self.w}
        elapsed = now - min(kept) if kept else 0
        full = elapsed // self.w
        if full < self.n - 1:
            elapsed += (self.n - 1 - full) * self.w
        window_ms = max(elapsed, 1)
        total = float(min(sum(min(w[0], 2**63 - 1) for w in kept.values()), 2**63 - 1))
        if key[1] == "request_percentage":
            total *= 1e-7
        return total / (window_ms / 1000.0), window_ms

    def violations(
        self,
        side: str,
        quota_type: str,
        entities: Mapping[tuple[str, str, str], Key],
        in_time: Container[Key],
        behind: Container[Key],
        now: int,
    ) -> list[dict[str, Any]]:
        """One row for each entity whose sensor has a rate above its bound, or usage that is behind and a large debt."""
        found = []
        for (_, user, client), key in entities.items():
            standing, bound = self.standing(side, quota_type, key[3]), self.bound(key)
            observed, window_ms = self.rate(key, now)
            if standing is None or bound is None:
                continue
            has_buckets = side == "enforced" and self.carry_debt
            is_debt = not (key in in_time and observed > bound)
            if is_debt and not has_buckets:
                continue
            at_ms = self.sensors[key].refilled_at_ms if is_debt else now
            tokens = self.tokens_at(key, bound, at_ms) if has_buckets else None
            owed = max(java_round(divided(-tokens, bound) * 1000.0), 0) if tokens is not None else 0
            recent = (now // self.w - 1) * self.w
            is_behind = key in behind and max(self.sensors[key].windows, default=0) < recent
            if is_debt and not (is_behind and owed > (self.n + 1) * self.w):
                continue
            if side == "shadow" and standing.mode != "shadow":
                continue
            raw = java_round(divided(observed - bound, bound) * window_ms) if observed > bound else 0
            owed = max(owed, raw)
            asked = owed if is_debt else raw
            cap: str | int | None = self.caps[quota_type]
            cap = {"none": None, "window": window_ms, "sample_window": self.w}.get(str(cap), cap)
            found.append(
                {
                    "user": user,
                    "client_id": client,
                    "observed": observed,
                    "bound": bound,
                    "window_ms": window_ms,
                    "raw_throttle_time_ms": raw,
                    "max_throttle_time_ms": cap,
                    "throttle_time_ms": asked if cap is None else min(asked, int(cap)),
                    "level": standing.level,
                    "mode": "enforce" if side == "enforced" else "shadow",
                    "asks_hold": False,
                    "cause": "debt" if is_debt else "violation",
                    "tokens": tokens,
                    "owed_ms": owed,
                    **self.about(key),
                }
            )
        return found

    def apply(self, violated: list[dict[str, Any]]) -> None:
        """Mark the enforced rows that ask for a hold: every one of a user's sensor that is held as a whole.

        Of the others it is one of each entity: the longest; of equal ones request, producer, consumer.
        """
        order = ("request_percentage", "producer_byte_rate", "consumer_byte_rate")
        best: dict[tuple[str, str, str], dict[str, Any]] = {}
        for row in sorted(violated, key=lambda row: order.index(row["quota_type"])):
            entity = (row["broker_id"], row["user"], row["client_id"])
            longest = best[entity]["throttle_time_ms"] if entity in best else 0
            if row["mode"] == "enforce" and self.holds_user(row["quota_type"], row["sensor_user"], row["client_id"]):
                row["asks_hold"] = row["throttle_time_ms"] > 0
            elif row["mode"] == "enforce" and row["throttle_time_ms"] > longest:
                best[entity] = row
        for row in best.values():
            row["asks_hold"] = True

    def holds_user(self, quota_type: str, user: str, client: str) -> bool:
        """Whether a throttle of the sensor of a client holds the user: it is the user's, and a new name is in it."""
        sensors = [self.sensor("enforced", quota_type, user, name) for name in (client, "a name without a row")]
        return bool(user) and sensors == [Sensed(user, "")] * 2

    def evaluate(self, entities: Iterable[Row], evaluated_at_ms: int) -> list[dict[str, Any]]:
        """What each entity owes, per quota type."""
        answers = []
        for entity in entities:
            for quota_type in TYPES:
                key = self.key("enforced", quota_type, entity)
                bound = self.bound(key)
                observed, window_ms = self.rate(key, evaluated_at_ms)
                tokens, owed = None, 0
                if bound is not None:
                    x = java_round(divided(observed - bound, bound) * window_ms) if observed > bound else 0
                    if self.carry_debt:
                        tokens = self.tokens_at(key, bound, evaluated_at_ms)
                        x = max(x, java_round(divided(-tokens, bound) * 1000.0))
                    owed = max(x, 0)
                answers.append(
                    {
                        "broker_id": key[2],
                        "user": entity["user"] or "",
                        "client_id": entity["client_id"] or "",
                        "quota_type": quota_type,
                        "observed": observed,
                        "bound": bound,
                        "window_ms": window_ms,
                        "tokens": tokens,
                        "owed_ms": owed,
                    }
                )
        return answers

    def tokens_at(self, key: Key, bound: float, now: int) -> float:
        """The tokens of a sensor's bucket at an instant."""
        burst = self.n * (self.w / 1000.0) * bound
        sensor = self.sensors.get(key)
        if sensor is None or sensor.tokens is None:
            return burst
        since = max(now - sensor.refilled_at_ms, 0) / 1000.0
        return min(burst, max(sensor.tokens, -10.0 * burst) + bound * since)

    def resolve(self, entities: Iterable[Row]) -> list[dict[str, Any]]:
        """Which quota applies to each entity and type: the enforced one, else a shadow one."""
        answers = []
        for entity in entities:
            for quota_type in TYPES:
                key = self.key("enforced", quota_type, entity)
                standing = self.standing("enforced", quota_type, key[3])
                if standing is None:
                    shadow_key = self.key("shadow", quota_type, entity)
                    shadow = self.standing("shadow", quota_type, shadow_key[3])
                    if shadow is not None and shadow.mode == "shadow":
                        key, standing = shadow_key, shadow
                bound, violated = self.bound(key), False
                if self.evaluated_at_ms is not None and bound is not None:
                    violated = self.rate(key, self.evaluated_at_ms)[0] > bound
                answers.append(
                    {
                        "user": entity["user"] or "",
                        "client_id": entity["client_id"] or "",
                        "level": None if standing is None else standing.level,
                        "bound": bound,
                        "mode": None if standing is None else standing.mode,
                        "violated": violated,
                        **self.about(key),
                    }
                )
        return answers
