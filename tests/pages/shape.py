"""When an answer is what a page shows, though times, ids and amounts differ from run to run."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LEFT_OUT: Final = "…"
"""A line of a page that stands for lines that are left out."""

Comparison = Callable[[Sequence[str], Sequence[str]], str]
"""Of the lines that a page shows and the lines that were printed; "" if they agree, else what differs."""

# What differs from run to run: ids, amounts, times, bars, and the widths of table columns because of them.
_CHANGING: Final = (
    (r", (capped|debt) [0-9.]+ \w+", ""),  # only where a throttle time is cut, or where a rate is below its bound
    (r"[>≤] T", "~ T"),
    (r"\b[0-9a-f]{8,}\b", "ID"),
    (r"[0-9]+([.,:][0-9]+)*", "N"),
    (r"[█▏▎▍▌▋▊▉│─━]+", "|"),
    (r"\s+", " "),
)


def shape(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, sign in _CHANGING:
        line = re.sub(pattern, sign, line)
    return line.strip()


def exactly(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Every character is the same."""
    return "" if list(shown) == list(printed) else _told(shown, printed)


def in_shape(shown: Sequence[str], printed: Sequence[str]) -> str:
    """The same lines, except for numbers, ids, times and spaces."""
    return "" if [*map(shape, shown)] == [*map(shape, printed)] else _told(shown, printed)


def as_shown(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """What was printed; where the page leaves lines out, as many of them left out as leaves the others."""
    start = list(shown).index(LEFT_OUT) if LEFT_OUT in shown else len(shown)
    end = len(shown) - start - 1
    if end < 0 or len(printed) <= start + end:
        return list(printed)
    return [*printed[:start], LEFT_OUT, *printed[len(printed) - end :]]


def excerpt(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """For each line of the page the first one of its shape that was printed, each used once."""
    rest = list(printed)
    found = []
    for line in shown:
        like = next((other for other in rest if shape(other) == shape(line)), None)
        if like is not None:
            rest.remove(like)
        if like is not None or line == LEFT_OUT:
            found.append(like or line)
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """How the answers of a block are treated.

    Attributes:
        select: of the lines that the page shows and those that were printed, what the page is to show of the latter.
        compare: what the page shows with that.
    """

    select: Callable[[Sequence[str], Sequence[str]], list[str]]
    compare: Comparison


WAYS: Final[Mapping[str, Way]] = {
    "pure": Way(as_shown, in_shape),
    "pure exact": Way(as_shown, exactly),
    "demo": Way(as_shown, in_shape),
    "cluster": Way(as_shown, in_shape),
    "store": Way(as_shown, in_shape),
    "run": Way(excerpt, in_shape),
}
"""By what stands after the language of a block that is played."""


def _told(shown: Sequence[str], printed: Sequence[str]) -> str:
    return "\n".join(["the page shows:", *shown, "was printed:", *printed])
