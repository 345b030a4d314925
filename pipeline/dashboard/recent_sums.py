"""Sums of the usage that is in memory. Pure: rows come in, and sums by step come out."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.dashboard.recent_rows import RecentRows

_TIME = "sample_start_ms"


class Wanted(NamedTuple):
    """A sum of the usage of some clients.

    Attributes:
        name: Of the sum.
        names: User and client-id; None = any.
        columns: What is added up; null is 0.
    """

    name: str
    names: tuple[str | None, str | None]
    columns: Sequence[str]


def recent_sums(
    held: RecentRows, since_ms: int, until_ms: int, step_ms: int, wanted: Sequence[Wanted]
) -> Mapping[str, list[int]]:
    """The sums of a span by step.

    Args:
        held: Rows of `usage`.
        since_ms: Begin of the span by `sample_start_ms`, inclusive.
        until_ms: Its end, exclusive.
        step_ms: Length of a step; steps begin at its multiples.
        wanted: Of whom, and of what.

    Returns:
        `step`, each once, and each sum by its name.
    """
    of_names = {one.names: held.where(one.names, _TIME, since_ms, until_ms) for one in wanted}
    steps_of = {names: _ints(rows[_TIME]) // step_ms for names, rows in of_names.items() if rows.num_rows}
    if not steps_of:
        return {}
    steps = np.unique(np.concatenate([*steps_of.values()]))
    sums = {}
    for one in wanted:
        amounts = np.zeros(len(steps), np.int64)
        if one.names in steps_of:
            places = np.searchsorted(steps, steps_of[one.names])
            for column in one.columns:
                np.add.at(amounts, places, _ints(of_names[one.names][column]))
        sums[one.name] = amounts.tolist()
    return {"step": steps.tolist(), **sums}


def _ints(column: "pa.ChunkedArray") -> NDArray[np.int64]:
    """Numbers, null as 0."""
    return np.asarray(np.nan_to_num(np.asarray(column.to_numpy())), dtype=np.int64)
