"""`--fail-if`: what a candidate must not do, as a comparison of one of the report's totals with a number."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

from pipeline.replay.errors import BadFailCondition
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
class FailCondition:
    """One comparison. The report fails if it is true.

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
        """Read an expression like `newly_throttled>3`; spaces are ignored.

        Raises:
            BadFailCondition: It is not a comparison of a known metric with a number.
        """
        found = _FORM.fullmatch(text)
        if found is None or found[1] not in METRICS:
            raise BadFailCondition(text, METRICS)
        return cls(found[1], found[2], float(found[3]))

    def is_met(self, totals: Totals) -> bool:
        """Whether the comparison is true, so that the report fails."""
        return _COMPARISONS[self.comparison](getattr(totals, self.metric), self.number)

    def __str__(self) -> str:
        """The expression, without spaces."""
        return f"{self.metric}{self.comparison}{self.number:g}"


def failures(conditions: Sequence[FailCondition], totals: Totals) -> list[str]:
    """One sentence for each condition that is met."""
    return [
        f"{condition}: {condition.metric} is {getattr(totals, condition.metric):g}"
        for condition in conditions
        if condition.is_met(totals)
    ]
