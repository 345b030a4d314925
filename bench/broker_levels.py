"""One quota on many brokers: how near their sum is to T, simulated on a clock that is set by hand.

    python -m bench broker_levels
    python -m bench.broker_levels [--page docs/broker-levels.md] [--seconds-only]

Entities that want k · T on up to 30 brokers, each of which enforces the level with Kafka's rate rule and sees nothing
of the others. Three controllers have the same loads: the rule of `quota.broker_levels.level_control`, one that knows
what is wanted where, and none: one broker that has all of T. Then the CPU time of a period for 10 000 entities. Prints
the tables, and writes them into the page, between the lines that begin with `<!-- tables`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from bench.level_runs import (
    BOUND,
    MOVE_SECOND,
    MOVES,
    SECONDS,
    SHOWN_OVERLOADS,
    ByKnowledge,
    ByRule,
    Run,
    one_broker,
    run_all,
    scenarios,
)
from bench.machine import arguments, machine_line
from bench.pages import table, write_part
from quota.broker_levels.level_control import NEVER_MS, LevelState, propose
from quota.broker_levels.sync import AlterBudget
from quota.broker_levels.usage import BrokerRates

PAGE: Final = Path(__file__).parents[1] / "docs" / "broker-levels.md"
BEGIN: Final = "<!-- tables: written by `python -m bench broker_levels` -->"
END: Final = "<!-- tables end -->"

SETTLED: Final = 40
"""Seconds after the start or a move from which on the sum shall be within 5 % of T, in each window of 50 s."""
FIRST_SPLITS: Final = ("2, even", "2, 90/10 → 10/90", "6, 50/20/10/10/5/5 → reversed", "30, even")
ENTITIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Runs:
    """The same loads under each controller, and each overload on one broker."""

    rule: list[Run]
    fresh: list[Run]
    known: list[Run]
    one: dict[float, Run]

    @classmethod
    def simulate(cls) -> "Runs":
        loads = scenarios()
        return cls(
            rule=run_all(loads, ByRule),
            fresh=run_all(loads, partial(ByRule, over_before=False)),
            known=run_all(loads, ByKnowledge),
            one={run.scenario.overload: run for run in run_all(one_broker(), ByKnowledge)},
        )


def settled(run: Run) -> tuple[float, float]:
    """The smallest and the largest mean of 50 s, of windows that begin 40 s after the start or the move, or later."""
    spans = ((SETTLED, MOVE_SECOND), (MOVE_SECOND + SETTLED, SECONDS))
    lows, highs = zip(*(run.windows(50, *span) for span in spans), strict=True)
    return min(lows), max(highs)


def after_move(run: Run) -> float:
    """The mean from 10 to 30 s after the move."""
    return run.mean(MOVE_SECOND + 10, MOVE_SECOND + 30)


def outside(low: float, high: float, lowest: float, highest: float) -> float:
    """How far a span is beyond another: negative below it, positive above it, 0 if it is not."""
    below, above = max(lowest - low, 0.0), max(high - highest, 0.0)
    return -below if below > above else above


def shortest_interval(run: Run) -> float:
    """The shortest time between two alters, in seconds; infinity for fewer than two."""
    seconds = [second for second, _ in run.alters]
    return min((after - before for before, after in pairwise(seconds)), default=float("inf"))


def by_split(runs: Sequence[Run], split: str, overloads: Sequence[float]) -> list[Run]:
    return [run for run in runs if run.scenario.split == split and run.scenario.overload in overloads]


def first_minute(runs: Runs) -> str:
    overloads = (1.2, 5.0, 20.0)
    rows = []
    for split in FIRST_SPLITS:
        for name, of_rule in (("never over T before", runs.fresh), ("over T", runs.rule)):
            chosen = by_split(of_rule, split, overloads)
            means = (" / ".join(f"{run.mean(0, span):.2f}" for run in chosen) for span in (10, 30, 60))
            rows.append([split.partition(" →")[0], name, *means])
    alone = (" / ".join(f"{runs.one[k].mean(0, span):.2f}" for k in overloads) for span in (10, 30, 60))
    rows.append(["1", "Kafka alone", *alone])
    return table(["brokers, split", "controller", "first 10 s", "first 30 s", "first minute"], rows)


def steady_state(runs: Runs) -> str:
    rows = []
    for split in MOVES:
        ours, known = (by_split(of_rule, split, SHOWN_OVERLOADS) for of_rule in (runs.rule, runs.known))
        after, at_once = (" / ".join(f"{after_move(run):.2f}" for run in of_rule) for of_rule in (ours, known))
        spans, best = (
            " / ".join("{:.2f}–{:.2f}".format(*settled(run)) for run in of_rule) for of_rule in (ours, known)
        )
        rows.append([split, after, at_once, spans, best, " / ".join(str(len(run.alters)) for run in ours)])
    alone = [runs.one[k] for k in SHOWN_OVERLOADS]
    spans = " / ".join("{:.2f}–{:.2f}".format(*settled(run)) for run in alone)
    rows.append(["1, Kafka alone", " / ".join(f"{after_move(run):.2f}" for run in alone), "", spans, "", ""])
    move, late = "10–30 s after the move", "each 50 s from 40 s on"
    return table(["brokers, split", move, "level known", late, "level known", "alters"], rows)


def verdicts(runs: Runs) -> str:
    rows = []
    named = (("the rule", runs.rule), ("level known", runs.known))
    for name, of_rule in (*named, ("Kafka alone, one broker", list(runs.one.values()))):
        beyond = [outside(*settled(run), 0.95, 1.05) for run in of_rule]
        moved = [outside(after_move(run), after_move(run), 0.7, 1.2) for run in of_rule]
        rows.append([f"within 5 % of T, each 50 s from 40 s on: {name}", *_met(beyond, of_rule)])
        rows.append([f"0.7–1.2 T, 10–30 s after the move: {name}", *_met(moved, of_rule)])
    pairs = list(zip(runs.rule, runs.known, strict=True))
    worse = []
    for run, known in pairs:
        spans = [settled(known), settled(runs.one[run.scenario.overload]), (0.95, 1.05)]
        worse.append(outside(*settled(run), min(low for low, _ in spans), max(high for _, high in spans)))
    rows.append(["each 50 s within 5 %, or what Kafka makes of the right level", *_met(worse, runs.rule)])
    close = [min(shortest_interval(run) - 10.0, 0.0) for run in runs.rule]
    rows.append(["10 s between two alters of an entity", *_met(close, runs.rule, " s")])
    ranges = [outside(run.lowest, run.highest, 1.0 - 1e-9, 1.0) for run in runs.rule]
    rows.append(["T / n ≤ level ≤ T, at every second", *_met(ranges, runs.rule)])
    return table(["target", "runs that meet it", "worst miss"], rows)


def _met(misses: Sequence[float], runs: Sequence[Run], unit: str = "") -> list[str]:
    worst = int(np.argmax(np.abs(misses)))
    met = sum(miss == 0 for miss in misses)
    load = runs[worst].scenario
    shown = f"{misses[worst]:+.2f}{unit or ' T'} ({load.split}; k = {load.overload:g})"
    return [f"{met} of {len(misses)}", "" if met == len(misses) else shown]


def cpu_ms(brokers: int, rounds: int = 9) -> float:
    """The CPU time of a period in which nothing changes, in ms: usage of every cell recorded, and every level asked."""
    draw = np.random.default_rng(brokers)
    cells = np.arange(ENTITIES * brokers).reshape(ENTITIES, brokers)
    now_ms = 1_700_000_000_000
    rates, budget = BrokerRates(0, now_ms), AlterBudget()
    never = np.full(ENTITIES, NEVER_MS)
    bound = np.full(ENTITIES, BOUND)
    state = LevelState.start(bound.copy(), never, never, brokers, now_ms)
    spent = []
    for _ in range(rounds + 12):
        sums = draw.integers(0, int(0.8 * BOUND / brokers), cells.size)
        began = time.process_time()
        rates.record(cells.ravel(), now_ms // 1000, sums, np.full(cells.size, now_ms + 900))
        proposals, state = propose(rates.view(cells, now_ms + 999), bound, state, now_ms + 1000)
        chosen = budget.choose(proposals.urgency, now_ms + 1000)
        spent.append((time.process_time() - began) * 1000)
        if chosen:
            message = f"a period without changes altered {len(chosen)} levels"
            raise RuntimeError(message)
        now_ms += 1000
    return median(spent[12:])


def report(seconds_only: bool = False) -> str:
    costs = table(["brokers", "ms"], [[f"{brokers}", f"{cpu_ms(brokers):.0f}"] for brokers in (3, 30)])
    about = f"CPU time of a period without changes, {ENTITIES:,} entities with usage on all brokers (target 500 ms):"
    cost = f"{about}\n\n{costs}\n\n{machine_line()}"
    if seconds_only:
        return cost
    runs = Runs.simulate()
    overloads = " / ".join(f"{k:g}" for k in SHOWN_OVERLOADS)
    parts = [
        f"The sum over the brokers, divided by T. Four figures are for k = {overloads}.",
        steady_state(runs),
        "The start, for k = 1.2 / 5 / 20:",
        first_minute(runs),
        f"All {len(runs.rule)} runs, with k = 1.2, 1.5, 2, 3, 5, 10, 20 and 50:",
        verdicts(runs),
        cost,
    ]
    return "\n\n".join(parts)


def main() -> None:
    asked = arguments(__doc__, page=str(PAGE), seconds_only=False)
    tables = report(asked.seconds_only)
    print(tables)
    if not asked.seconds_only:
        write_part(Path(asked.page), BEGIN, END, tables)


if __name__ == "__main__":
    main()
