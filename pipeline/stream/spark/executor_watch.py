"""Watches the executors of the session on a thread of its own, and logs when they come, go, or stay away.

Spark waits for executors for ever and almost without a word; of a lost one it writes lines of its own form.
"""

import logging
import time
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

from pipeline.background import Background
from pipeline.stream.spark.executor_book import ExecutorBook, Loss

log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 1.0
_REASON_LOOKS: Final = 5
"""How often it is looked for the reason of a loss, which Spark notes a moment after the loss."""
_GIVEN_BACK: Final = "killed by driver"
"""In the reason if the session itself let an idle executor go, as with dynamic allocation."""


class ExecutorWatch:
    """A context manager. It says nothing of a local session, which has no executors of its own."""

    def __init__(self) -> None:
        self._book: ExecutorBook | None = None
        self._places: dict[str, str] = {}
        self._lost: dict[str, int] = {}
        self._thread = Background("executor-watch", self._look, self._failed)

    def __enter__(self) -> "ExecutorWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    @property
    def count(self) -> int:
        """The number of executors at the last look."""
        return len(self._places)

    def _look(self) -> float:
        # While the context is being made, there is one already, without a JVM's side.
        context: Any = SparkContext._active_spark_context
        if getattr(context, "_conf", None) is None:
            return _PERIOD_SECONDS
        if self._book is None:
            self._book = _book_of(context)
        scala: Any = context._jsc.sc() if getattr(context, "_jsc", None) is not None else None
        if scala is not None and scala.isLocal():
            return _PERIOD_SECONDS
        losses = self._take_notes(scala) if scala is not None else {}
        are_wanted = scala is None or bool(self._places) or _are_wanted(scala)
        for level, text in self._book.note(self._places, losses, time.monotonic(), are_wanted):
            log.log(level, "%s", text)
        return _PERIOD_SECONDS

    def _take_notes(self, scala: Any) -> dict[str, Loss]:
        """Bring `_places` up to date; returns what was lost since, as soon as the reason is known."""
        present = {executor for executor in str(scala.getExecutorIds().mkString(" ")).split() if executor}
        before = self._places
        self._places = {executor: before.get(executor) or _place(scala, executor) for executor in sorted(present)}
        self._lost |= {executor: 0 for executor in before if executor not in present}
        losses = {}
        for executor in list(self._lost):
            place, reason = _end(scala, executor)
            self._lost[executor] += 1
            if reason or self._lost[executor] >= _REASON_LOOKS:
                del self._lost[executor]
                if _GIVEN_BACK not in reason:
                    losses[executor] = Loss(place, reason)
        return losses

    def _failed(self, failure: BaseException) -> None:
        log.debug("the executors are not watched any more: %s", failure)


def _book_of(context: Any) -> ExecutorBook:
    conf = context._conf
    memory, cores = conf.get("spark.executor.memory", "1g"), conf.get("spark.executor.cores", None)
    wanted = f"{memory} of memory and {cores or 'a'} core{'s' if cores and cores != '1' else ''}"
    return ExecutorBook(str(conf.get("spark.master", "")), wanted)


def _place(scala: Any, executor: str) -> str:
    with suppress(Py4JError):
        return str(scala.statusStore().executorSummary(executor).hostPort())
    return "an unknown place"


def _end(scala: Any, executor: str) -> tuple[str, str]:
    """Place and reason of an executor that has gone; the reason is "" while Spark has not noted it."""
    with suppress(Py4JError):
        summary = scala.statusStore().executorSummary(executor)
        reason = summary.removeReason()
        return str(summary.hostPort()), str(reason.get()) if reason.isDefined() else ""
    return "an unknown place", ""


def _are_wanted(scala: Any) -> bool:
    """Whether there should be executors: with dynamic allocation only while a job runs."""
    if str(scala.getConf().get("spark.dynamicAllocation.enabled", "false")) != "true":
        return True
    return bool(list(scala.statusTracker().getActiveJobIds()))
