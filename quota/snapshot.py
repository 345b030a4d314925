"""One version of the quota table as an immutable value. Knows rows, not sensors."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from typing import Final, Literal, Self, cast

from quota.entity import QUOTA_TYPES, REQUEST, Level, level_of
from quota.errors import InvalidBound, InvalidQuotas

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
        level: 1–8, from the entity.
    """

    user: str
    client_id: str
    bounds: Bounds
    mode: Mode
    level: Level


@dataclass(frozen=True, slots=True)
class QuotaSnapshot:
    """All quotas of one version of the table.

    Attributes:
        version: the version of the quota table.
        quotas: one per entity, in the order of the rows.
    """

    version: int
    quotas: tuple[Quota, ...]

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, object]],
        version: int,
        mode: Literal["enforce", "shadow"] = "enforce",
    ) -> Self:
        """Check rows of the quota table and freeze them.

        Args:
            rows: mappings with the columns of `quotas`. Other columns are ignored. A bound that is missing or null
                means no bound; a mode that is missing or null means `enforce`. Byte rates may be fractions.
            version: the version of the table that the rows come from.
            mode: `shadow` reads every `enforce` row as a `shadow` row, so that nothing is enforced.

        Raises:
            InvalidQuotas: a bound is not a finite number above 0, a mode is unknown, a name is not text, an entity is
                given twice, or both parts of a row are empty. The error has all mistakes of all rows.
        """
        problems: list[str] = []
        seen: dict[tuple[str, str], int] = {}
        quotas = []
        for number, row in enumerate(rows, start=1):
            quota = _read_row(row, number, mode, problems)
            if quota is None:
                continue
            first = seen.setdefault((quota.user, quota.client_id), number)
            if first != number:
                entity = f"user {quota.user!r}, client-id {quota.client_id!r}"
                problems.append(f"row {number}: 'entity' must be given once; got {entity} in row {first} too")
                continue
            quotas.append(quota)
        if mode not in {"enforce", "shadow"}:
            problems.append(f"'mode' must be enforce or shadow; got {mode!r}")
        if problems:
            raise InvalidQuotas(version, problems)
        return cls(version, tuple(quotas))

    def with_shadow_enforced(self) -> Self:
        """The same quotas, as if every shadow quota were enforced: what the shadow resolution sees."""
        quotas = (replace(quota, mode="enforce") if quota.mode == "shadow" else quota for quota in self.quotas)
        return replace(self, quotas=tuple(quotas))


def _read_row(row: Mapping[str, object], number: int, table_mode: str, problems: list[str]) -> Quota | None:
    """One row as a quota. If something is wrong with it, that is added to `problems` and the answer is None."""
    before = len(problems)
    user = _name(row, "user", number, problems)
    client_id = _name(row, "client_id", number, problems)
    where = f"row {number} (user {user!r}, client-id {client_id!r})"
    if len(problems) == before and not user and not client_id:
        problems.append(f"row {number}: 'user' and 'client_id' must not both be empty; got \"\" and \"\"")
    mode = row.get("mode")
    mode = "enforce" if mode is None else mode
    if mode not in MODES:
        problems.append(f"{where}: 'mode' must be one of enforce, shadow, exempt; got {mode!r}")
    bounds = tuple(_bound(row.get(name), name, where, problems) for name in QUOTA_TYPES)
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
        problems.append(f"row {number}: '{column}' must be text; got {value!r}")
        return ""
    return value


def _bound(value: object, column: str, where: str, problems: list[str]) -> float | None:
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            bound = float(value)
        except OverflowError:
            bound = math.inf
        if math.isfinite(bound) and bound > 0:
            return bound
    problems.append(f"{where}: '{column}' must be a finite number above 0; got {value!r}")
    return None


# Which values can be the bound of a quota, and the words in which the others are refused.
#
# The rules are those of Kafka 4.3.1's controller (`ClientQuotaControlManager`): a bound is above 0; a byte rate is not
# larger than a LONG, and an integer within 1e-6. That tolerance has one side: a value just above an integer is taken,
# one just below is not.
#
# Two rules are added. A bound must be finite: Kafka stores NaN, which violates every quota and throttles by 0 ms, and
# an infinite percentage, which bounds nothing. And a percentage must be below 1e19, as the constraints of the table
# demand.

_LARGEST_LONG: Final = float(2**63)
_TOO_LARGE: Final = 1e19  # the upper end of the table's CHECK constraints
_FRACTION_TOLERANCE: Final = 1e-6
_LONGS: Final = frozenset(QUOTA_TYPES) - {QUOTA_TYPES[REQUEST]}


def bound_mistake(quota_type: str, value: float) -> str | None:
    """Why a value cannot be a bound; None if it can.

    Where Kafka refuses the value too, the words are Kafka's, without a full stop.

    Args:
        quota_type: one of `QUOTA_TYPES`.
        value: bytes per second, or percent of one thread.
    """
    if not math.isfinite(value):
        return f"Quota {quota_type} must be a finite number"
    if value <= 0:
        return f"Quota {quota_type} must be greater than 0"
    if value >= _TOO_LARGE and quota_type not in _LONGS:
        return f"Quota {quota_type} must be below {_TOO_LARGE:g}"
    if quota_type in _LONGS:
        if value > _LARGEST_LONG:
            return f"Proposed value for {quota_type} is too large for a LONG"
        if math.fmod(value, 1.0) > _FRACTION_TOLERANCE:
            return f"{quota_type} cannot be a fractional value"
    return None


# What is wrong with quotas that somebody typed: one collector, for the command line and for files.

Step = str | int


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong.

    Attributes:
        text: what is wrong, without its place and without a full stop.
        path: the place: keys and positions (from 0) in a file, from the outside; or a flag of the command line. Empty
            if the mistake is in no certain place.
        line: line of the file, from 1; None if there is no file, or if the line is not known.
    """

    text: str
    path: tuple[Step, ...] = ()
    line: int | None = None

    @property
    def place(self) -> str:
        """The path as text: `quotas[0].values[1]`; "" for an empty path."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        """The place, if there is one, and what is wrong."""
        line = "" if self.line is None else f"line {self.line}"
        place = ", ".join(part for part in (line, self.place) if part)
        return f"{place}: {self.text}" if place else self.text


class Mistakes:
    """Collects mistakes. A collector made by `at` adds to the same list, at a place further in.

    >>> mistakes = Mistakes()
    >>> mistakes.at("quotas", 0).at("mode").add("must be one of enforce, shadow, exempt; got loud")
    >>> print(mistakes.found[0], mistakes.found[0].path)
    quotas[0].mode: must be one of enforce, shadow, exempt; got loud ('quotas', 0, 'mode')
    """

    def __init__(self) -> None:
        self._path: tuple[Step, ...] = ()
        self._found: list[Mistake] = []

    def at(self, *steps: Step) -> "Mistakes":
        """The collector for a place further in."""
        inner = Mistakes()
        inner._path, inner._found = (*self._path, *steps), self._found
        return inner

    def add(self, text: str, line: int | None = None) -> None:
        """Add a mistake at this place."""
        self._found.append(Mistake(text, self._path, line))

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Add a bound that is refused inside the block, and go on after the block."""
        try:
            yield
        except InvalidBound as exc:
            self.add(exc.mistake)

    @property
    def found(self) -> tuple[Mistake, ...]:
        """All mistakes of all places, in the order they were added."""
        return tuple(self._found)
