"""What benchmarks print and write into pages: tables in Markdown, and the part of a page between two marks."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

MEASURED: Final = ("<!-- measured -->", "<!-- /measured -->")
"""The marks of the part that a command of the tests has written, where a page has one."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> str:
    """A table in Markdown; without rows its head, to which `row` adds them as they come."""
    return "\n".join(map(row, (head, ["---"] * len(head), *rows)))


def row(cells: Iterable[str | float], digits: int = 0) -> str:
    """Numbers get this number of digits after the point."""
    return f"| {' | '.join(cell if isinstance(cell, str) else f'{cell:.{digits}f}' for cell in cells)} |"


def percentiles(values: Sequence[float], wanted: Sequence[float] = (50, 99)) -> list[float]:
    """Between two values a percentile is interpolated. All are NaN for fewer than two values."""
    found: list[float] = np.percentile(values if len(values) > 1 else [float("nan")], wanted).tolist()
    return found


def write_part(page: Path, begin: str, end: str, text: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
