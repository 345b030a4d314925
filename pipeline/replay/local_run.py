"""Replays of a range of stored usage on the cores of this machine."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from pipeline.replay.errors import UsageNotKept
from pipeline.replay.outcome import ReplayResult
from pipeline.replay.request import Plan
from pipeline.replay.slice_replay import DecidedSlice, Held, carried_into, count, decide, held_by, lengthen

_WORTH_PROCESSES_MS: Final = 1_800_000

Progress = Callable[[int, int], None]
"""Called with how many slices are done and how many there are."""


def run(plan: Plan, progress: Progress, worth_ms: int = _WORTH_PROCESSES_MS) -> tuple[list[ReplayResult], str]:
    """All replays of a range, slice by slice. A long range is shared by one process per core.

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
    if min(cores, len(plan.slices)) < 2 or plan.request.until_ms - plan.request.since_ms < worth_ms:
        return in_order(plan, (decide(plan.request, part) for part in plan.slices), progress), "one process"
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        return in_order(plan, _by_pool(plan, pool, cores), progress), f"{cores} processes"


def in_order(plan: Plan, decided: Iterable[DecidedSlice], progress: Progress) -> list[ReplayResult]:
    """Count decided slices as they arrive.

    Args:
        plan: What is replayed.
        decided: All its slices, in order.
        progress: Called after each slice.

    Raises:
        UsageNotKept: The range has no usage.
    """
    request = plan.request
    results = [ReplayResult() for _ in request.quotas]
    held: list[Held] = [{} for _ in request.quotas]
    for number, (part, one) in enumerate(zip(plan.slices, decided, strict=True), start=1):
        for result, further in zip(results, count(request, one, carried_into(request, part, held)), strict=True):
            result.add(further)
        lengthen(held, held_by(request, one))
        progress(number, len(plan.slices))
    return with_usage(plan, results)


def with_usage(plan: Plan, results: list[ReplayResult]) -> list[ReplayResult]:
    """The results, if they are not empty.

    Raises:
        UsageNotKept: Nothing was evaluated.
    """
    if not results[0].evaluations:
        raise UsageNotKept(plan.uri)
    return results


def _by_pool(plan: Plan, pool: ProcessPoolExecutor, cores: int) -> Iterator[DecidedSlice]:
    """Decided slices in order. Only a few are decided ahead, so that memory does not grow with the range."""
    ahead: deque[Future[DecidedSlice]] = deque()
    for part in plan.slices:
        ahead.append(pool.submit(decide, plan.request, part))
        if len(ahead) > cores + 1:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()
