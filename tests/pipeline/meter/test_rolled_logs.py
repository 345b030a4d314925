"""Rolled logs: no line is lost, and none is read twice, whoever was down meanwhile."""

import logging
import os
import random
from pathlib import Path

import pytest

from pipeline.meter.log_follower import PASSED_FILES, LogPlace
from tests.log_messages import messages_of
from tests.pipeline.meter.log_folder import (
    SECOND_NS,
    Follow,
    append,
    compress,
    follow,
    log,
    read_all,
    read_once,
    roll,
    saved,
    write,
)

__all__ = ["follow", "log"]  # fixtures


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
        ("kafka-request.log.1.gz", True),
        ("kafka-request.log.2026-11-21-07.gz", True),
        ("kafka-request-2026-11-21.log.gz", True),
        ("kafka-request.log.gz", False),
        ("kafka-request.log.1.bz2", False),
        ("kafka-request-2026-11-21.log.zst", False),
        ("kafka-request-1.log.1.gz", False),
        ("kafka-request-10-2026-11-21.log.gz", False),
        ("kafka-request.gz", False),
        ("server.log.1.gz", False),
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
    write(log.with_name(name), "rolled\n")
    os.utime(log.with_name(name), ns=(2_000_000_000, 2_000_000_000))
    append(log, "2\n")

    assert read_all(follower) == (["rolled", "2"] if is_rolled else ["2"])


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


@pytest.mark.parametrize("name", ["kafka-request.log.1", "kafka-request.log.1.gz"])
def test_a_file_that_begins_alike_and_is_shorter_is_not_the_one(log: Path, follow: Follow, name: str) -> None:
    append(log, f"{'1' * 2_000}\n2\n")
    first = follow(log, "beginning")
    read_all(first)
    place = saved(first)
    log.unlink()
    write(log.with_name(name), f"{'1' * 2_000}\n")

    assert follow(log, "end", place).counts.lost == 1


def test_a_place_before_there_was_a_file_is_before_the_first_file(log: Path, follow: Follow) -> None:
    write(log.with_name("kafka-request.log.1"), "old\n")
    place = saved(follow(log, "end"))
    append(log, "1\n")
    roll(log, "kafka-request.log.2", modified_ns=log.stat().st_mtime_ns + SECOND_NS)
    append(log, "2\n")

    later = follow(log, "end", place)

    assert read_all(later) == ["1", "2"]
    assert later.counts.lost == 0


def test_a_place_in_a_file_that_was_still_empty_is_found_again(log: Path, follow: Follow) -> None:
    append(log, "")
    place = saved(follow(log, "end"))
    append(log, "1\n")
    assert read_all(follow(log, "end", place)) == ["1"]

    roll(log, "kafka-request.log.1", modified_ns=SECOND_NS)
    compress(log.with_name("kafka-request.log.1"), modified_ns=2 * SECOND_NS)
    append(log, "2\n")
    assert read_all(follow(log, "end", place)) == ["1", "2"]


def test_a_log_that_is_copied_and_cut_is_gone_on_in_the_copy(log: Path, follow: Follow) -> None:
    append(log, "1\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["1"]
    append(log, "2\n3\n")
    write(log.with_name("kafka-request.log.1"), log.read_text())
    os.truncate(log, 0)

    assert [line for _ in range(5) for line in read_all(follower)] == ["2", "3"]
    append(log, "4\n")
    assert read_all(follower) == ["4"]
    assert read_all(follow(log, "end", saved(follower))) == []


def test_a_file_that_is_gone_is_told_and_older_ones_are_not_read_again(
    log: Path, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, "1\n")
    first = follow(log, "beginning")
    read_all(first)
    roll(log, "kafka-request.log.1", modified_ns=SECOND_NS)
    append(log, "2\n")
    assert read_all(first) == ["2"]
    place = saved(first)
    log.unlink()
    write(log.with_name("kafka-request.log.3"), "4\n")
    append(log, "5\n")

    with caplog.at_level(logging.WARNING):
        later = follow(log, "end", place)

    assert read_all(later) == ["4", "5"]
    assert later.counts.lost == 1
    (told,) = messages_of(caplog, "pipeline.meter.log_follower")
    assert "is gone, with the lines after byte 2; continuing with the oldest file that is left" in told


def test_a_state_of_an_earlier_release_does_not_say_what_was_passed_and_no_old_file_is_read(
    log: Path, follow: Follow
) -> None:
    write(log.with_name("kafka-request.log.1"), "old\n")
    append(log, "1\n")
    first = follow(log, "beginning")
    read_all(first)
    old = LogPlace(**saved(first).model_dump(exclude={"passed_until_ns", "passed"}))
    append(log, "2\n")
    assert read_all(follow(log, "end", old)) == ["2"]

    for number in (2, 3):
        roll(log, f"kafka-request.log.{number}", modified_ns=log.stat().st_mtime_ns + number * SECOND_NS)
        append(log, f"{number + 1}\n")
    assert read_all(follow(log, "end", old)) == ["2", "3", "4"]


@pytest.mark.parametrize("seed", range(8))
def test_every_line_is_read_once_whatever_happens_to_the_files(log: Path, follow: Follow, seed: int) -> None:
    """Rolls, compression and restarts in any order; a clock that goes on a little each time."""
    chance = random.Random(seed)
    follower = follow(log, "beginning")
    read: list[str] = []
    written, now_ns, rolled = 0, SECOND_NS, 0
    for _ in range(400):
        now_ns += chance.randrange(SECOND_NS)
        action = chance.choice(["write", "write", "read", "roll", "restart"])
        if action == "write":
            append(log, f"{written:04}\n")
            os.utime(log, ns=(now_ns, now_ns))
            written += 1
        elif action == "read":
            read += read_once(follower)
        elif action == "restart":
            follower = follow(log, "end", saved(follower))
        elif log.exists() and log.stat().st_size:
            # As log4j: the last one is compressed before the next one is rolled, perhaps long after.
            last = log.with_name(f"kafka-request.log.{rolled}")
            if last.exists():
                compress(last, modified_ns=now_ns)
            rolled += 1
            log.rename(log.with_name(f"kafka-request.log.{rolled}"))
    read += read_all(follower)

    assert read == [f"{number:04}" for number in range(written)]
    assert follower.counts.lost == 0
    assert rolled > PASSED_FILES
