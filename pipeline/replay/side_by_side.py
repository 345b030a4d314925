"""Two replays of one range at once: the quotas that were live, and the candidate."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Final

from pipeline.replay.what_if import Progress, ReplayOrder, ReplayResult, Timeline, run
from pipeline.tables.errors import TableMissing
from pipeline.tables.quota_source import QuotaSource
from pipeline.tables.quota_table import QuotaTable
from quota.errors import InvalidQuotas
from quota.snapshot import QuotaSnapshot

_WORTH_A_PROCESS_MS: Final = 1_800_000


def run_both(order: ReplayOrder, candidate: QuotaSnapshot, progress: Progress) -> tuple[ReplayResult, ReplayResult]:
    """Replay with the order's quotas and with a candidate.

    A long range is replayed in two processes: the work is many short NumPy calls, which threads can not share.

    Args:
        order: With the quotas that were in force.
        candidate: Holds throughout.
        progress: Told about the candidate's replay.

    Returns:
        What the live quotas came to, and what the candidate came to.

    Raises:
        As `run` does.
    """
    other = replace(order, quotas=Timeline((0,), (candidate,)))
    if order.until_ms - order.since_ms < _WORTH_A_PROCESS_MS:
        result = run(other, progress)
        return run(order, _unheard), result
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        live = pool.submit(run, order, _unheard)
        result = run(other, progress)
        return live.result(), result


def live_timeline(table: QuotaTable, source: QuotaSource, since_ms: int) -> Timeline:
    """The quotas that were in force in a range, by the times of their commits; invalid versions never were.

    Args:
        table: The quota table.
        source: Reads its versions.
        since_ms: Begin of the range: older versions are left out, but the one in force then.
    """
    in_force: list[tuple[int, QuotaSnapshot]] = []
    for commit in table.history(None):
        try:
            snapshot = source.at(commit.version)
        except (InvalidQuotas, TableMissing):
            continue
        committed_at_ms = round(commit.committed_at.timestamp() * 1000)
        in_force.append((committed_at_ms, snapshot))
        if committed_at_ms <= since_ms:
            break
    in_force.reverse()
    return Timeline(tuple(at_ms for at_ms, _ in in_force), tuple(snapshot for _, snapshot in in_force))


def _unheard(done: int, whole: int) -> None:
    del done, whole
