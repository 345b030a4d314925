"""Following a file that grows, is rolled or truncated, while readers come and go."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.meter.log_follower import LogFollower, ResumePoint


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kafka-request.log"


Follow = Callable[..., LogFollower]


@pytest.fixture
def follow() -> Iterator[Follow]:
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


def roll(path: Path, name: str, modified_ns: int) -> None:
    path.rename(path.with_name(name))
    os.utime(path.with_name(name), ns=(modified_ns, modified_ns))


def read_all(follower: LogFollower) -> list[str]:
    texts = []
    while lines := follower.read():
        texts += [line.text for line in lines]
    return texts


def saved(follower: LogFollower) -> ResumePoint:
    point = follower.resume_point(follower.position)
    assert point is not None
    return point


def test_starts_at_the_end_by_default(log: Path, follow: Follow) -> None:
    append(log, "old\n")
    follower = follow(log)

    append(log, "new\n")

    assert read_all(follower) == ["new"]


def test_starts_at_the_beginning_when_asked(log: Path, follow: Follow) -> None:
    append(log, "old\n")

    assert read_all(follow(log, "beginning")) == ["old"]


def test_a_start_at_the_end_is_never_inside_a_line(log: Path, follow: Follow) -> None:
    append(log, "old\nhal")
    follower = follow(log)

    append(log, "f\n")

    assert read_all(follower) == ["half"]


def test_a_file_that_appears_later_is_read_from_its_beginning(log: Path, follow: Follow) -> None:
    follower = follow(log, "end")
    assert read_all(follower) == []

    append(log, "first\n")

    assert read_all(follower) == ["first"]


def test_a_line_is_handed_out_when_it_is_whole(log: Path, follow: Follow) -> None:
    append(log, "one\ntw")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["one"]

    append(log, "o\r\n")

    assert read_all(follower) == ["two"]


def test_lines_longer_than_a_read_are_put_together(log: Path, follow: Follow) -> None:
    append(log, "a line of many reads\nnext\n")
    follower = follow(log, "beginning", read_bytes=4)

    texts = [line.text for _ in range(8) for line in follower.read()]

    assert texts == ["a line of many reads", "next"]


def test_a_line_without_end_is_skipped_and_counted(log: Path, follow: Follow) -> None:
    append(log, "x" * 35 + "\nnext\n")
    follower = follow(log, "beginning", read_bytes=8, max_line_bytes=10)

    texts = [line.text for _ in range(10) for line in follower.read()]

    assert texts == ["next"]
    assert follower.counts.too_long == 1
    assert follower.position.offset_bytes == log.stat().st_size


def test_a_rolled_file_is_read_to_its_end_first(log: Path, follow: Follow) -> None:
    append(log, "1\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["1"]
    append(log, "2\n")
    roll(log, "kafka-request.log.2026-11-21-07", modified_ns=1_000_000_000)
    append(log, "3\n")

    assert read_all(follower) == ["2", "3"]
    assert follower.counts.rolled == 1


def test_files_rolled_during_a_pause_are_read_in_order(log: Path, follow: Follow) -> None:
    append(log, "1\n")
    follower = follow(log, "beginning")
    for number in (1, 2, 3):
        roll(log, f"kafka-request.log.{number}", modified_ns=number * 1_000_000_000)
        append(log, f"{number + 1}\n")

    assert read_all(follower) == ["1", "2", "3", "4"]


def test_logs_of_other_brokers_beside_it_are_not_read(tmp_path: Path, follow: Follow) -> None:
    log = tmp_path / "kafka-request-1.log"
    others = [tmp_path / name for name in ("kafka-request-10.log", "kafka-request-1-2.log", "kafka-request.log")]
    append(log, "1\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["1"]
    for number in (1, 2):
        roll(log, f"kafka-request-1.log.{number}", modified_ns=number * 1_000_000_000)
        append(log, f"{number + 1}\n")
        for other in others:
            append(other, "another broker's\n")

    assert read_all(follower) == ["2", "3"]


@pytest.mark.parametrize(
    ("name", "is_rolled"),
    [
        ("kafka-request.log.1", True),
        ("kafka-request.log.2026-11-21-07", True),
        ("kafka-request.log-20261121", True),
        ("kafka-request-2026-11-21.log", True),
        ("kafka-request-11-21-2026-3.log", True),
        ("kafka-request-21-11-2026.log", True),
        ("kafka-request.2026-11-21-07.log", True),
        ("kafka-request_20261121T0733.log", True),
        ("kafka-request.log.1.gz", False),
        ("kafka-request-2026-11-21.log.zst", False),
        ("kafka-request-1.log", False),
        ("kafka-request-10.log", False),
        ("kafka-request-1-2026-11-21.log", False),
        ("kafka-request-2001-2026-11-21.log", False),
        ("kafka-request-2026-13-21.log", False),
        ("kafka-request-1.log.1", False),
        ("kafka-requests.log", False),
        ("kafka-requests.log.1", False),
        ("kafka-request.logs", False),
        ("kafka-request.txt", False),
        ("kafka-request", False),
        ("server.log.2026-11-21", False),
    ],
)
def test_a_rolled_file_is_known_by_its_name(log: Path, follow: Follow, name: str, is_rolled: bool) -> None:
    append(log, "1\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["1"]
    roll(log, "kafka-request.log.0", modified_ns=1_000_000_000)
    append(log.with_name(name), "rolled\n")
    os.utime(log.with_name(name), ns=(2_000_000_000, 2_000_000_000))
    append(log, "2\n")

    assert read_all(follower) == (["rolled", "2"] if is_rolled else ["2"])


def test_a_truncated_file_is_begun_again(log: Path, follow: Follow) -> None:
    append(log, "a long first line\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["a long first line"]
    before = follower.position

    log.write_text("new\n", encoding="utf-8")

    assert read_all(follower) + read_all(follower) == ["new"]
    assert follower.counts.truncated == 1
    assert follower.position > before


def test_a_later_reader_goes_on_where_the_first_stopped(log: Path, follow: Follow) -> None:
    append(log, "1\n2\n")
    first = follow(log, "beginning")
    lines = first.read()
    point = first.resume_point(lines[1].start)
    append(log, "3\n")

    assert read_all(follow(log, "end", point)) == ["2", "3"]


def test_a_later_reader_finds_a_file_that_was_rolled_meanwhile(log: Path, follow: Follow) -> None:
    append(log, "1\n")
    first = follow(log, "beginning")
    read_all(first)
    point = saved(first)
    append(log, "2\n")
    roll(log, "kafka-request.log.1", modified_ns=1_000_000_000)
    append(log, "3\n")

    assert read_all(follow(log, "end", point)) == ["2", "3"]


def test_a_place_in_an_earlier_file_can_still_be_saved_after_rolling(log: Path, follow: Follow) -> None:
    append(log, "1\n2\n")
    first = follow(log, "beginning")
    second_line = first.read()[1].start
    roll(log, "kafka-request.log.1", modified_ns=1_000_000_000)
    append(log, "3\n")
    assert read_all(first) == ["3"]

    point = first.resume_point(second_line)

    assert read_all(follow(log, "end", point)) == ["2", "3"]


def test_a_file_that_is_gone_is_counted_and_the_present_one_read_whole(log: Path, follow: Follow) -> None:
    append(log, "1\n")
    first = follow(log, "beginning")
    read_all(first)
    point = saved(first)
    log.unlink()
    append(log, "2\n")

    later = follow(log, "end", point)

    assert read_all(later) == ["2"]
    assert later.counts.lost == 1


def test_an_inode_that_is_used_again_is_not_taken_for_the_old_file(log: Path, follow: Follow) -> None:
    append(log, "1\n")
    first = follow(log, "beginning")
    read_all(first)
    point = saved(first)
    log.write_text("other, longer\n", encoding="utf-8")
    assert log.stat().st_ino == point.inode

    assert read_all(follow(log, "end", point)) == ["other, longer"]
