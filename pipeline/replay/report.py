"""The replay of a candidate compared with a baseline: per client, in total, and by `--fail-if`."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self

from pipeline.errors import UsageError
from pipeline.replay.usage_batches import Outcome, ReplayResult
from schemas.names import ClientKey

MOST_OFF_PERCENT: Final = 5.0
Change = Literal["newly throttled", "no longer throttled", "longer", "shorter", "same"]

_NOTHING = Outcome()


@dataclass(frozen=True, slots=True)
class ClientComparison:
    """One client: what happened to it, and what the replays of that, of the baseline and of the candidate found."""

    client: ClientKey
    happened: Outcome
    again: Outcome
    baseline: Outcome
    candidate: Outcome

    @property
    def off_percent(self) -> float:
        """How far the replay of what happened is from what happened: of the longer of the two times held."""
        longer_ms = max(self.happened.throttle_ms, self.again.throttle_ms)
        return 100 * abs(self.happened.throttle_ms - self.again.throttle_ms) / longer_ms if longer_ms else 0.0

    @property
    def is_off(self) -> bool:
        """Whether it is so far off that the line is not to be relied on."""
        return self.off_percent > MOST_OFF_PERCENT

    @property
    def change(self) -> Change:
        """How the replay with the candidate differs from that of the baseline."""
        if bool(self.baseline.windows) != bool(self.candidate.windows):
            return "newly throttled" if self.candidate.windows else "no longer throttled"
        if self.baseline.throttle_ms == self.candidate.throttle_ms:
            return "same"
        return "longer" if self.candidate.throttle_ms > self.baseline.throttle_ms else "shorter"

    @property
    def throttle_change_ms(self) -> int:
        """The time that the candidate holds the client longer than the baseline; negative = shorter."""
        return self.candidate.throttle_ms - self.baseline.throttle_ms

    def to_row(self) -> dict[str, Any]:
        """One flat row for printing; times in seconds."""
        broker_id, user, client_id = self.client
        return {
            **({"broker_id": broker_id} if broker_id else {}),
            "user": user,
            "client_id": client_id,
            "change": self.change,
            "windows_baseline": self.baseline.windows,
            "windows_candidate": self.candidate.windows,
            "throttle_seconds_baseline": self.baseline.throttle_ms / 1000,
            "throttle_seconds_candidate": self.candidate.throttle_ms / 1000,
            "bytes_deferred_baseline": self.baseline.deferred_bytes,
            "bytes_deferred_candidate": self.candidate.deferred_bytes,
            "windows_happened": self.happened.windows,
            "throttle_seconds_happened": self.happened.throttle_ms / 1000,
            "replay_off_percent": round(self.off_percent, 1),
            "is_off": self.is_off,
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """All clients together. `--fail-if` can use each of these figures.

    Attributes:
        newly_throttled: Of these, clients that the baseline does not throttle.
        windows_throttled: Sample windows in which a client is over the candidate, summed over clients.
        throttle_seconds: Time that clients would be held, summed over clients; its change is against the baseline.
        bytes_deferred: Bytes that clients used while they would have been held; its change likewise.
    """

    clients: int
    throttled: int
    newly_throttled: int
    no_longer_throttled: int
    windows_throttled: int
    throttle_seconds: float
    throttle_seconds_change: float
    bytes_deferred: int
    bytes_deferred_change: int


def compare(
    again: ReplayResult, baseline: ReplayResult, candidate: ReplayResult, happened: Mapping[ClientKey, Outcome]
) -> list[ClientComparison]:
    """Every client in any of the four; the largest change of throttle time first, then by name.

    Args:
        again: The replay of what happened.
        baseline: What the candidate is compared with: the replay with today's quotas.
    """
    results = happened, again.outcomes, baseline.outcomes, candidate.outcomes
    comparisons = [
        ClientComparison(client, *(outcomes.get(client, _NOTHING) for outcomes in results))
        for client in set().union(*results)
    ]
    return sorted(
        comparisons, key=lambda line: (-abs(line.throttle_change_ms), -line.candidate.throttle_ms, line.client)
    )


def totals_of(comparisons: Sequence[ClientComparison]) -> Totals:
    """Totals of all clients."""
    changes, candidate = [line.change for line in comparisons], [line.candidate for line in comparisons]
    deferred_bytes = sum(one.deferred_bytes for one in candidate)
    return Totals(
        clients=len(comparisons),
        throttled=sum(one.windows > 0 for one in candidate),
        newly_throttled=changes.count("newly throttled"),
        no_longer_throttled=changes.count("no longer throttled"),
        windows_throttled=sum(one.windows for one in candidate),
        throttle_seconds=sum(one.throttle_ms for one in candidate) / 1000,
        throttle_seconds_change=sum(line.throttle_change_ms for line in comparisons) / 1000,
        bytes_deferred=deferred_bytes,
        bytes_deferred_change=deferred_bytes - sum(line.baseline.deferred_bytes for line in comparisons),
    )


def throttled_clients(comparisons: Sequence[ClientComparison]) -> list[ClientComparison]:
    """The clients that were throttled: really, in the replay of the baseline, or in the candidate's."""
    return [line for line in comparisons if line.happened.windows or line.baseline.windows or line.candidate.windows]


def to_document(comparisons: Sequence[ClientComparison], totals: Totals, about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report as one JSON document."""
    rows = [one.to_row() for one in throttled_clients(comparisons)]
    return {"about": dict(about), "totals": asdict(totals), "clients": rows}


METRICS: Final = tuple(field.name for field in fields(Totals))

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    **{">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le},
    **{"==": operator.eq, "!=": operator.ne},
}
_FORM: Final = re.compile(r"\s*([a-z_]+)\s*(>=|<=|==|!=|>|<)\s*([-+]?\d+(?:\.\d+)?(?:e\d+)?)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class FailCondition:
    """`--fail-if`: a field of `Totals` compared with a number. The report fails if it is true."""

    metric: str
    comparison: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an expression like `newly_throttled>3`; spaces are ignored. Anything else is a `UsageError`."""
        found = _FORM.fullmatch(text)
        if found is None or found[1] not in METRICS:
            msg = f"cannot read --fail-if {text}; write a metric, one of > >= < <= == !=, and a number"
            raise UsageError(msg, f"metrics are {', '.join(METRICS)}")
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
