"""What the checks have to say, and the rules that no table tells: the job's settings, and how exactly clocks agree."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal["lost", "duplicated", "different", "too few"]
KINDS: Final[tuple[Kind, ...]] = ("lost", "duplicated", "different", "too few")
Values = Mapping[str, Any]
_TOLD_OF_EACH: Final = 5


@dataclass(frozen=True, slots=True)
class Difference:
    check: str
    kind: Kind
    text: str


@dataclass
class Verdict:
    """The number of comparisons of each check, and what it found."""

    compared: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)

    def count(self, kind: Kind, check: str | None = None) -> int:
        return sum(one.kind == kind and check in {None, one.check} for one in self.differences)

    def tell(self, check: str, kind: Kind, text: str) -> None:
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

    def as_table(self) -> str:
        lines = [f"{'check':<22} {'compared':>9}" + "".join(f" {kind:>11}" for kind in KINDS)]
        for check in dict.fromkeys([*self.compared, *(one.check for one in self.differences)]):
            counts = "".join(f" {self.count(kind, check):>11}" for kind in KINDS)
            lines.append(f"{check:<22} {self.compared[check]:>9}{counts}")
        lines += self.told()
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the job under test. The defaults are the job's defaults.

    Attributes:
        min_hold_ms: What is published holds its client at least so much longer. A throttle at its end is renewed if
            more than this is owed, else released.
        least_lead_ms: A look is due at least this long before the end.
        most_lead_ms: And at most this long; None: not known, for the lead grows with the measured publish lag.
        max_decision_age_ms: A batch that is older than this when it is published publishes nothing.
        sensor_state_interval_ms: A snapshot of the buckets is due when this much time has passed since the last one.
        clock_tolerance_ms: Event times are limited to the driver's clock at collection plus this.
        max_record_bytes: `max.message.bytes` of the throttle topic. A larger record is stored and passed over.
        clock_slack_ms: How far two readings of the driver's clocks may differ.
        longest_append_ms: How long a batch may take from its collection to its decision.
        longest_publish_ms: And from the check of its age until its records are written.
        longest_take_over_ms: How long a driver may take from its first reading of the clocks until it has taken over.
    """

    min_hold_ms: int = 1_000
    least_lead_ms: int = 1_000
    most_lead_ms: int | None = None
    max_decision_age_ms: int = 10_000
    sensor_state_interval_ms: int = 60_000
    clock_tolerance_ms: int = 2_000
    max_record_bytes: int = 1_048_588
    clock_slack_ms: int = 100
    longest_append_ms: int = 5_000
    longest_publish_ms: int = 30_000
    longest_take_over_ms: int = 30_000
