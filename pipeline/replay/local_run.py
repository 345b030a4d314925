"""Replays of a range of stored usage on the cores of this machine."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.queues import Queue
from queue import Empty
from typing import Final

from pipeline.replay.errors import UsageNotKept
from pipeline.replay.outcome import ReplayResult
from pipeline.replay.part_replay import replay_part
from pipeline.replay.request import Part, Plan

_WORTH_PROCESSES_MS: Final = 1_800_000
_POLL_SECONDS: Final = 0.2
_LAST_REPORT_SECONDS: Final = 30.0

Progress = Callable[[int, int], None]
"""Called with how many slices are done and how many there are, over all parts."""


def run(plan: Plan, progress: Progress, worth_ms: int = _WORTH_PROCESSES_MS) -> tuple[list[ReplayResult], str]:
    """All replays of a range. The parts of a long range are shared by one process per core.

    Processes and not threads, because the work is many short NumPy calls that hold the interpreter's lock.

    Args:
        plan: What is replayed.
        progress: Called after each slice.
        worth_ms: A shorter range is replayed in this process: starting others would take longer.

    Returns:
        What each replay found, and a description of where it ran.

    Raises:
        UsageNotKept: The range has no usage.
    """
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or plan.request.until_ms - plan.request.since_ms < worth_ms:
        done = Count(progress, len(plan.parts) * len(plan.slices))
        return joined(plan, [replay_part(plan, part, done.one_more) for part in plan.parts]), "one process"
    plan = plan.for_processes(cores)
    processes = min(cores, len(plan.parts))
    context = get_context("spawn")
    queue: Queue[None] = context.Queue()
    with ProcessPoolExecutor(processes, context, _report_to, (queue,)) as pool:
        futures = [pool.submit(_replay_reporting, plan, part) for part in plan.parts]
        follow(futures, queue, Count(progress, len(plan.parts) * len(plan.slices)))
        return joined(plan, [future.result() for future in futures]), f"{processes} processes"


def joined(plan: Plan, results: Iterable[ReplayResult]) -> list[ReplayResult]:
    """The results of all parts, in the order of `plan.parts`, as one result per replay.

    Raises:
        UsageNotKept: Nothing was evaluated.
    """
    of_replay = [ReplayResult() for _ in plan.request.quotas]
    for part, result in zip(plan.parts, results, strict=True):
        of_replay[part.replay].add_users(result)
    if not of_replay[0].evaluations:
        raise UsageNotKept(plan.uri)
    return of_replay


class Count:
    """Counts slices that are done and tells a progress bar."""

    def __init__(self, progress: Progress, whole: int) -> None:
        self._progress = progress
        self._whole = whole
        self._done = 0

    @property
    def is_whole(self) -> bool:
        """Whether all are done."""
        return self._done >= self._whole

    def one_more(self) -> None:
        """One slice is done."""
        self._done += 1
        self._progress(self._done, self._whole)


def follow(futures: Sequence[Future[ReplayResult]], queue: "Queue[None]", count: Count) -> None:
    """Wait for all parts, or for the first that fails, and pass on what they report."""
    waiting = True
    while waiting:
        waiting = bool(wait(futures, _POLL_SECONDS, FIRST_EXCEPTION).not_done)
        waiting = waiting and not any(future.done() and future.exception() for future in futures)
        while not queue.empty():
            queue.get()
            count.one_more()
    if not any(future.exception() for future in futures):
        _take_last(queue, count)


def _take_last(queue: "Queue[None]", count: Count) -> None:
    """Take the reports that are still on their way: a process hands over its result on another one."""
    with suppress(Empty):
        while not count.is_whole:
            queue.get(timeout=_LAST_REPORT_SECONDS)
            count.one_more()


_queue: "Queue[None] | None" = None
"""In a process of the pool: where slices that are done are reported."""


def _report_to(queue: "Queue[None]") -> None:
    global _queue  # noqa: PLW0603 - a pool hands a queue to its processes only when they start
    _queue = queue


def _replay_reporting(plan: Plan, part: Part) -> ReplayResult:
    queue = _queue
    return replay_part(plan, part, (lambda: None) if queue is None else (lambda: queue.put(None)))
