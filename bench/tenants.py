"""Tenants in the closed loop: what their members get, on a clock that is set by hand.

Engine, purgatory and wheel are those of the product, and one loop has all cases: `closed_loop` says how it works. A
case is a tenant with three members. A member wants some times its own bound T, obeys a record 500 ms after it was
published, and sends nothing while it is held.

    python -m bench tenants -- [--write]

With `--write` the table goes into docs/tenants.md too, and the picture of its first case is drawn.
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


_STYLE: Final = (
    ".bg{fill:#fff}.m0{fill:#c7d2fe;stroke:#3f51b5}.m1{fill:#ffe0b2;stroke:#c77700}.m2{fill:#c8e6c9;stroke:#2e7d32}"
    ".t{fill:#1c2340}.n{fill:#4a5270;font-size:12px}.w{stroke:#c62828;stroke-width:2;fill:none}"
    ".l{stroke:#6b7390;stroke-width:1.4}"
    "@media (prefers-color-scheme:dark){.bg{fill:#14182a}.m0{fill:#303f8f;stroke:#8c9eff}"
    ".m1{fill:#6b4a12;stroke:#ffb74d}.m2{fill:#1f5428;stroke:#81c784}.t{fill:#f2f4ff}.n{fill:#c3cae6}.w{stroke:#ef9a9a}.l{stroke:#a9b1cf}}"
)
_FIRST_SECOND, _BAR_SECONDS, _BAR_WIDTH, _MB_HEIGHT, _FLOOR = 60, 60, 64, 42, 250


def picture_of(loop: TenantLoop) -> str:
    """As SVG: what the members of the first case get, in bars of a minute, one on the other, and C as a line."""
    members = loop.cases[CASES[0].name]
    parts = []
    for bar in range((SECONDS - _FIRST_SECOND) // _BAR_SECONDS):
        first, top = _FIRST_SECOND + bar * _BAR_SECONDS, float(_FLOOR)
        for number, member in enumerate(members):
            height = member.mean(first, first + _BAR_SECONDS) * member.own / BOUND * _MB_HEIGHT
            top -= height
            place = f'x="{60 + bar * _BAR_WIDTH}" y="{top:.1f}" width="{_BAR_WIDTH - 4}" height="{height:.1f}"'
            parts.append(f'<rect class="m{number}" {place}/>')
    line, change = _FLOOR - C * _MB_HEIGHT, 58 + (RECLAIMED_SECOND - _FIRST_SECOND) // _BAR_SECONDS * _BAR_WIDTH
    end = 60 + (SECONDS - _FIRST_SECOND) // _BAR_SECONDS * _BAR_WIDTH
    parts += [
        f'<path class="w" d="M50 {line}H{end}"/><text class="t" x="{end + 6}" y="{line + 5}">C = 4 MB/s</text>',
        f'<path class="l" d="M50 {_FLOOR}H{end}M{change} 30V{_FLOOR + 8}"/>',
        f'<text class="n" x="62" y="{_FLOOR + 24}">a wants 5 MB/s, b and c little: a borrows</text>',
        f'<text class="n" x="{change + 6}" y="{_FLOOR + 24}">all want 5 T: each has its own bound again</text>',
        *(
            f'<rect class="m{number}" x="{end + 8}" y="{200 - 26 * number}" width="14" height="14"/>'
            f'<text class="n" x="{end + 28}" y="{212 - 26 * number}">{name}, T = {member.own / BOUND:g} MB/s</text>'
            for number, (name, member) in enumerate(zip("abc", members, strict=True))
        ),
    ]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 290" role="img" aria-labelledby="t d"'
    about = "Of a tenant with 4 MB/s one member gets 3.8 while the others are idle; then each its own 1, 1 and 2 MB/s."
    return "\n".join(
        [
            f'{head} font-family="system-ui, sans-serif" font-size="14">',
            f'<title id="t">What is lent, and taken back</title><desc id="d">{about}</desc>',
            f'<style>{_STYLE}</style><rect class="bg" width="860" height="290" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main() -> None:
    given = arguments(__doc__, write=False)
    loop = TenantLoop()
    loop.run_seconds(SECONDS)
    text = table_of(loop)
    sys.stdout.write(f"{text}\n")
    if given.write:
        about = f"T of the members is 1, 1 and 2 MB/s, C is 4; trigger {TRIGGER_MS} ms; {machine_line()}"
        write_part(PAGE, *MEASURED, f"{about}\n\n{text}")
        PAGE.with_suffix(".svg").write_text(picture_of(loop), encoding="utf-8")


if __name__ == "__main__":
    main()
