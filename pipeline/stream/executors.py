"""The executors of a Spark cluster: watching them, our package for them, and a start without a master."""

import atexit
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zipfile import ZIP_DEFLATED, ZipFile

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

import pipeline
import purgatory
import quota
import schemas
from pipeline.errors import MasterUnreachable
from pipeline.process import Background

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING_AFTER_SECONDS: Final = 10.0
SAID_AGAIN_SECONDS: Final = 300.0
_CAUSES: Final = (
    (re.compile(r"worker lost|decommission", re.IGNORECASE), "its worker is gone"),
    (re.compile(r"code 137|SIGKILL", re.IGNORECASE), "it was killed, perhaps for a lack of memory"),
    (re.compile(r"code 52\b|OutOfMemory"), "it had too little memory"),
    (re.compile(r"disassociated|heartbeat", re.IGNORECASE), "it does not answer any more"),
)

Line = tuple[int, str]
"""Level and text of a line for the log."""

_FIND_EXECUTORS: Final = (
    "see on the master's page whether a worker is alive with that much free; start one, end another application, "
    "limit it with 'spark.cores.max', or ask for less in 'spark.conf'; a master that was restarted does not know "
    "this job: start the job again"
)


@dataclass(frozen=True, slots=True)
class Loss:
    """An executor that has gone, and why in Spark's words; "" if Spark gives no reason."""

    place: str
    reason: str

    @property
    def cause(self) -> str:
        """The reason in plain words, and Spark's own."""
        plain = next((words for pattern, words in _CAUSES if pattern.search(self.reason)), "")
        own = self.reason.strip().rstrip(".")
        return f"{plain} ({own})" if plain and own else own or "no reason is known"


class ExecutorBook:
    """The executors of one application. Knows neither Spark nor a clock."""

    def __init__(self, master: str, wanted: str) -> None:
        self._master = master
        self._wanted = wanted
        self._places: dict[str, str] = {}
        self._none_since: float | None = None
        self._say_next = MISSING_AFTER_SECONDS

    def note(
        self, places: Mapping[str, str], losses: Mapping[str, Loss], now_seconds: float, are_wanted: bool = True
    ) -> Iterator[Line]:
        """Note what there is now, by a steady clock; yields lines about it. It may be right that there are none."""
        came = {executor: place for executor, place in places.items() if executor not in self._places}
        self._places = dict(places)
        for executor, loss in losses.items():
            where = f"on the {_counted(len(places))} left" if places else "when another executor comes"
            remedy = f"Its tasks run again {where}; no usage is lost or counted twice"
            yield logging.WARNING, f"executor {executor} at {loss.place} is lost: {loss.cause}. {remedy}"
        if came:
            names = ", ".join(f"{executor} at {place}" for executor, place in came.items())
            yield logging.INFO, f"{_counted(len(places))} at {self._master}; new: {names}"
        if places or not are_wanted:
            self._none_since, self._say_next = None, MISSING_AFTER_SECONDS
            return
        if self._none_since is None:
            self._none_since = now_seconds
        waited_seconds = now_seconds - self._none_since
        if waited_seconds >= self._say_next:
            self._say_next = waited_seconds + SAID_AGAIN_SECONDS
            message = (
                f"no executor from {self._master} for {waited_seconds:.0f} s ({self._wanted} is wanted), so no usage "
                f"is read. Fix: {_FIND_EXECUTORS}"
            )
            yield logging.WARNING, message


def _counted(count: int) -> str:
    return "1 executor" if count == 1 else f"{count} executors"


log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 1.0
_REASON_LOOKS: Final = 5  # for the reason of a loss, which Spark notes a moment after the loss
_GIVEN_BACK: Final = "killed by driver"  # the session itself let an idle executor go, as with dynamic allocation


class ExecutorWatch:
    """Watches the executors of the session on a thread of its own, and logs when they come, go, or stay away.

    Spark waits for executors for ever and almost without a word; of a lost one it writes lines of its own form. A local
    session has no executors of its own.
    """

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
        self._places = {one: before.get(one) or _place_and_end(scala, one)[0] for one in sorted(present)}
        self._lost |= {executor: 0 for executor in before if executor not in present}
        losses = {}
        for executor in list(self._lost):
            place, reason = _place_and_end(scala, executor)
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


def _place_and_end(scala: Any, executor: str) -> tuple[str, str]:
    """Place of an executor, and why it has gone; "" while it is there, or Spark has not noted it."""
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


Made = TypeVar("Made")

_STOPPED: Final = "stopped SparkContext"


def made_at(master: str, make: Callable[[], Made]) -> Made:
    """Make a session. Spark tries for a minute, and then leaves a stopped context: that is `MasterUnreachable`."""
    try:
        return make()
    except (Py4JJavaError, PySparkException) as exc:
        if _STOPPED not in str(exc):
            raise
        context = SparkContext._active_spark_context
        with suppress(Py4JError, OSError):
            if context is not None:
                context.stop()
        raise MasterUnreachable(master) from exc


NEEDED_TO_READ: Final = ("msgspec", "numpy", "pyarrow", "pydantic")
"""What the Python of executors must have to read usage. It is machine code, which cannot be imported from a zip."""
_NAME: Final = "kquota.zip"


def ship_package(session: "SparkSession") -> None:
    """Give the executors of a cluster this package, so that nothing of ours must be installed on their machines.

    Spark hands out the file itself, also to executors that come later; it stays until the process ends.
    """
    if not str(session.sparkContext.master).startswith("local"):
        folder = Path(tempfile.mkdtemp(prefix="kquota-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        session.sparkContext.addPyFile(str(zip_package(folder)))


def zip_package(folder: Path) -> Path:
    """Write all modules of the installed package into a zip, which may be there already. Returns its path."""
    path = folder / _NAME
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for package in (pipeline, purgatory, quota, schemas):
            root = Path(str(package.__file__)).parent
            for module in sorted(root.rglob("*.py")):
                archive.write(module, f"{root.name}/{module.relative_to(root)}")
    return path
