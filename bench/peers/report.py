"""What the comparison says, in tables, losses included; what is wrong has no speed."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bench.pages import percentiles, row, table
from bench.peers.life import CaughtUp, Steady
from bench.peers.messages import SHAPES
from bench.peers.roster import BARE, KQUOTA, PEERS, STREAMS

Measured = dict[str, Any]
"""By name of the stage; the text of its failure for one that could not be measured."""

TARGETS: Final = {"object": {STREAMS: 1.3, BARE: 1.0}, "array": {STREAMS: 3.0, BARE: 1.4}}
"""Our warm catch-up rate divided by theirs."""
MOST_OF_STREAMS: Final = 1.4
"""Latency of kquota's record divided by that of a result of Kafka Streams."""
MOST_CORES: Final = 1.0
_MESSAGES: Final = {"object": "objects", "array": "arrays of 100"}
_ANSWERED: Final = 0.9


def catch_up_name(peer: str, shape: str) -> str:
    return f"catch-up {peer} {shape}"


def steady_name(peer: str) -> str:
    return f"steady {peer}"


def markdown(runs: Measured, about: str) -> str:
    settings = table(["peer", "how it is set"], [[peer.name, peer.settings] for peer in PEERS])
    return "\n\n".join([settings, about, tables_of(runs)])


def tables_of(runs: Measured) -> str:
    """The tables of the stages that were run, and why a stage has no figures."""
    failures = [f"* {name}: {run.splitlines()[0]}" for name, run in runs.items() if isinstance(run, str)]
    failures += [f"* {name}: wrong sums: {run.wrong}" for name, run in runs.items() if getattr(run, "wrong", "")]
    parts = [*_catch_up(runs), *_steady(runs), *_probe(runs), "\n".join(failures)]
    return "\n\n".join(filter(None, parts))


def _rows(runs: Measured, name_of: Callable[[str], str], cells: Callable[[Any], list[str]], width: int) -> list[str]:
    """A row for each peer that was tried; without figures unless its sums are right."""
    rows = []
    for peer in PEERS:
        run = runs.get(name_of(peer.name))
        if run is not None:
            state = "not measured" if isinstance(run, str) else "**wrong**" if run.wrong else "right"
            rows.append(row([peer.name, state, *(cells(run) if state == "right" else [""] * width)]))
    return rows


def _catch_up(runs: Measured) -> list[str]:
    head = ["", "sums", "warm, k ev/s", "cold, k ev/s", "start, s", "first result, s", "memory, MB"]
    parts = []
    for shape in SHAPES:
        rows = _rows(runs, partial(catch_up_name, shape=shape), _catch_up_cells, len(head) - 2)
        if rows:
            parts.append("\n".join([f"**Catching up, {_MESSAGES[shape]}**\n", table(head), *rows]))
            parts += _ratios(runs, shape)
    return parts


def _catch_up_cells(run: CaughtUp) -> list[str]:
    times = [f"{run.ready_seconds:.1f}", f"{run.first_result_seconds:.1f}"]
    return [f"{run.warm / 1000:.0f}", f"{run.cold / 1000:.0f}", *times, f"{run.memory_mb:.0f}"]


def _ratios(runs: Measured, shape: str) -> list[str]:
    """What is not right has no ratio."""
    told = []
    for name, target in TARGETS[shape].items():
        ours, theirs = (runs.get(catch_up_name(peer, shape)) for peer in (KQUOTA, name))
        if not isinstance(ours, CaughtUp) or not isinstance(theirs, CaughtUp):
            continue
        if theirs.warm and not (ours.wrong or theirs.wrong):
            warm, cold = ours.warm / theirs.warm, ours.cold / theirs.cold
            met = _met(warm >= target)
            told.append(f"{KQUOTA} ÷ {name} = {warm:.2f} warm, {cold:.2f} cold; the target is {target:g}, warm: {met}.")
    return told


def _steady(runs: Measured) -> list[str]:
    head = ["", "sums, the kill included", "p50, ms", "p99, ms", "back after kill −9, s", "memory, MB", "cores"]
    rows = _rows(runs, steady_name, _steady_cells, len(head) - 2)
    return ["\n".join(["**Steady load**\n", table(head), *rows])] if rows else []


def _steady_cells(run: Steady) -> list[str]:
    after = [f"{run.recovery_seconds:.1f}", f"{run.memory_mb:.0f}", f"{run.cores:.2f}"]
    if not _keeps_up(run):
        return [f"falls behind: {len(run.latency_ms)} of {run.asked} answered", "", *after]
    return [*(f"{one:.0f}" for one in percentiles(run.latency_ms)), *after]


def _keeps_up(run: Steady) -> bool:
    return len(run.latency_ms) >= max(_ANSWERED * run.asked, 2)


def _probe(runs: Measured) -> list[str]:
    run, streams = runs.get("probe"), runs.get(steady_name(STREAMS))
    if run is None or isinstance(run, str):
        return []
    p50, p99 = percentiles(run.latencies_ms)
    late_p50, late_p99 = percentiles(run.lateness_ms)
    told = [
        f"**A first event above the quota**\n\nkquota's record can be read after p50 {p50:.0f}, p99 {p99:.0f} ms, at "
        f"{run.cores:.2f} cores (at most {MOST_CORES:g}: {_met(run.cores <= MOST_CORES)}), "
        f"with {run.memory_mb:.0f} MB. A check that is due is handed out by the wheel after p50 "
        f"{late_p50:.0f}, p99 {late_p99:.0f} ms."
    ]
    if isinstance(streams, Steady) and not streams.wrong and _keeps_up(streams):
        theirs = percentiles(streams.latency_ms)
        ratios = p50 / theirs[0], p99 / theirs[1]
        met = _met(max(ratios) <= MOST_OF_STREAMS)
        told.append(f"÷ {STREAMS} = {ratios[0]:.2f} p50, {ratios[1]:.2f} p99; the target is {MOST_OF_STREAMS}: {met}.")
    return told


def _met(is_met: bool) -> str:
    return "met" if is_met else "**not met**"
