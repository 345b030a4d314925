"""Whole lives of a job in logical time, by seed: `python -m tests.lives --seeds 1..2000`.

Ends with 1 if a property does not hold in one of them, and prints the command that repeats it.
"""

import argparse
import logging
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pyarrow as pa

from tests.lives.day import print_day
from tests.lives.life import Life, Lived

_SHOWN = 8


def live(seed: int, hours: float) -> Lived:
    """One life; what it does not expect is found, too."""
    life = Life(seed, hours)
    try:
        return life.run()
    except Exception:
        return Lived(seed, 0, life.happened, Counter(), [traceback.format_exc()], "")


def _begin() -> None:
    """One thread is enough for a process: tables are small. What a job logs about its trouble is not read."""
    logging.disable()
    pa.set_cpu_count(1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lives", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", default="1..20", help="one seed, or the first and the last of many: 1..2000")
    parser.add_argument("--hours", type=float, default=0.05, help="logical hours of trouble in each life, at least")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--day", action="store_true", help="one day with real tables, instead: does anything grow?")
    given = parser.parse_args()
    if given.day:
        print_day()
        return 0
    first, _, last = given.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    happened, compared = Counter[str](), Counter[str]()
    logical_ms, failed = 0, []
    with ProcessPoolExecutor(given.jobs, initializer=_begin) as pool:
        for lived in pool.map(partial(live, hours=given.hours), seeds, chunksize=1):
            logical_ms += lived.logical_ms
            happened += lived.happened
            compared += lived.compared
            if len(seeds) == 1:
                print(f"trace {lived.trace}")  # noqa: T201
            if lived.found:
                failed.append(lived.seed)
                repeat = f"python -m tests.lives --seeds {lived.seed} --hours {given.hours:g}"
                shown = [*lived.found[:_SHOWN], f"{len(lived.found)} differences; repeat: {repeat}"]
                print(*shown, sep="\n", flush=True)  # noqa: T201
    for what, counts in (("happened", happened), ("compared", compared)):
        print(f"{what}:")  # noqa: T201
        for name, count in sorted(counts.items()):
            print(f"  {name:<48} {count:>9}")  # noqa: T201
    hours = logical_ms / 3_600_000
    print(f"{len(seeds)} lives, {hours:.1f} logical hours; failed: {failed or 'none'}")  # noqa: T201
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
