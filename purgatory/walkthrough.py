"""Shows a timing wheel poll by poll.

    python -m purgatory.walkthrough 9 88 222 520 521 522 [--tick 1] [--wheel-size 10]

`L2·8@80` is bucket 8 of level 2, whose expiration is 80. `purgatory.timing_wheel` explains the example.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from purgatory.timing_wheel import BucketQueue, TaskCounter, TimerTask, TimerTaskEntry, TimingWheel


@dataclass(frozen=True)
class Step:
    """What one poll of the bucket queue did: the expiration of the bucket that was polled, and what followed.

    Attributes:
        clocks_ms: the clock of every level afterwards, finest level first.
        fired_ms: expirations of the tasks that ran.
        moved: for each task that moved its expiration, the bucket before and the bucket after.
        queue_ms: expirations of the buckets that are still in the queue.
    """

    polled_ms: int
    clocks_ms: list[int]
    fired_ms: list[int]
    moved: list[tuple[int, str, str]]
    queue_ms: list[int]


class Walkthrough:
    """A wheel whose clock starts at 0 and is moved by hand."""

    def __init__(self, tick_ms: int, wheel_size: int) -> None:
        self.counter = TaskCounter()
        self.queue = BucketQueue()
        self.wheel = TimingWheel(tick_ms, wheel_size, 0, self.counter, self.queue)
        self.refused_ms: list[int] = []

    def add(self, expiration_ms: int) -> str:
        """Add a task and return where it waits, as `place_of` does."""
        entry = TimerTaskEntry(TimerTask(expiration_ms), expiration_ms)
        if not self.wheel.add(entry):
            self.refused_ms.append(expiration_ms)
            return "due"
        return self.place_of(entry)

    def place_of(self, entry: TimerTaskEntry) -> str:
        """Level, bucket and expiration of the bucket, for example "L2·8@80"; "due" for an entry in no bucket."""
        for wheel in self.wheel.levels:
            for number, bucket in enumerate(wheel.buckets):
                if bucket is entry.bucket:
                    return f"L{wheel.level}·{number}@{bucket.expiration_ms}"
        return "due"

    def poll(self) -> Step | None:
        """Poll the next bucket as if its time had come. None when no bucket is in the queue."""
        polled_ms = self.queue.first_expiration_ms
        bucket = None if polled_ms is None else self.queue.poll(polled_ms)
        if polled_ms is None or bucket is None:
            return None
        places = {entry: self.place_of(entry) for entry in bucket}
        fired_ms: list[int] = []
        moved: list[tuple[int, str, str]] = []

        def add_again(entry: TimerTaskEntry) -> None:
            if self.wheel.add(entry):
                moved.append((entry.expiration_ms, places[entry], self.place_of(entry)))
            elif not entry.is_cancelled:
                fired_ms.append(entry.expiration_ms)

        self.wheel.advance_clock(polled_ms)
        bucket.flush(add_again)
        clocks_ms = [wheel.clock_ms for wheel in self.wheel.levels]
        return Step(polled_ms, clocks_ms, fired_ms, moved, self.queue.expirations_ms)


def lines(expirations_ms: Sequence[int], tick_ms: int, wheel_size: int) -> list[str]:
    """All that happens, as text: one line per task that is added, then one line per poll."""
    walk = Walkthrough(tick_ms, wheel_size)
    shown = [f"tick {tick_ms} ms, {wheel_size} buckets per level, clock 0", ""]
    shown += [f"add {expiration_ms:>6}   {walk.add(expiration_ms)}" for expiration_ms in expirations_ms]
    for wheel in walk.wheel.levels:
        shown.append(f"level {wheel.level}: {wheel_size} buckets of {wheel.tick_ms} ms, {wheel.interval_ms} ms in all")
    shown += [f"queue        {_listed(walk.queue.expirations_ms)}", ""]
    shown.append(f"{'poll':>8}   {'clocks':<24} {'fired':<12} {'queue after':<24} moved")
    while (step := walk.poll()) is not None:
        moved = "; ".join(f"{expiration_ms}: {before} -> {after}" for expiration_ms, before, after in step.moved)
        row = (
            f"{step.polled_ms:>8}   {_listed(step.clocks_ms):<24} {_listed(step.fired_ms):<12}"
            f" {_listed(step.queue_ms):<24} {moved}"
        )
        shown.append(row.rstrip())
    return shown


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the walk-through of the given expirations."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.walkthrough", description="A timing wheel, poll by poll."
    )
    parser.add_argument("expirations_ms", type=int, nargs="+", metavar="EXPIRATION_MS")
    parser.add_argument("--tick", type=int, default=1, metavar="MS")
    parser.add_argument("--wheel-size", type=int, default=10, metavar="BUCKETS")
    asked = parser.parse_args(arguments)
    sys.stdout.write("\n".join(lines(asked.expirations_ms, asked.tick, asked.wheel_size)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
