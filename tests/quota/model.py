"""The rules a second time, written as simply as possible: dicts, loops, one number at a time.

It shares nothing with `quota`. So the engine, and everything else that computes quota decisions, can be compared with
it. It is slow on purpose.
"""

import math
from collections.abc import Container, Iterable, Mapping
from typing import Any

DEFAULT = "<default>"
Row = Mapping[str, Any]


class QuotaRows:
    """The rows of a quota table."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def load_quotas(self, rows: Iterable[Row], mode: str = "enforce") -> None:
        """Replace all quotas. With `mode` "shadow" every `enforce` row becomes a `shadow` row."""
        self.rows = {}
        for row in rows:
            own = row.get("mode") or "enforce"
            own = "shadow" if mode == "shadow" and own == "enforce" else own
            self.rows[row.get("user") or "", row.get("client_id") or ""] = {**row, "mode": own}

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
        return any(row["mode"] == wanted and row.get(quota_type) is not None for row in self.rows.values())

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

    def bound_of(self, side: str, quota_type: str, tags: tuple[str, str]) -> float | None:
        """T of a sensor; None if there is no quota, if it is exempt, and if the type is not recorded."""
        quota = self.quota_of(side, quota_type, tags)
        if quota is None or quota[1]["mode"] == "exempt" or not self.records(side, quota_type):
            return None
        return float(quota[1][quota_type])


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


__all__ = ["DEFAULT", "TYPES", "ScalarModel"]
TYPES = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
Tags = tuple[str, str, str]


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
    """Sample windows (start -> [sum, last event]) and one token bucket."""

    def __init__(self) -> None:
        self.windows: dict[int, list[int]] = {}
        self.tokens: float | None = None
        self.refilled_at_ms = 0


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
        self.sensors: dict[tuple[str, str, Tags], Sensor] = {}
        self.evaluated_at_ms: int | None = None

    def used(self, row: Row, quota_type: str) -> int | None:
        """What a usage row used of a type: bytes or ns; None for no request of the type."""
        if quota_type == "producer_byte_rate":
            return row.get("produced_bytes")
        if quota_type == "consumer_byte_rate":
            return row.get("fetched_bytes")
        io, network = row.get("io_time_ns"), row.get("network_time_ns")
        return None if io is None and network is None else (io or 0) + (network or 0)

    def key(self, side: str, quota_type: str, entity: Row) -> tuple[str, str, Tags]:
        broker = (entity.get("broker_id") or "") if self.by_broker else ""
        tags = self.tags(side, quota_type, entity["user"] or "", entity["client_id"] or "")
        return side, quota_type, (broker, *tags)

    def begin_epoch(self, last_ms: int, now_ms: int) -> None:
        """The clocks were set back: all windows are empty, and the times of the buckets move with the clocks."""
        for sensor in self.sensors.values():
            sensor.windows.clear()
            sensor.refilled_at_ms += now_ms - last_ms
        self.evaluated_at_ms = now_ms

    def forgive(self, user: str, client: str) -> None:
        """The sensors with these tags, or those of all clients of the user, are as new."""
        for (_, _, tags), sensor in self.sensors.items():
            if tags[1] == user and (tags[2] == client or (client == DEFAULT and tags[2])):
                sensor.windows.clear()
                sensor.tokens = None

    def record(self, rows: Iterable[Row], evaluated_at_ms: int) -> list[dict[str, Any]]:
        """Add usage, then decide. Returns the violated quotas in the order of the engine's answer."""
        now = self.evaluated_at_ms = evaluated_at_ms
        oldest = (now // self.w - self.n) * self.w
        rows = sorted(rows, key=lambda row: row["sample_start_ms"])
        violated = []
        for side in ("enforced", "shadow"):
            for quota_type in TYPES:
                if not self.records(side, quota_type):
                    continue
                charges: dict[tuple[str, str, Tags], dict[tuple[int, bool], int]] = {}
                entities = {}
                in_time: set[tuple[str, str, Tags]] = set()
                behind: set[tuple[str, str, Tags]] = set()
                for row in rows:
                    used = self.used(row, quota_type)
                    if used is None:
                        continue
                    key = self.key(side, quota_type, row)
                    sensor = self.sensors.setdefault(key, Sensor())
                    entities[key[2][0], row["user"] or "", row["client_id"] or ""] = key
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
                violated += self.violations(side, quota_type, entities, in_time, behind, now)
        self.apply(violated)
        violated.sort(
            key=lambda d: (d["broker_id"], d["user"], d["client_id"], TYPES.index(d["quota_type"]), d["mode"])
        )
        return violated

    def charge(self, key: tuple[str, str, Tags], by_window: dict[tuple[int, bool], int], now: int) -> None:
        """Charge the sensor's bucket, window by window, in each the usage of a gap first."""
        bound = self.bound_of("enforced", key[1], key[2][1:])
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

    def rate(self, key: tuple[str, str, Tags], now: int) -> tuple[float, int]:
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
        entities: Mapping[Tags, tuple[str, str, Tags]],
        in_time: Container[tuple[str, str, Tags]],
        behind: Container[tuple[str, str, Tags]],
        now: int,
    ) -> list[dict[str, Any]]:
        """One row for each entity whose sensor has a rate above its bound, or usage that is behind and a large debt."""
        found = []
        for (broker, user, client), key in entities.items():
            bound = self.bound_of(side, quota_type, key[2][1:])
            observed, window_ms = self.rate(key, now)
            if bound is None:
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
            quota = self.quota_of(side, quota_type, key[2][1:])
            assert quota is not None
            level, row = quota
            if side == "shadow" and row["mode"] != "shadow":
                continue
            raw = java_round(divided(observed - bound, bound) * window_ms) if observed > bound else 0
            owed = max(owed, raw)
            asked = owed if is_debt else raw
            cap: str | int | None = self.caps[quota_type]
            cap = {"none": None, "window": window_ms, "sample_window": self.w}.get(str(cap), cap)
            found.append(
                {
                    "broker_id": broker,
                    "user": user,
                    "client_id": client,
                    "quota_type": quota_type,
                    "observed": observed,
                    "bound": bound,
                    "window_ms": window_ms,
                    "raw_throttle_time_ms": raw,
                    "max_throttle_time_ms": cap,
                    "throttle_time_ms": asked if cap is None else min(asked, int(cap)),
                    "level": level,
                    "sensor_user": key[2][1],
                    "sensor_client_id": key[2][2],
                    "mode": "enforce" if side == "enforced" else "shadow",
                    "asks_hold": False,
                    "cause": "debt" if is_debt else "violation",
                    "tokens": tokens,
                    "owed_ms": owed,
                    "tenant": None,
                    "tenant_level": None,
                    "own_bound": None,
                }
            )
        return found

    def apply(self, violated: list[dict[str, Any]]) -> None:
        """Mark the enforced rows that ask for a hold: every one of a user's sensor that is held as a whole.

        Of the others it is one of each entity: the longest; of equal ones request, producer, consumer.
        """
        order = ("request_percentage", "producer_byte_rate", "consumer_byte_rate")
        best: dict[Tags, dict[str, Any]] = {}
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
        tags = [self.tags("enforced", quota_type, user, name) for name in (client, "a name without a row")]
        return tags == [(user, "")] * 2

    def evaluate(self, entities: Iterable[Row], evaluated_at_ms: int) -> list[dict[str, Any]]:
        """What each entity owes, per quota type."""
        answers = []
        for entity in entities:
            for quota_type in TYPES:
                key = self.key("enforced", quota_type, entity)
                bound = self.bound_of("enforced", quota_type, key[2][1:])
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
                        "broker_id": key[2][0],
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

    def tokens_at(self, key: tuple[str, str, Tags], bound: float, now: int) -> float:
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
                side = "enforced"
                key = self.key(side, quota_type, entity)
                quota = self.quota_of(side, quota_type, key[2][1:])
                if quota is None:
                    shadow_key = self.key("shadow", quota_type, entity)
                    shadow = self.quota_of("shadow", quota_type, shadow_key[2][1:])
                    if shadow is not None and shadow[1]["mode"] == "shadow":
                        side, key, quota = "shadow", shadow_key, shadow
                bound = self.bound_of(side, quota_type, key[2][1:])
                violated = False
                if self.evaluated_at_ms is not None and bound is not None:
                    violated = self.rate(key, self.evaluated_at_ms)[0] > bound
                answers.append(
                    {
                        "broker_id": key[2][0],
                        "user": entity["user"] or "",
                        "client_id": entity["client_id"] or "",
                        "quota_type": quota_type,
                        "level": None if quota is None else quota[0],
                        "sensor_user": key[2][1],
                        "sensor_client_id": key[2][2],
                        "bound": bound,
                        "mode": None if quota is None else quota[1]["mode"],
                        "violated": violated,
                        "tenant": None,
                        "tenant_level": None,
                        "own_bound": None,
                    }
                )
        return answers
