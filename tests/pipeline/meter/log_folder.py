"""A log in a folder, as a broker and its log4j leave it there, and a reader of it."""

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline.meter.log_follower import LogFollower, LogPlace

Follow = Callable[..., LogFollower]

SECOND_NS: Final = 1_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kafka-request.log"


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Makes followers that are closed at the end of the test."""
    opened: list[LogFollower] = []

    def open_follower(*arguments: Any, **settings: Any) -> LogFollower:
        opened.append(LogFollower(*arguments, **settings))
        return opened[-1]

    yield open_follower
    for follower in opened:
        follower.close()


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def write(path: Path, text: str) -> None:
    """A file of this text; compressed if its name says so."""
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def roll(path: Path, name: str, modified_ns: int) -> None:
    path.rename(path.with_name(name))
    os.utime(path.with_name(name), ns=(modified_ns, modified_ns))


def compress(path: Path, modified_ns: int) -> Path:
    """As log4j does: a new file with the time at which it was compressed, then the old one is deleted."""
    compressed = path.with_name(f"{path.name}.gz")
    write(compressed, path.read_text(encoding="utf-8"))
    os.utime(compressed, ns=(modified_ns, modified_ns))
    path.unlink()
    return compressed


def read_once(follower: LogFollower) -> list[str]:
    return [line.decode() for line in follower.read() if isinstance(line, bytes)]


def read_all(follower: LogFollower) -> list[str]:
    texts = []
    while lines := read_once(follower):
        texts += lines
    return texts


def saved(follower: LogFollower) -> LogPlace:
    """As a later process gets it."""
    return LogPlace.model_validate_json(follower.place.model_dump_json())
