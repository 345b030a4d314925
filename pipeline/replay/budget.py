"""`--fail-if`: what a candidate must not do, as one comparison of a total with a number."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

from pipeline.replay.errors import BadBudget
from pipeline.replay.report import Totals

METRICS: Final = tuple(field.name for field in fields(Totals))

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_FORM: Final = re.compile(r"\s*([a-z_]+)\s*(>=|<=|==|!=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:e\d+)?)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Budget:
    """One comparison.

    Attributes:
        metric: A field of `Totals`.
        comparison: One of > >= < <= == !=.
        number: What the metric is compared with.
    """

    metric: str
    comparison: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `newly_throttled>3`; blanks do not matter.

        Raises:
            BadBudget: It is no comparison of a known metric with a number.
        """
        found = _FORM.fullmatch(text)
        if found is None or found[1] not in METRICS:
            raise BadBudget(text, METRICS)
        return cls(found[1], found[2], float(found[3]))

    def fails(self, totals: Totals) -> bool:
        """Whether the comparison holds: the report then fails."""
        return _COMPARISONS[self.comparison](getattr(totals, self.metric), self.number)

    def __str__(self) -> str:
        """As it would be written."""
        return f"{self.metric}{self.comparison}{self.number:g}"


def failures(budgets: Sequence[Budget], totals: Totals) -> list[str]:
    """A sentence for each comparison that holds."""
    return [
        f"{budget}: {budget.metric} is {getattr(totals, budget.metric):g}" for budget in budgets if budget.fails(totals)
    ]
