"""Tenants: one bound for a team, and what its members do not use, lent inside it.

A tenant has, for each quota type, a bound C over its members. A member is a sensor:

* one with a quota of its own that a pattern of the tenant matches. Its T is Kafka's.
* all clients of one user in the tenant that have no quota of their own, together. Its T is `member_bounds`, a tenth of
  C if none is set. So a new client-id gains nothing.

A pattern is a name, or the beginning of names, of users or of client-ids. One of a client-id matches sensors of a pair
and clients without a quota, but never the sensor of a user, which has no client-id. A sensor of a client-id alone is
shared by all users and belongs to no tenant. The most specific pattern wins: user before client-id, a name before the
beginning of one, the longer before the shorter. An exempt client is no member.

**The formula.** One number for each tenant and quota type, the level λ, says what every member may use:

    λ = the largest x with  Σ min(d_i, H_i, x · T_i) ≤ C          bound of a member = min(H_i, λ · T_i, C)

d_i is what a member wants, T_i its own bound, H_i the most that it may ever have: T_i, or with `lend` `ceiling` · T_i.
This is weighted water-filling. A member that wants less than its share leaves the rest to the others. If the T of all
members fit into C, then λ is 1 or more: lending takes nothing from a lender.

Sorting solves it. Let w_i = min(d_i, H_i), and let the members be in the order of w_i / T_i. The first i of them take
all they want, and the others share the rest by their T:

    λ_i = (C − (w_1 + … + w_i)) / (T_(i + 1) + … + T_n)

λ is the largest λ_i, as in `quota.broker_level`, which is the case that all T are 1. If all fit, λ is infinity.

**An example.** A tenant has 4 MB per second; its members have 1, 1 and 2. The first wants all it can get, the others
use 0.1 each. So it may have 3.8. Once all want more, each has its own bound.

>>> own, no_end, together = np.array([1.0, 1.0, 2.0]), np.full(3, np.inf), np.zeros(3, np.int64)
>>> levels(np.array([np.inf, 0.1, 0.1]), own, no_end, together, np.array([4.0]))
array([3.8])
>>> levels(no_end, own, no_end, together, np.array([4.0]))
array([1.])

A member that is at its bound hides what it wants, as one does that a broker throttles: its demand counts as unbounded
(`DEMAND_SHARE`), until what it owes is paid and N · w after. Otherwise its share would be lent as soon as it is held. λ
falls at once, and rises slowly (`moved`), so that it does not swing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quota.arrays import Floats, Ids, Ints
from quota.entity import DEFAULT, QUOTA_TYPES
from quota.errors import InvalidQuotas
from quota.snapshot import Bounds, Mode, bound_of

OF_TENANT: Final = (("tenant", pa.string()), ("tenant_level", pa.float64()), ("own_bound", pa.float64()))
"""Columns of a member of a tenant: its name, λ (null at rest), and T of the member; null for one of none."""

NO_TENANT: Final = -1
"""Stands for "no tenant" in an array of positions."""

MEMBER_LEVEL: Final = 9
"""The level of a member without a quota of its own. Kafka has the levels 1 to 8."""

DEMAND_SHARE: Final = 0.9
"""A member that uses this part of its bound, or owes, would take more."""

_RISE_PER_SECOND: Final = 0.1
_MEMBER_SHARE: Final = 0.1
_PREFIX: Final = "*"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A team of clients with a bound of its own.

    Attributes:
        name: of the tenant.
        users: patterns of users; one that ends with `*` is the beginning of names.
        client_ids: the same for client-ids.
        bounds: C, one per quota type in the order of `QUOTA_TYPES`; None for none.
        member_bounds: T of a user's clients without a quota of their own, one per quota type; None where C is.
        lend: whether a member may use more than its own bound while others leave it unused.
        ceiling: how many times its own bound a member may use at most; None for no limit but C.
        mode: `shadow`: it only records whom it would throttle.
    """

    name: str
    users: tuple[str, ...]
    client_ids: tuple[str, ...]
    bounds: Bounds
    member_bounds: Bounds
    lend: bool = False
    ceiling: float | None = None
    mode: Mode = "enforce"

    @property
    def is_shadow(self) -> bool:
        """True if it only records whom it would throttle."""
        return self.mode == "shadow"

    @property
    def factor(self) -> float:
        """H / T: how many times its own bound a member may have."""
        if not self.lend:
            return 1.0
        return np.inf if self.ceiling is None else self.ceiling


def bounds_of(tenants: Iterable[Tenant]) -> dict[tuple[str, str], float]:
    """C of each tenant and quota type that has one, by their names."""
    return {(one.name, name): of for one in tenants for name, of in zip(QUOTA_TYPES, one.bounds, strict=True) if of}


def read_tenants(
    rows: Iterable[Mapping[str, object]], version: int, mode: Literal["enforce", "shadow"] = "enforce"
) -> tuple[Tenant, ...]:
    """Check rows of the table `tenants` and freeze them, in the order of their names.

    Args:
        rows: mappings with the columns of `TenantRow`. A column that is missing or null means none, `enforce`, False.
        version: of the table, for the error.
        mode: `shadow` reads every tenant as a shadow tenant.

    Raises:
        InvalidQuotas: a name is empty or given twice, a tenant has no bound or no pattern, a bound is not a finite
            number above 0, a ceiling is below 1 or given without `lend`, a pattern is empty, `<default>`, or stands in
            two tenants. The error has all mistakes.
    """
    problems: list[str] = []
    found: dict[str, Tenant] = {}
    owner_of: dict[tuple[str, str], str] = {}
    for row in rows:
        tenant = _read(row, mode, problems)
        if tenant.name in found:
            problems.append(f"tenant {tenant.name!r} has several rows")
        found[tenant.name] = tenant
        for part, patterns in (("user", tenant.users), ("client-id", tenant.client_ids)):
            for pattern in dict.fromkeys(patterns):
                other = owner_of.setdefault((part, pattern), tenant.name)
                if other != tenant.name:
                    problems.append(f"{part} pattern {pattern!r} is in the tenants {other!r} and {tenant.name!r}")
    if problems:
        raise InvalidQuotas(version, problems, "tenants")
    return tuple(found[name] for name in sorted(found))


def _read(row: Mapping[str, object], table_mode: str, problems: list[str]) -> Tenant:
    name = row.get("tenant")
    where = f"tenant {name!r}"
    found: list[str] = [] if isinstance(name, str) and name else ["it has no name"]
    users, client_ids = (_patterns(row, column, found) for column in ("user_patterns", "client_id_patterns"))
    if not users and not client_ids:
        found.append("it has no pattern, so it has no members")
    bounds = [bound_of(row.get(one), one, where, problems) for one in QUOTA_TYPES]
    if all(row.get(one) is None for one in QUOTA_TYPES):
        found.append(f"it has no bound; set one of {', '.join(QUOTA_TYPES)}")
    own = [bound_of(row.get(f"member_{one}"), f"member_{one}", where, problems) for one in QUOTA_TYPES]
    members = [
        None if bound is None else member or bound * _MEMBER_SHARE for bound, member in zip(bounds, own, strict=True)
    ]
    lend, ceiling = bool(row.get("lend")), bound_of(row.get("ceiling"), "ceiling", where, problems)
    if ceiling is not None and (ceiling < 1 or not lend):
        found.append(f"ceiling is {ceiling}; it can be 1 or more, with lend")
    mode = row.get("mode") or "enforce"
    if mode not in {"enforce", "shadow"}:
        found.append(f"unknown mode {mode!r}; known are enforce, shadow")
    problems += [f"{where}: {one}" for one in found]
    mode = cast("Mode", "shadow" if table_mode == "shadow" else mode)
    of_types = cast("tuple[Bounds, Bounds]", (tuple(bounds), tuple(members)))
    return Tenant(str(name), users, client_ids, *of_types, lend, ceiling, mode)


def _patterns(row: Mapping[str, object], column: str, problems: list[str]) -> tuple[str, ...]:
    given = row.get(column)
    patterns = [one for one in given if isinstance(one, str)] if isinstance(given, list | tuple) else []
    for one in patterns:
        if not one or one == DEFAULT or _PREFIX in one[:-1]:
            rule = f"a pattern is a name, or the beginning of names with {_PREFIX} at its end"
            problems.append(f"{column} has {one!r}; {rule}")
    return tuple(patterns)


class Patterns:
    """The patterns of some tenants: which tenant each name is in."""

    def __init__(self, tenants: Sequence[Tenant] | Mapping[int, Tenant], part: Literal["users", "client_ids"]) -> None:
        """Index the patterns of one part. Positions count the tenants as they are given, or are the keys."""
        of_name: dict[str, int] = {}
        of_length: dict[int, dict[str, int]] = {}
        for position, tenant in tenants.items() if isinstance(tenants, Mapping) else enumerate(tenants):
            for pattern in getattr(tenant, part):
                if pattern.endswith(_PREFIX):
                    of_length.setdefault(len(pattern) - 1, {})[pattern[:-1]] = position
                else:
                    of_name[pattern] = position
        self._names = _Texts.of(of_name)
        self._prefixes = [(length, _Texts.of(of_length[length])) for length in sorted(of_length, reverse=True)]

    def match(self, names: pa.Array) -> Ids:
        """The position of the tenant of each name, int64[n]; `NO_TENANT` for none, and for the name ""."""
        names = pc.fill_null(names.cast(pa.string()), "")
        found = self._names.find(names)
        for length, texts in self._prefixes:
            rows = np.flatnonzero(found == NO_TENANT)
            if not len(rows):
                break
            found[rows] = texts.find(pc.utf8_slice_codeunits(names.take(pa.array(rows)), 0, length))
        found[pc.equal(names, "").to_numpy(zero_copy_only=False)] = NO_TENANT
        return found

    def beginnings(self, names: pa.Array) -> pa.Array:
        """The longest of the beginnings of names that each name has; "" for none."""
        found = np.full(len(names), "", np.object_)
        for length, texts in reversed(self._prefixes):
            begins = pc.utf8_slice_codeunits(names, 0, length)
            rows = np.flatnonzero(texts.find(begins) != NO_TENANT)
            found[rows] = begins.take(pa.array(rows)).to_pylist()
        return pa.array(found, pa.string())


@dataclass(frozen=True, slots=True)
class _Texts:
    texts: pa.Array
    positions: Ids

    @classmethod
    def of(cls, positions: Mapping[str, int]) -> Self:
        return cls(pa.array([*positions], pa.string()), np.array([*positions.values(), NO_TENANT], np.int64))

    def find(self, names: pa.Array) -> Ids:
        at = pc.fill_null(pc.index_in(names.cast(pa.string()), self.texts), -1).to_numpy(zero_copy_only=False)
        found: Ids = self.positions[at]
        return found


def levels(demand: Floats, own: Floats, highest: Floats, tenants: Ids, bounds: Floats) -> Floats:
    """λ of many tenants.

    Args:
        demand: d of each of n members, per second, float64[n]: 0 or more, infinity for unbounded.
        own: T of each, above 0.
        highest: H of each, at least T; infinity for none.
        tenants: the tenant of each, int64[n], positions in `bounds`.
        bounds: C of each of m tenants, above 0.

    Returns:
        float64[m]; infinity where all that is wanted fits into C. The order of members changes nothing, not in the last
        bit either, and no tenant's level depends on another tenant. A member that wants nothing changes nothing.
    """
    ratio = np.minimum(demand, highest) / own
    rows = np.flatnonzero(ratio > 0)
    rows = rows[np.argsort(tenants[rows], kind="stable")]
    members = np.empty(len(rows), np.complex128)  # is sorted by its real part, then by the other one
    members.real, members.imag = ratio[rows], own[rows]
    counts = np.bincount(tenants[rows], minlength=len(bounds))
    begins = np.cumsum(counts) - counts
    found = np.full(len(bounds), np.inf)
    # In rows of one length, filled up with zeros: so the sums of a tenant have no other tenant's numbers in them.
    sizes = np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    for size in np.unique(sizes[counts > 0]).tolist():
        of_size = np.flatnonzero((sizes == size) & (counts > 0))
        places = np.arange(1 << size)
        at = np.minimum(begins[of_size, None] + places, len(members) - 1)
        of_rows = np.where(places < counts[of_size, None], members[at], 0)
        of_rows.sort(axis=1)
        found[of_size] = _levels(of_rows.real, of_rows.imag, bounds[of_size])
    return found


def _levels(ratio: Floats, own: Floats, bounds: Floats) -> Floats:
    """λ of tenants of one row each: w / T of its members in order, and their T; both 0 where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.where(own > 0, ratio * own, 0.0)
        sums = np.cumsum(wanted, axis=1)
        before = np.concatenate((np.zeros((len(bounds), 1)), sums[:, :-1]), axis=1)
        rest = np.cumsum(own[:, ::-1], axis=1)[:, ::-1]
        shares = np.where(own > 0, (bounds[:, None] - before) / rest, -np.inf)
    return np.where(sums[:, -1] <= bounds, np.inf, shares.max(axis=1))


def moved(level: Floats, target: Floats, rest: Floats, since_ms: Ints) -> Floats:
    """λ after a step: it falls at once, and rises by a tenth a second at most.

    Args:
        level: λ so far, float64[m]; infinity at rest.
        target: what `levels` says now.
        rest: where the bound of every member is as high as it can be, max(min(H, C) / T). From there on λ is at rest.
        since_ms: the time since the step before, 0 or more.
    """
    with np.errstate(invalid="ignore"):
        risen = level * (1.0 + _RISE_PER_SECOND * (since_ms / 1000.0))
    after = np.where(target <= level, target, np.minimum(target, risen))
    return np.where(after >= rest, np.inf, after)


def bounds_in_force(own: Floats, factor: Floats, level: Floats, bound: Floats) -> Floats:
    """What members may use now, min(H, λ · T, C), with H = `factor` · T; T must be finite and above 0."""
    return np.minimum(np.minimum(factor, level) * own, bound)


LevelKey = tuple[int, int]
"""A side and the position of a quota type."""

Names = NDArray[np.object_]

_NO_TERMS: Final = -1
_RESTORED: Final = -2
"""Under the terms that come into force first: λ was restored before any."""


@dataclass(slots=True)
class _Moves:
    """λ of every tenant for one key, when it was moved last, and under which terms."""

    level: Floats
    at_ms: Ints
    under: Ids

    @classmethod
    def none(cls, size: int) -> Self:
        """All are at rest."""
        return cls(np.full(size, np.inf), np.zeros(size, np.int64), np.full(size, _NO_TERMS))

    def grow(self, size: int) -> None:
        """Make room for this many tenants; the new ones are at rest."""
        new = self.none(size - len(self.level))
        self.level, self.at_ms = np.append(self.level, new.level), np.append(self.at_ms, new.at_ms)
        self.under = np.append(self.under, new.under)


class TenantLevels:
    """λ of every tenant, in broker scope of every tenant and broker, for some keys: a side and a quota type each.

    A tenant (and broker) has a number, which stays. Numbers of no tenant are `NO_TENANT`. Under other terms a tenant
    begins at rest: who has raised its bound need not wait until λ has risen.
    """

    def __init__(self) -> None:
        self._tenants: tuple[Tenant, ...] = ()
        self._numbers: dict[tuple[str, str], int] = {}
        self._moves: dict[LevelKey, _Moves] = {}
        self._terms: dict[Tenant, int] = {}
        self._in_force = np.full(1, _NO_TERMS)  # the terms of each number now
        self.names: Names = np.array([None], np.object_)
        """The tenant of each number; None for `NO_TENANT`."""
        self._factor = np.ones(1)
        self._bounds = np.full((len(QUOTA_TYPES), 1), np.inf)

    def load(self, tenants: tuple[Tenant, ...]) -> None:
        """Put the terms of tenants in force. λ of those that have other ones is at rest."""
        self._tenants = tenants
        self._set_terms()

    def forget_stale(self) -> None:
        """Forget λ of the tenants that are gone, or have other terms now.

        It is part of a batch, and not of `load`: between two batches checks may already be under later quotas, of which
        an engine that is restored from the batches does not know.
        """
        terms = self._in_force[:-1]
        for moves in self._moves.values():
            moves.level[(moves.under != terms) | (terms == _NO_TERMS)] = np.inf

    def _set_terms(self) -> None:
        of_name = {tenant.name: tenant for tenant in self._tenants}
        names = [name for name, _ in self._numbers]
        self.names = np.array([*names, None], np.object_)
        found = [of_name.get(name) for name in names]
        self._factor = np.array([*(one.factor if one else 1.0 for one in found), 1.0])
        bounds = [[np.inf if one is None or (c := one.bounds[at]) is None else c for one in found] for at in range(3)]
        self._bounds = np.pad(np.array(bounds).reshape(3, len(found)), ((0, 0), (0, 1)), constant_values=np.inf)
        terms = [_NO_TERMS if one is None else self._terms.setdefault(one, len(self._terms)) for one in found]
        self._in_force = np.array([*terms, _NO_TERMS], np.int64)
        for moves in self._moves.values():
            moves.grow(len(names))
            begun = (moves.under == _RESTORED) & (self._in_force[:-1] != _NO_TERMS)
            moves.under[begun] = self._in_force[:-1][begun]

    def bounds_of_type(self, quota_type: int) -> Floats:
        """C of every number, and infinity for `NO_TENANT`."""
        bounds: Floats = self._bounds[quota_type]
        return bounds

    def numbers(self, tenants: Ids, brokers: "pa.Array | None") -> Ids:
        """The number of each of n tenants, by its position among those in force, and of its broker (None: for all)."""
        found = np.full(len(tenants), NO_TENANT, np.int64)
        rows = np.flatnonzero(tenants != NO_TENANT)
        if not len(rows):
            return found
        names = pa.repeat("", len(rows)) if brokers is None else brokers.take(pa.array(rows))
        codes = names.dictionary_encode()
        size = len(codes.dictionary)
        each, of_row = np.unique(
            tenants[rows] * size + codes.indices.to_numpy(zero_copy_only=False), return_inverse=True
        )
        names_of = codes.dictionary.to_pylist()
        both = (divmod(one, size) for one in each.tolist())
        keys = [(self._tenants[tenant].name, names_of[code]) for tenant, code in both]
        found[rows] = self._add(keys)[of_row]
        return found

    def _add(self, keys: Iterable[tuple[str, str]]) -> Ids:
        before = len(self._numbers)
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in keys]
        if len(self._numbers) > before:
            self._set_terms()
        return np.array(numbers, np.int64)

    def levels(self, key: LevelKey, numbers: Ids) -> Floats:
        """λ of tenants; infinity at rest, and for no tenant."""
        moves = self._moves.get(key)
        if moves is None:
            return np.full(len(numbers), np.inf)
        is_known = (moves.under == self._in_force[:-1]) | (moves.under == _RESTORED)
        return np.append(np.where(is_known, moves.level, np.inf), np.inf)[numbers]

    def bounds(self, key: LevelKey, numbers: Ids, own: Floats) -> Floats:
        """The bounds in force of sensors with these own bounds, infinity for none: min(H, λ · T, C) for members."""
        found = own.copy()
        rows = np.flatnonzero((numbers != NO_TENANT) & np.isfinite(own))
        if len(rows):
            of_rows = numbers[rows]
            level, bound = self.levels(key, of_rows), self._bounds[key[1]][of_rows]
            found[rows] = bounds_in_force(own[rows], self._factor[of_rows], level, bound)
        return found

    def move(self, key: LevelKey, members: Ids, demand: Floats, own: Floats, now_ms: int) -> None:
        """Move λ of the tenants of these members, which must be all of theirs that want anything.

        Args:
            members: the number of the tenant of each of n members.
            demand: d of each, own: T of each.
            now_ms: the instant; not before the last move of any of them.
        """
        moving, tenants = np.unique(members, return_inverse=True)
        moves = self._moves.setdefault(key, _Moves.none(len(self._numbers)))
        bounds = self._bounds[key[1]][moving]
        highest = self._factor[members] * own
        target = levels(demand, own, highest, tenants, bounds)
        rest = np.zeros(len(moving))
        wants = demand > 0
        np.maximum.at(rest, tenants[wants], np.minimum(highest, bounds[tenants])[wants] / own[wants])
        moves.level[moving] = moved(self.levels(key, moving), target, rest, now_ms - moves.at_ms[moving])
        moves.at_ms[moving], moves.under[moving] = now_ms, self._in_force[moving]

    def rest(self, key: LevelKey, numbers: Ids) -> None:
        """Say that tenants are at rest, whatever terms λ was moved under."""
        if key in self._moves:
            self._moves[key].level[numbers] = np.inf

    def move_clock(self, moved_ms: int) -> None:
        """Move the instants of all moves by this much."""
        for moves in self._moves.values():
            moves.at_ms += moved_ms

    def stored(self, key: LevelKey) -> list[tuple[str, str, float, int]]:
        """Tenant, broker, λ and the instant of its last move, of each that is not at rest."""
        if key not in self._moves:
            return []
        level, names = self.levels(key, np.arange(len(self._numbers))), list(self._numbers)
        at_ms = self._moves[key].at_ms
        return [(*names[at], float(level[at]), int(at_ms[at])) for at in np.flatnonzero(np.isfinite(level)).tolist()]

    def restore(self, rows: Mapping[LevelKey, Iterable[tuple[str, str, float, int]]]) -> None:
        """Set levels to what `stored` returned, for each key. All others are at rest."""
        self._moves = {}
        for key, of_key in rows.items():
            stored = [*of_key]
            numbers = self._add([(tenant, broker) for tenant, broker, _, _ in stored])
            moves = self._moves[key] = _Moves.none(len(self._numbers))
            terms = self._in_force[numbers]
            moves.under[numbers] = np.where(terms == _NO_TERMS, _RESTORED, terms)
            moves.level[numbers] = [level for _, _, level, _ in stored]
            moves.at_ms[numbers] = [at_ms for _, _, _, at_ms in stored]


def tenant_columns(tenant: Names, level: Floats, own_bound: Floats) -> list[pa.Array]:
    """The columns of `OF_TENANT`. λ is infinity at rest."""
    names = pa.array(tenant, pa.string())
    is_none = names.is_null().to_numpy(zero_copy_only=False)
    return [
        names,
        pa.array(level, mask=is_none | np.isinf(level)),
        pa.array(own_bound, mask=is_none),
    ]
