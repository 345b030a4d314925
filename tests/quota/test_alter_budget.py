import numpy as np
import pytest

from quota.broker_levels.sync import AlterBudget
from quota.errors import InvalidArgument

NOW_MS = 1_700_000_000_000


def chosen(budget: AlterBudget, urgency: list[float], now_ms: int = NOW_MS) -> list[int]:
    return budget.choose(np.array(urgency), now_ms)


def test_the_most_urgent_come_first_and_what_is_not_urgent_never() -> None:
    assert chosen(AlterBudget(3), [0.1, 0.0, np.inf, 0.5, 0.1]) == [2, 3, 0]
    assert chosen(AlterBudget(9), [0.1, 0.0, np.inf, 0.5, 0.1]) == [2, 3, 0, 4]


def test_what_was_left_out_comes_when_time_has_passed() -> None:
    budget = AlterBudget(2)
    assert chosen(budget, [1.0, 1.0, 1.0]) == [0, 1]
    assert chosen(budget, [0.0, 0.0, 1.0]) == []
    assert chosen(budget, [0.0, 0.0, 1.0], NOW_MS + 499) == []
    assert chosen(budget, [0.0, 0.0, 1.0], NOW_MS + 500) == [2]


def test_at_most_one_second_is_saved_up() -> None:
    budget = AlterBudget(2)
    assert chosen(budget, [], NOW_MS) == []
    assert chosen(budget, [1.0] * 9, NOW_MS + 60_000) == [0, 1]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    budget = AlterBudget(1)
    assert chosen(budget, [1.0]) == [0]
    assert chosen(budget, [1.0], NOW_MS - 5_000) == []
    assert chosen(budget, [1.0], NOW_MS) == []
    assert chosen(budget, [1.0], NOW_MS + 1_000) == [0]


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="alters_per_second is 0; it can be 1 or more"):
        AlterBudget(0)
