"""One version of the quota table, with the tenants, as an immutable value."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Final, Literal, Self, cast

from quota.entity import DEFAULT, QUOTA_TYPES, Level, level_of
from quota.errors import InvalidQuotas

if TYPE_CHECKING:
    from quota.tenants import Tenant

Mode = Literal["enforce", "shadow", "exempt"]
MODES: Final = ("enforce", "shadow", "exempt")

Bounds = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of one entity.

    Attributes:
        user: raw name, `<default>`, or "" when the user is not part of the entity.
        client_id: raw name, `<default>`, or "" when the client-id is not part of the entity.
        bounds: one per quota type, in the order of `QUOTA_TYPES`; bytes per second, and percent of one thread. None
            for no bound of that type: then the row does not exist for that type.
        mode: `enforce`, `shadow`, or `exempt`, which matches for every type and bounds none of them.
    """

    user: str
    client_id: str
    bounds: Bounds
    mode: Mode
    level: Level


@dataclass(frozen=True, slots=True)
class QuotaSnapshot:
    """All quotas of one version of the table, one per entity, in the order of the rows.

    Attributes:
        forgiven: user, client-id and `forgiven_until_ms` of each row that forgives the debts of a sensor. The row names
            the sensor by its tags, whatever quota it has; with the client-id `<default>` it names those of every
            client-id of the user.
        tenants: those of one version of the table `tenants`, in the order of their names.
        tenants_version: that version; −1 without such a table.
    """

    version: int
    quotas: tuple[Quota, ...]
    forgiven: tuple[tuple[str, str, int], ...] = ()
    tenants: "tuple[Tenant, ...]" = ()
    tenants_version: int = -1

    @property
    def versions(self) -> tuple[int, int]:
        """The versions of both tables. Of two snapshots the later one has the larger pair."""
        return self.version, self.tenants_version

    @classmethod
    def from_rows(
        cls, rows: Iterable[Mapping[str, object]], version: int, mode: Literal["enforce", "shadow"] = "enforce"
    ) -> Self:
        """Check rows of the quota table and freeze them.

        Args:
            rows: mappings with the columns of `quotas`. Other columns are ignored. A bound that is missing or null
                means no bound; a mode that is missing or null means `enforce`. Byte rates may be fractions. A row
                that has a `forgiven_until_ms`, no bound, and is not exempt is no quota: it only forgives.
            mode: `shadow` reads every `enforce` row as a `shadow` row, so that nothing is enforced.

        Raises:
            InvalidQuotas: a bound is not a finite number above 0, a mode is unknown, a name is not text, an entity is
                given twice, or both parts of a row are empty. The error has all mistakes of all rows.
        """
        problems: list[str] = []
        seen: dict[tuple[str, str], int] = {}
        quotas, forgiven = [], []
        for number, row in enumerate(rows, start=1):
            quota = _read_row(row, number, mode, problems)
            if quota is None:
                continue
            first = seen.setdefault((quota.user, quota.client_id), number)
            if first != number:
                entity = f"user {quota.user!r}, client-id {quota.client_id!r}"
                problems.append(f"row {number}: {entity} is in row {first} too")
                continue
            until_ms = row.get("forgiven_until_ms")
            if isinstance(until_ms, int):
                forgiven.append((quota.user, quota.client_id, until_ms))
            if until_ms is None or quota.mode == "exempt" or any(bound is not None for bound in quota.bounds):
                quotas.append(quota)
        if mode not in {"enforce", "shadow"}:
            problems.append(f"the table cannot be read in mode {mode!r}; known are enforce, shadow")
        if problems:
            raise InvalidQuotas(version, problems)
        return cls(version, tuple(quotas), tuple(forgiven))

    def forgiven_since(self, before: "QuotaSnapshot") -> tuple[tuple[str, str], ...]:
        """User and client-id of the rows that forgive, and did not yet, or not until so late, in an earlier version."""
        if self.forgiven == before.forgiven:
            return ()
        known = {one[:2]: one[2] for one in before.forgiven}
        return tuple(one[:2] for one in self.forgiven if one[2] > known.get(one[:2], 0))

    def forgiven_until_ms(self, sensors: Iterable[tuple[str, str]]) -> list[int]:
        """Until when the debts of each of these sensors are forgiven, by its tags ("" for none); 0 for never."""
        until_ms = {one[:2]: one[2] for one in self.forgiven}
        return [
            max(until_ms.get((user, client_id), 0), until_ms.get((user, DEFAULT), 0) if client_id else 0)
            for user, client_id in sensors
        ]


SnapshotAt = Callable[[int, int], QuotaSnapshot]
"""Returns the quotas and tenants of these versions of their tables."""


def _read_row(row: Mapping[str, object], number: int, table_mode: str, problems: list[str]) -> Quota | None:
    """One row as a quota; None if something is wrong with it: that is added to `problems`."""
    before = len(problems)
    user = _name(row, "user", number, problems)
    client_id = _name(row, "client_id", number, problems)
    where = f"row {number} (user {user!r}, client-id {client_id!r})"
    if len(problems) == before and not user and not client_id:
        problems.append(f"row {number}: neither a user nor a client-id is given")
    mode = row.get("mode")
    mode = "enforce" if mode is None else mode
    if mode not in MODES:
        problems.append(f"{where}: unknown mode {mode!r}; known are {', '.join(MODES)}")
    bounds = tuple(bound_of(row.get(name), name, where, problems) for name in QUOTA_TYPES)
    if len(problems) != before:
        return None
    if mode == "enforce":
        mode = table_mode
    return Quota(user, client_id, cast("Bounds", bounds), cast("Mode", mode), level_of(user, client_id))


def _name(row: Mapping[str, object], column: str, number: int, problems: list[str]) -> str:
    value = row.get(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        problems.append(f"row {number}: {column} is {value!r}, not text")
        return ""
    return value


def bound_of(value: object, column: str, where: str, problems: list[str]) -> float | None:
    """A bound as a float; None for none, and if it is not a finite number above 0: that is added to `problems`."""
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            bound = float(value)
        except OverflowError:
            bound = math.inf
        if math.isfinite(bound) and bound > 0:
            return bound
    problems.append(f"{where}: {column} is {value!r}, not a finite number above 0")
    return None
