"""What the comparison says: tables and plots, losses included, and what each peer lacks for the job."""

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.pages import Points, percentiles, table, write_part, write_time_plot
from bench.peers.messages import SHAPES
from bench.peers.roster import KQUOTA, PEERS, STREAMS, Peer
from bench.peers.stages import OVERLOADS, catch_up_name, steady_name

Measured = Mapping[str, Mapping[str, Any]]
"""By name of the stage."""

RIGHT: Final = "right"
TARGETS: Final = {"object": 1.5, "array": 4.0}
"""Our warm catch-up rate divided by that of Kafka Streams."""

_BEGIN: Final = "<!-- peers: written by `python -m bench peers` -->"
_END: Final = "<!-- peers end -->"
_MESSAGES: Final = {"object": "objects", "array": "arrays of 100"}
_ANSWERED: Final = 0.9
_NOTHING: Final = ""
_SHARES: Final = [float(share) for share in range(1, 100)]


def markdown(measured: Measured, machine: str, amounts: str) -> str:
    settings = table(["peer", "how it is set"], [[peer.name, peer.settings] for peer in PEERS])
    tables = [*_catch_up(measured), *_steady(measured), *_quotas(measured), *_failures(measured)]
    return "\n\n".join([settings, f"{machine}. {amounts}", *tables])


def write_page(page: Path, text: str, measured: Measured) -> None:
    parts = [text]

    def plot(name: str, title: str, axes: tuple[str, str], lines: Mapping[str, Points], level: float) -> None:
        write_time_plot(page.with_name(name), title, axes, {"": lines}, level=level)
        parts.append(f"![{title}]({name})")

    latencies = {
        peer.name: list(zip(_SHARES, percentiles(run["latency_ms"], _SHARES), strict=True))
        for peer in PEERS
        if _is_right(run := measured.get(steady_name(peer), {})) and _has_answered(run)
    }
    if latencies:
        title, axes = "From an event to its result under steady load", ("percent of the events", "ms")
        plot("peers-latency.svg", title, axes, latencies, 0)
    if "quotas" in measured:
        ratios = _ratios(measured["quotas"])
        lines = {name: [(float(k), ratio) for k, ratio in row.items()] for name, row in ratios.items()}
        plot("peers-quotas.svg", "Long-run rate / T of a client that wants k · T", ("k", "rate / T"), lines, 1)
    write_part(page, _BEGIN, _END, "\n\n".join(parts))


def _catch_up(measured: Measured) -> list[str]:
    parts = []
    head = ["", "sums", "warm, k ev/s", "cold, k ev/s", "start, s", "first result, s", "memory, MB"]
    for shape in SHAPES:
        rows = _rows(measured, partial(catch_up_name, shape=shape), _catch_up_cells, len(head))
        if rows:
            told = [f"**Catching up, {_MESSAGES[shape]}**", table(head, rows)]
            parts.append("\n\n".join([*told, _target(measured, shape)]).rstrip())
    return parts


def _catch_up_cells(run: Mapping[str, Any]) -> list[str]:
    cold, *warm = (rate / 1000 for rate in run["rates"])
    shown = f"{statistics.median(warm):.0f}" if warm else _NOTHING
    times = [f"{run[name]:.1f}" for name in ("ready_seconds", "first_result_seconds")]
    return [RIGHT, shown, f"{cold:.0f}", *times, f"{run['memory_mb']:.0f}"]


def _rows(
    measured: Measured, name_of: Callable[[Peer], str], cells: Callable[[Mapping[str, Any]], list[str]], width: int
) -> list[list[str]]:
    """A row for each peer whose stage was tried; without figures unless its sums are right."""
    rows = []
    for peer in PEERS:
        run = measured.get(name_of(peer))
        if run is not None:
            nothing = ["not measured" if "failure" in run else "**wrong**", *[_NOTHING] * (width - 2)]
            rows.append([peer.name, *(cells(run) if _is_right(run) else nothing)])
    return rows


def ratios_to_streams(measured: Measured, shape: str) -> tuple[float, float] | None:
    """Our catch-up rate divided by that of Kafka Streams, warm and cold; None unless both have right sums."""
    rates = []
    for name in (KQUOTA, STREAMS):
        run = measured.get(f"catch-up {name} {shape}", {})
        if not _is_right(run) or len(run["rates"]) < 2:
            return None
        rates.append((statistics.median(run["rates"][1:]), run["rates"][0]))
    (our_warm, our_cold), (their_warm, their_cold) = rates
    return our_warm / their_warm, our_cold / their_cold


def _target(measured: Measured, shape: str) -> str:
    ratios = ratios_to_streams(measured, shape)
    if ratios is None:
        return _NOTHING
    warm, cold = ratios
    met = "met" if warm >= TARGETS[shape] else "**not met**"
    return f"{KQUOTA} ÷ {STREAMS} = {warm:.2f} warm, {cold:.2f} cold; the target is {TARGETS[shape]:g}, warm: {met}."


def _steady(measured: Measured) -> list[str]:
    head = ["", "sums, the kill included", "p50, ms", "p99, ms", "back after kill −9, s", "memory, MB"]
    rows = _rows(measured, steady_name, _steady_cells, len(head))
    return [f"**Steady load**\n\n{table(head, rows)}", *_processes(measured)] if rows else []


def _processes(measured: Measured) -> list[str]:
    rows = [
        [peer.name, one["name"], f"{one['memory_mb']:.0f}", f"{one['cores']:.2f}"]
        for peer in PEERS
        for one in measured.get(steady_name(peer), {}).get("processes", ())
        if one["memory_mb"]  # none if the process ended while it was being read
    ]
    head = ["", "process", "memory, MB", "cores"]
    return [f"**Each process under the steady load**\n\n{table(head, rows)}"] if rows else []


def _steady_cells(run: Mapping[str, Any]) -> list[str]:
    after = [f"{run['recovery_seconds']:.1f}", f"{run['memory_mb']:.0f}"]
    if not _has_answered(run):
        return [RIGHT, f"falls behind: {len(run['latency_ms'])} of {run['probe_count']} probes answered", "", *after]
    return [RIGHT, *(f"{one:.0f}" for one in percentiles(run["latency_ms"])), *after]


def _quotas(measured: Measured) -> list[str]:
    run = measured.get("quotas")
    if run is None:
        return []
    rows = [[name, *(f"{ratio:.2f}" for ratio in row.values())] for name, row in _ratios(run).items()]
    limits = table(["rate / T at k =", *(f"{k:g}" for k in OVERLOADS)], rows)
    slowed, told = percentiles(run["slowed_ms"]), percentiles(run["told_ms"])
    soon = table(
        ["from the first byte over the quota until", "p50, ms", "p99, ms"],
        [
            ["the broker has muted the client", *(f"{one:.1f}" for one in slowed)],
            ["kquota's record can be read, under the steady load", *(f"{one:.0f}" for one in told)],
        ],
    )
    return [f"**Against the broker's own quotas**\n\n{limits}\n\n{soon}"]


def _ratios(run: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return {
        "the broker's quota, one broker": run["native"]["1"],
        "the broker's quota, two brokers": run["native"]["2"],
        "kquota, any number of brokers (simulated)": run["kquota"],
    }


def _failures(measured: Measured) -> list[str]:
    told = []
    for stage, run in measured.items():
        if "failure" in run:
            told.append(f"* {stage}: {run['failure'].splitlines()[0]}")
        elif run.get("verdict", RIGHT) != RIGHT:
            told.append(f"* {stage}: wrong sums: {run['verdict']}")
    return ["\n".join(told)] if told else []


def _is_right(run: Mapping[str, Any]) -> bool:
    return str(run.get("verdict")) == RIGHT


def _has_answered(run: Mapping[str, Any]) -> bool:
    return bool(len(run["latency_ms"]) >= max(_ANSWERED * run["probe_count"], 2))
