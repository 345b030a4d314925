"""Who hears what the job does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.stream.micro_batch import BatchReport
from pipeline.throttle.outbox import Announce


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class RunGauges:
    """What can be asked of one life of the query, by any thread at any time.

    Attributes:
        held: How many clients are held.
        next_due_ms: When the next look or end of a throttle is due, on the steady clock; None = nothing is held.
        steady_ms: That clock.
        quota_version: The version in force.
        quotas_refused: Whether there is a newer version, which is not valid.
        spark_progress: What Spark says of the newest micro-batch: empty before the first one, None without a query.
    """

    held: Callable[[], int]
    next_due_ms: Callable[[], int | None]
    steady_ms: Callable[[], int]
    quota_version: Callable[[], int]
    quotas_refused: Callable[[], bool] = lambda: False
    spark_progress: Callable[[], Mapping[str, Any] | None] = _nothing


def _not_heard(_what: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who wants to hear what the job does. Called on its threads; must be quick and must not raise.

    Attributes:
        announce: For all throttle records written, those of one batch or look together; see `Announce`.
        report: For every micro-batch.
        committed: For every commit with rows, the name of its table.
        began: For every start of the query, also after a failure, its gauges. They must be kept only weakly: they hold
            the whole run, which must go away when it ends.
    """

    announce: Announce
    report: Callable[[BatchReport], None]
    committed: Callable[[str], None] = _not_heard
    began: Callable[[RunGauges], None] = _not_heard


def both(first: Listeners, second: Listeners) -> Listeners:
    """Two who hear the same, one after the other."""

    def announce(records: Any, quota_version: int) -> None:
        first.announce(records, quota_version)
        second.announce(records, quota_version)

    def to_both(of_first: Callable[[Any], None], of_second: Callable[[Any], None]) -> Callable[[Any], None]:
        def tell(what: Any) -> None:
            of_first(what)
            of_second(what)

        return tell

    return Listeners(
        announce,
        to_both(first.report, second.report),
        to_both(first.committed, second.committed),
        to_both(first.began, second.began),
    )
