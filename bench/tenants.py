"""Tenants in the closed loop: what their members get, on a clock that is set by hand.

Engine, purgatory and wheel are those of the product, and one loop has all cases: `closed_loop` says how it works. A
case is a tenant with three members. A member wants some times its own bound T, obeys a record 500 ms after it was
published, and sends nothing while it is held.

    python -m bench tenants -- [--write]

With `--write` the table goes into docs/tenants.md too. The picture there is of the first case, minute by minute; it was
drawn once, and tests/pipeline/throttle/test_closed_loop.py holds what it shows.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench.closed_loop import BOUND, START_MS, TRIGGER_MS, TYPE_OF, Loop, Offender
from bench.machine import arguments, machine_line
from bench.pages import MEASURED, table, write_part
from quota.snapshot import QuotaSnapshot
from quota.tenants import read_tenants
from schemas.names import ClientKey

Wants = Callable[[float], tuple[float, float, float]]
"""What each member wants at a second of the case, in T."""

C: Final = 4.0
RECLAIMED_SECOND: Final = 300
SECONDS: Final = 600
PAGE: Final = Path(__file__).parents[1] / "docs" / "tenants.md"
_LAG_MS: Final = 500


@dataclass
class Member(Offender):
    """A client of a tenant."""

    user: str = ""
    own: float = BOUND
    wants: Callable[[float], float] = float
    by_second: list[float] = field(default_factory=list)  # bytes

    @property
    def key(self) -> ClientKey:
        return ClientKey("", self.user, "c")

    def rate_at(self, at_ms: int) -> float:
        return self.wants((at_ms - START_MS) / 1_000) * self.own

    def run(self, from_ms: int, span_ms: int) -> int:
        sent, second = super().run(from_ms, span_ms), (from_ms - START_MS) // 1_000
        self.by_second += [0.0] * (second + 1 - len(self.by_second))
        self.by_second[second] += sent
        return sent

    def mean(self, first_second: int, end_second: int) -> float:
        """In T."""
        return sum(self.by_second[first_second:end_second]) / (end_second - first_second) / self.own


@dataclass(frozen=True)
class Case:
    """A tenant, and what its members want.

    Attributes:
        own: T of each, in MB per second; C is 4.
        spans: the seconds that are looked at, and what each member must get in them, in T; None where the demand does
            not stay long enough the same.
        at_most: the seconds soon after a change, and the most that sum / C may be in them. Who was idle has an empty
            sample window, and so may send what a window allows at once, as with any quota.
        is_full: whether the members want C at least, and no ceiling keeps them from it.
    """

    name: str
    about: str
    wants: Wants
    spans: tuple[tuple[int, int, tuple[float, float, float] | None], ...]
    own: tuple[float, float, float] = (1.0, 1.0, 2.0)
    ceiling: float | None = None
    at_most: tuple[tuple[int, int, float], ...] = ()
    is_full: bool = True


def _steady(*wanted: float) -> Wants:
    return lambda _second: (wanted[0], wanted[1], wanted[2])


def _reclaimed(second: float) -> tuple[float, float, float]:
    return (5.0, 0.1, 0.1) if second < RECLAIMED_SECOND else (5.0, 5.0, 5.0)


def _on_and_off(second: float) -> tuple[float, float, float]:
    return (5.0, 5.0, 5.0) if second // 30 % 2 else (5.0, 0.0, 0.0)


CASES: Final = (
    Case(
        "reclaim",
        f"one wants 5 T, the others 0.1; from second {RECLAIMED_SECOND} on all want 5 T",
        _reclaimed,
        ((60, 300, (3.7, 0.1, 0.1)), (360, SECONDS, (1.0, 1.0, 1.0))),
        at_most=((300, 320, 1.4), (320, 360, 1.15)),
    ),
    Case("greedy", "all want 10 T", _steady(10, 10, 10), ((60, SECONDS, (1, 1, 1)),)),
    Case(
        "bursts",
        "one wants 5 T, the others too in every second half minute",
        _on_and_off,
        ((120, SECONDS, None),),
        is_full=False,
    ),
    Case(
        "too much promised",
        "the T are twice C together; all want 5 T",
        _steady(5, 5, 5),
        ((60, SECONDS, (0.5, 0.5, 0.5)),),
        own=(2.0, 2.0, 4.0),
    ),
    Case(
        "ceiling",
        "ceiling 1.5; one wants 5 T, the others 0.1",
        _steady(5, 0.1, 0.1),
        ((60, SECONDS, (1.5, 0.1, 0.1)),),
        ceiling=1.5,
        is_full=False,
    ),
    Case(
        "one greedy",
        "one wants 20 T, the others 0.8",
        _steady(20, 0.8, 0.8),
        ((60, SECONDS, (1.6, 0.8, 0.8)),),
    ),
)


def members_of(number: int, case: Case) -> list[Member]:
    def wants(at: int) -> Callable[[float], float]:
        return lambda second: case.wants(second)[at]

    return [
        Member(0.0, _LAG_MS, "window", user=f"case{number}-{at}", own=own * BOUND, wants=wants(at))
        for at, own in enumerate(case.own)
    ]


class TenantLoop(Loop):
    """All cases at once, each a tenant of its own."""

    def __init__(self, cases: tuple[Case, ...] = CASES) -> None:
        self.cases = {case.name: members_of(number, case) for number, case in enumerate(cases)}
        members = [member for some in self.cases.values() for member in some]
        kind = TYPE_OF["window"]
        quotas = QuotaSnapshot.from_rows([{**one.key._asdict(), kind: one.own} for one in members], 1)
        tenants = [
            {"tenant": case.name, "user_patterns": [f"case{number}-*"], kind: C * BOUND, "lend": True}
            | {"ceiling": case.ceiling}
            for number, case in enumerate(cases)
        ]
        super().__init__(members, replace(quotas, tenants=read_tenants(tenants, 1), tenants_version=1))

    def run_seconds(self, seconds: float) -> None:
        self.run(seconds / 3_600)


def share_of(members: list[Member], first_second: int, end_second: int) -> float:
    """Their sum, divided by C."""
    return sum(one.mean(first_second, end_second) * one.own for one in members) / (C * BOUND)


def table_of(loop: TenantLoop) -> str:
    """In Markdown, a row for each case and each span of it."""
    head = ["case", "seconds", "sum / C", "each / own T", "records a minute and member"]
    rows = []
    for case in CASES:
        members = loop.cases[case.name]
        records = f"{max(one.records_per_minute for one in members):.0f}"
        spans = sorted([*(one[:2] for one in case.spans), *(one[:2] for one in case.at_most)])
        for number, (first, end) in enumerate(spans):
            each = ", ".join(f"{one.mean(first, end):.2f}" for one in members)
            about = ["", ""] if number else [case.about, records]
            rows.append([about[0], f"{first} to {end}", f"{share_of(members, first, end):.2f}", each, about[1]])
    return table(head, rows)


def main() -> None:
    given = arguments(__doc__, write=False)
    loop = TenantLoop()
    loop.run_seconds(SECONDS)
    text = table_of(loop)
    sys.stdout.write(f"{text}\n")
    if given.write:
        about = f"T of the members is 1, 1 and 2 MB/s, C is 4; trigger {TRIGGER_MS} ms; {machine_line()}"
        write_part(PAGE, *MEASURED, f"{about}\n\n{text}")


if __name__ == "__main__":
    main()
