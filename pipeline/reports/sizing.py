"""What a job needs for a number of entities and of events: between the measured points, straight lines.

Each figure is a line in the entities, through the points of the same events, plus a line in the events: what the point
with more events needs beyond the one with as many entities. Beyond the last point the last line continues. More load
never needs less: a point below one with less load, as two runs differ, counts as that one.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Self

from pipeline.errors import UsageError
from quota.snapshot import LARGEST_COUNT

PATH: Final = Path(__file__).with_name("measured.json")
"""The figures that `python -m bench scale --write` has measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """A job under one load: `entities` clients sent, all in turn.

    Attributes:
        driver_mb: The most memory that the Python process has held; `jvm_mb` likewise, in local mode.
        cores: CPU seconds of both per second.
        back_s: From kill -9 until a micro-batch is done.
    """

    entities: int
    events_per_second: int
    batch_ms: float
    driver_mb: float
    jvm_mb: float
    cores: float
    back_s: float

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """From the file, which has more fields."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured, and where.

    The first points differ in entities only, from few to many. The last one has as many entities as another of them,
    and more events.
    """

    machine: str
    points: tuple[Point, ...]


def read_measured() -> Measured:
    """The figures that come with this version."""
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    return Measured(stored["machine"], tuple(map(Point.of, stored["points"])))


_FIGURES: Final = ("batch_ms", "driver_mb", "jvm_mb", "cores", "back_s")
_TRIGGER_STEP_MS: Final = 50
_LEAST_TRIGGER_MS: Final = 250
LONGEST_BATCH_MS: Final = 1_500.0
"""A longer micro-batch is more than one driver should have: throttles would come seconds late."""
LARGEST_DRIVER_MB: Final = 3_000.0
"""More memory is more than one driver should need: it has to be rebuilt at a restart."""
_ROOM: Final = 1.5  # between what is used mostly and what must be there


@dataclass(frozen=True, slots=True)
class Size:
    """What one job needs: see `Point`.

    Attributes:
        trigger_ms: The shortest trigger that leaves room for slow batches.
        is_measured: False if there are more entities or events than were measured.
    """

    batch_ms: float
    trigger_ms: int
    driver_mb: float
    jvm_mb: float
    cores: float
    back_s: float
    is_measured: bool


def size_of(entities: int, events_per_second: int, measured: Measured) -> Size:
    """What a job needs for so many clients with usage in the last minutes (> 0), and events of all together (>= 0)."""
    *few_events, most_events = measured.points
    figures = {
        name: _at(entities, few_events, name)
        + (events_per_second - few_events[0].events_per_second) * _per_event(few_events, most_events, name)
        for name in _FIGURES
    }
    figures = {name: max(value, 0.0) for name, value in figures.items()}
    steps = math.ceil(figures["batch_ms"] * _ROOM / _TRIGGER_STEP_MS)
    return Size(
        **figures,
        trigger_ms=max(steps * _TRIGGER_STEP_MS, _LEAST_TRIGGER_MS),
        is_measured=entities <= few_events[-1].entities and events_per_second <= most_events.events_per_second,
    )


def shards_for(entities: int, events_per_second: int, measured: Measured) -> int:
    """The number of jobs that should share the users, so that none needs more than one driver should.

    Each of them reads all events, and decides for its part of the entities.

    Raises:
        UsageError: No number of jobs is enough.
    """
    for count in range(1, LARGEST_COUNT + 1):
        if _fits(size_of(math.ceil(entities / count), events_per_second, measured)):
            return count
    size = size_of(math.ceil(entities / LARGEST_COUNT), events_per_second, measured)
    needs = (
        f"a micro-batch takes {size.batch_ms:.0f} ms and the driver {size.driver_mb:.0f} MB, "
        f"and at most {LONGEST_BATCH_MS:.0f} ms and {LARGEST_DRIVER_MB:.0f} MB are good for one"
    )
    if not _fits(size_of(1, events_per_second, measured)):
        msg = f"no driver holds {events_per_second} events per second, also with shards, as each reads all: {needs}"
        raise UsageError(msg, "let the meters send fewer events, each the sum of a longer time")
    msg = f"no driver holds {entities} entities, even with {LARGEST_COUNT} shards, the most that can be: {needs}"
    raise UsageError(msg, "divide the clients over several clusters, each with its own jobs")


def _fits(size: Size) -> bool:
    return size.batch_ms <= LONGEST_BATCH_MS and size.driver_mb <= LARGEST_DRIVER_MB


def _at(entities: int, points: Sequence[Point], name: str) -> float:
    """The line through the two points around a number of entities; below the first point its figure."""
    figures = [*accumulate((float(getattr(point, name)) for point in points), max)]
    if entities <= points[0].entities:
        return figures[0]
    after = next((place for place, point in enumerate(points) if point.entities >= entities), len(points) - 1)
    left, right = points[after - 1], points[after]
    share = (entities - left.entities) / (right.entities - left.entities)
    return figures[after - 1] + share * (figures[after] - figures[after - 1])


def _per_event(points: Sequence[Point], most_events: Point, name: str) -> float:
    """What one more event per second costs; not below 0, as the difference of two runs may be."""
    same = next(point for point in points if point.entities == most_events.entities)
    more = most_events.events_per_second - same.events_per_second
    return max(float(getattr(most_events, name) - getattr(same, name)) / more, 0.0)
