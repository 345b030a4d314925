"""All planted defects, a text file for each room.

A row has three lines: what goes wrong; where, and the change; the tests that find it, after `slow` if one of them
starts a broker or Spark. A change is `old` → `new`, with ⏎ for the end of a line, or the source of a function.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.mutations.planting import Defect

_TEXTS: Final = re.compile("`(.*)` → `(.*)`", re.DOTALL)


def read(text: str) -> Iterator[Defect]:
    """The rows of a room."""
    lines = [line for line in text.splitlines() if line and not line.startswith("# ")]
    for what, place, finder in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        where, change = place.strip().split(": ", 1)
        texts = _TEXTS.fullmatch(change.replace("⏎", "\n"))
        tests = finder.strip().removeprefix("slow ")
        yield Defect(what, where, (texts[1], texts[2]) if texts else change, tests, finder.strip() != tests)


_ROOMS: Final = sorted(Path(__file__).parent.glob("*.txt"))
DEFECTS: Final = tuple(defect for room in _ROOMS for defect in read(room.read_text(encoding="utf-8")))
