"""What the checks have to say."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal["lost", "duplicated", "different", "too few"]
Values = Mapping[str, Any]
_TOLD_OF_EACH: Final = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was recomputed."""

    check: str
    kind: Kind
    text: str


@dataclass
class Verdict:
    """The number of comparisons of each check, and what it found."""

    compared: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def count(self, kind: Kind, check: str | None = None) -> int:
        """The number of differences of a kind, of one check or of all."""
        return sum(one.kind == kind and check in {None, one.check} for one in self.differences)

    def tell(self, check: str, kind: Kind, text: str) -> None:
        """Note a difference."""
        self.differences.append(Difference(check, kind, text))

    def expect(self, check: str, holds: bool, text: str) -> None:
        """Note a difference unless something holds."""
        self.compared[check] += 1
        if not holds:
            self.tell(check, "different", text)

    def deny(self, check: str, fails: bool, text: str) -> None:
        """Note a difference if something fails; part of a comparison that is counted elsewhere."""
        if fails:
            self.tell(check, "different", text)

    def demand(self, at_least: Mapping[str, int]) -> None:
        """Note each check that has compared less than its load must give: such a check has not shown anything."""
        for check, least in at_least.items():
            compared = self.compared[check]
            if compared < least:
                self.tell(check, "too few", f"compared {compared}; this load must give at least {least}")

    def once_each(self, check: str, wanted: Iterable[Hashable], got: Iterable[Hashable]) -> None:
        """Everything wanted is there once, and nothing else."""
        wanted_counts, got_counts = Counter(wanted), Counter(got)
        self.compared[check] += len(wanted_counts)
        for one, count in (wanted_counts - got_counts).items():
            self.differences += [Difference(check, "lost", f"{one}")] * count
        for one, count in (got_counts - wanted_counts).items():
            self.differences += [Difference(check, "duplicated", f"{one}")] * count

    def same_rows(
        self,
        check: str,
        wanted: Mapping[Hashable, Values],
        got: Iterable[tuple[Hashable, Values]],
    ) -> None:
        """Rows by key: each wanted one is there once, with the wanted values in the columns that `wanted` has."""
        listed = list(got)
        self.once_each(check, list(wanted), (key for key, _ in listed))
        for key, row in listed:
            if key in wanted:
                self.same_values(check, key, wanted[key], row)

    def same_values(self, check: str, key: Hashable, wanted: Values, row: Values) -> None:
        """A row that is counted elsewhere has the wanted values in the columns that `wanted` has."""
        unequal = {name: (value, row[name]) for name, value in wanted.items() if row[name] != value}
        if unequal:
            told = ", ".join(f"{name} must be {value!r}; got {other!r}" for name, (value, other) in unequal.items())
            self.tell(check, "different", f"{key}: {told}")

    def told(self) -> list[str]:
        """The first differences of each check and kind, one line each, in the order in which they were found."""
        counts: Counter[tuple[str, Kind]] = Counter()
        lines = []
        for one in self.differences:
            counts[one.check, one.kind] += 1
            if counts[one.check, one.kind] <= _TOLD_OF_EACH:
                lines.append(f"{one.check}: {one.kind}: {one.text}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "equal": not self.differences,
            "compared": dict(self.compared),
            "lost": self.count("lost"),
            "duplicated": self.count("duplicated"),
            "different": self.count("different"),
            "too_few": self.count("too few"),
            "differences": self.told(),
            "table": self.as_table(),
        }

    def as_table(self) -> str:
        """For people."""
        kinds: tuple[Kind, ...] = ("lost", "duplicated", "different", "too few")
        lines = [f"{'check':<22} {'compared':>9}" + "".join(f" {kind:>11}" for kind in kinds)]
        for check in dict.fromkeys([*self.compared, *(one.check for one in self.differences)]):
            counts = "".join(f" {self.count(kind, check):>11}" for kind in kinds)
            lines.append(f"{check:<22} {self.compared[check]:>9}{counts}")
        lines += self.told()
        return "\n".join(lines)
