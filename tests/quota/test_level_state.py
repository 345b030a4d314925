"""The memory of levels, by rows."""

from dataclasses import fields, replace

import numpy as np

from quota.broker_levels.level_control import NEVER_MS, LevelState


def started(*levels: float) -> LevelState:
    never = np.full(len(levels), NEVER_MS)
    return LevelState.start(np.array(levels), never, never, 2, 1_000)


def test_what_is_taken_and_put_back_changes_these_rows_in_every_column() -> None:
    before = started(1.0, 2.0, 3.0)
    rows = np.array([2, 0])
    part = before.take(rows)
    assert part.level.tolist() == [3.0, 1.0]
    changed = LevelState(*(getattr(part, field.name) + 1 for field in fields(part)))
    after = before.put(rows, changed)
    for field in fields(after):
        column, old = getattr(after, field.name), getattr(before, field.name)
        assert column.tolist() == [(old[0] + 1).tolist(), old[1].tolist(), (old[2] + 1).tolist()]
    assert before.level.tolist() == [1.0, 2.0, 3.0]


def test_others_come_after() -> None:
    joined = started(1.0).joined(replace(started(2.0, 3.0), side=np.array([1, -1])))
    assert (joined.level.tolist(), joined.side.tolist()) == ([1.0, 2.0, 3.0], [0, 1, -1])
    assert joined.saturated_until_ms.shape == (3, 2)
