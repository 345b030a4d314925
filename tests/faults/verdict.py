"""What the checks have to say."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["lost", "duplicated", "different"]
Values = Mapping[str, Any]
_TOLD = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was recomputed."""

    check: str
    kind: Kind
    text: str


@dataclass
class Verdict:
    """How much each check compared, and what it found."""

    compared: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def count(self, kind: Kind, check: str | None = None) -> int:
        """How many differences of a kind, of one check or of all."""
        return sum(one.kind == kind and check in {None, one.check} for one in self.differences)

    def tell(self, check: str, kind: Kind, text: str) -> None:
        """Note a difference."""
        self.differences.append(Difference(check, kind, text))

    def expect(self, check: str, holds: bool, text: str) -> None:
        """Note a difference unless something holds."""
        self.compared[check] += 1
        if not holds:
            self.tell(check, "different", text)

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
            expected = wanted.get(key)
            if expected is None:
                continue
            unequal = {name: (value, row[name]) for name, value in expected.items() if row[name] != value}
            if unequal:
                told = ", ".join(f"{name} must be {value!r}; got {other!r}" for name, (value, other) in unequal.items())
                self.tell(check, "different", f"{key}: {told}")

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "equal": not self.differences,
            "compared": dict(self.compared),
            "lost": self.count("lost"),
            "duplicated": self.count("duplicated"),
            "different": self.count("different"),
            "differences": [f"{one.check}: {one.kind}: {one.text}" for one in self.differences[:_TOLD]],
        }

    def as_table(self) -> str:
        """For people."""
        lines = [f"{'check':<22} {'compared':>9} {'lost':>6} {'duplicated':>11} {'different':>10}"]
        for check in self.compared:
            kinds: tuple[Kind, ...] = ("lost", "duplicated", "different")
            lost, duplicated, different = (self.count(kind, check) for kind in kinds)
            lines.append(f"{check:<22} {self.compared[check]:>9} {lost:>6} {duplicated:>11} {different:>10}")
        lines += self.as_json()["differences"]
        return "\n".join(lines)
