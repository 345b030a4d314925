"""Replays of a range of kept usage under quotas of one's choice, on the cores of this machine."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from pipeline.replay.decided_slice import DecidedSlice, decide
from pipeline.replay.errors import NothingKept
from pipeline.replay.holding import Held, carried_into, count, held_by, lengthen
from pipeline.replay.outcome import ReplayResult
from pipeline.replay.plan import Plan

_WORTH_PROCESSES_MS: Final = 1_800_000

Progress = Callable[[int, int], None]
"""Told how many slices are done, and of how many."""


def run(plan: Plan, progress: Progress, worth_ms: int = _WORTH_PROCESSES_MS) -> tuple[list[ReplayResult], str]:
    """All replays of a range, slice by slice; those of a long one by a process for each core.

    The work is many short NumPy calls, which threads can not share.

    Args:
        plan: What is replayed.
        progress: Told after each slice.
        worth_ms: The shortest range that is worth the start of processes.

    Returns:
        What each replay came to, and what it ran on.

    Raises:
        NothingKept: The range has no usage.
    """
    cores = len(os.sched_getaffinity(0))
    if min(cores, len(plan.slices)) < 2 or plan.order.until_ms - plan.order.since_ms < worth_ms:
        return in_order(plan, (decide(plan.order, part) for part in plan.slices), progress), "one process"
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        return in_order(plan, _by_pool(plan, pool, cores), progress), f"{cores} processes"


def in_order(plan: Plan, decided: Iterable[DecidedSlice], progress: Progress) -> list[ReplayResult]:
    """Decided slices counted as they come.

    Args:
        plan: What is replayed.
        decided: All its slices, in order.
        progress: Told after each.

    Raises:
        NothingKept: None has usage of the range.
    """
    order = plan.order
    results = [ReplayResult() for _ in order.quotas]
    held: list[Held] = [{} for _ in order.quotas]
    for number, (part, one) in enumerate(zip(plan.slices, decided, strict=True), start=1):
        for result, further in zip(results, count(order, one, carried_into(order, part, held)), strict=True):
            result.add(further)
        lengthen(held, held_by(order, one))
        progress(number, len(plan.slices))
    return with_usage(plan, results)


def with_usage(plan: Plan, results: list[ReplayResult]) -> list[ReplayResult]:
    """The results, if anything was evaluated.

    Raises:
        NothingKept: Nothing was.
    """
    if not results[0].evaluations:
        raise NothingKept(plan.uri)
    return results


def _by_pool(plan: Plan, pool: ProcessPoolExecutor, cores: int) -> Iterator[DecidedSlice]:
    """Slices in order, a few ahead of the one that is taken: memory does not grow with the range."""
    ahead: deque[Future[DecidedSlice]] = deque()
    for part in plan.slices:
        ahead.append(pool.submit(decide, plan.order, part))
        if len(ahead) > cores + 1:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()
