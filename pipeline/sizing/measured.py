"""The figures that `python -m bench scale --write` has measured."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

PATH: Final = Path(__file__).with_name("measured.json")


@dataclass(frozen=True, slots=True)
class Point:
    """A job under one load.

    Attributes:
        entities: How many clients sent, all in turn.
        events_per_second: Of all together.
        batch_ms: The median micro-batch.
        driver_mb: The most memory that the Python process has held.
        jvm_mb: The most memory that Spark's JVM has held, in local mode.
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

    Attributes:
        machine: One line.
        points: The first ones differ in entities only, from few to many. The last one has as many entities as another
            of them, and more events.
    """

    machine: str
    points: tuple[Point, ...]


def read_measured() -> Measured:
    """The figures that come with this version."""
    told = json.loads(PATH.read_text(encoding="utf-8"))
    return Measured(told["machine"], tuple(map(Point.of, told["points"])))
