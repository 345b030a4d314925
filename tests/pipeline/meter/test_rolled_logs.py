"""Rolled and compressed logs: no line is lost, and none is read twice, whoever was down meanwhile."""

import gzip
import logging
import os
import random
from pathlib import Path

import pytest

from pipeline.meter.log_place import PASSED_FILES, LogPlace
from tests.log_messages import messages_of
from tests.pipeline.meter.log_folder import Follow, append, compress, follow, log, read_all, roll, saved, write

__all__ = ["follow", "log"]  # fixtures

SECOND_NS = 1_000_000_000


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


def test_a_file_that_was_rolled_and_compressed_while_the_meter_was_down_is_gone_on_in(
    log: Path, follow: Follow
) -> None:
    append(log, "1\n2\n")
    first = follow(log, "beginning")
    assert read_all(first) == ["1", "2"]
    place = saved(first)
    append(log, "3\n")
    roll(log, "kafka-request.log.1", modified_ns=SECOND_NS)
    compress(log.with_name("kafka-request.log.1"), modified_ns=2 * SECOND_NS)
    append(log, "4\n")

    later = follow(log, "end", place)

    assert read_all(later) == ["3", "4"]
    assert (later.counts.lost, later.counts.rolled) == (0, 1)


def test_several_compressed_files_of_a_long_pause_are_read_in_order(log: Path, follow: Follow) -> None:
    append(log, "1\n")
    first = follow(log, "beginning")
    assert read_all(first) == ["1"]
    place = saved(first)
    for number in range(1, 6):
        roll(log, f"kafka-request.log.{number}", modified_ns=10 * number * SECOND_NS)
        if number < 5:
            compress(log.with_name(f"kafka-request.log.{number}"), modified_ns=(10 * number + 3) * SECOND_NS)
        append(log, f"{number + 1}\n")

    assert read_all(follow(log, "end", place)) == ["2", "3", "4", "5", "6"]


def test_a_file_that_is_compressed_while_it_is_read_is_not_read_again(log: Path, follow: Follow) -> None:
    append(log, "1\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["1"]
    append(log, "2\n")
    roll(log, "kafka-request.log.1", modified_ns=SECOND_NS)
    compress(log.with_name("kafka-request.log.1"), modified_ns=9 * SECOND_NS)
    append(log, "3\n")

    assert read_all(follower) == ["2", "3"]


def test_a_file_that_is_compressed_later_than_the_next_one_was_written_is_not_read_again(
    log: Path, follow: Follow
) -> None:
    append(log, "1\n")
    follower = follow(log, "beginning")
    read_all(follower)
    roll(log, "kafka-request.log.1", modified_ns=SECOND_NS)
    append(log, "2\n")
    assert read_all(follower) == ["2"]
    compress(log.with_name("kafka-request.log.1"), modified_ns=5 * SECOND_NS)
    # Nothing was logged meanwhile: the second file is older than what was made of the first.
    roll(log, "kafka-request.log.2", modified_ns=2 * SECOND_NS)
    append(log, "3\n")
    place = saved(follower)

    assert read_all(follower) == ["3"]
    assert read_all(follow(log, "end", place)) == ["3"]


@pytest.mark.parametrize("written", [0, 10, 30, -1])
def test_a_file_that_is_being_compressed_is_read_from_its_source(log: Path, follow: Follow, written: int) -> None:
    append(log, "1\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["1"]
    for number in (1, 2):
        roll(log, f"kafka-request.log.{number}", modified_ns=number * SECOND_NS)
        append(log, f"{number + 1}\n")
    compressed = gzip.compress(b"2\n")
    log.with_name("kafka-request.log.2.gz").write_bytes(compressed if written < 0 else compressed[:written])

    assert read_all(follower) == ["2", "3"]
    log.with_name("kafka-request.log.2").unlink()
    log.with_name("kafka-request.log.2.gz").write_bytes(compressed)
    roll(log, "kafka-request.log.3", modified_ns=3 * SECOND_NS)
    append(log, "4\n")
    assert read_all(follower) == ["4"]
    assert follower.counts.damaged == 0


def test_a_compressed_file_with_the_name_of_an_old_one_is_another_file(log: Path, follow: Follow) -> None:
    write(log.with_name("kafka-request.log.1"), "from before it was compressed\n")
    append(log, "1\n")
    first = follow(log, "beginning")
    read_all(first)
    place = saved(first)
    write(log.with_name("kafka-request.log.2.gz"), "1\n2\n")
    write(log.with_name("kafka-request.log.1.gz"), "3\n")
    write(log, "4\n")

    assert read_all(follow(log, "end", place)) == ["2", "3", "4"]


@pytest.mark.parametrize("name", ["kafka-request.log.1", "kafka-request.log.1.gz"])
def test_a_file_that_begins_alike_and_is_shorter_is_not_the_one(log: Path, follow: Follow, name: str) -> None:
    append(log, f"{'1' * 2_000}\n2\n")
    first = follow(log, "beginning")
    read_all(first)
    place = saved(first)
    log.unlink()
    write(log.with_name(name), f"{'1' * 2_000}\n")

    assert follow(log, "end", place).counts.lost == 1


def test_what_lies_there_at_the_first_start_is_not_read_also_if_it_is_compressed_later(
    log: Path, follow: Follow
) -> None:
    write(log.with_name("kafka-request.log.1"), "old\n")
    write(log.with_name("kafka-request.log.2.gz"), "older\n")
    append(log, "1\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["1"]
    compress(log.with_name("kafka-request.log.1"), modified_ns=log.stat().st_mtime_ns + SECOND_NS)
    roll(log, "kafka-request.log.3", modified_ns=log.stat().st_mtime_ns + SECOND_NS)
    append(log, "2\n")

    assert read_all(follower) == ["2"]


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
    assert "is gone, with the lines after byte 2; going on with the oldest file that is left" in told


def test_a_damaged_file_is_told_once_and_the_next_one_read(
    log: Path, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, "1\n")
    follower = follow(log, "beginning")
    read_all(follower)
    whole = gzip.compress(random.Random(1).randbytes(100_000).hex().encode() + b"\n")
    for number in (1, 2):
        roll(log, f"kafka-request.log.{number}", modified_ns=number * SECOND_NS)
        append(log, f"{number + 1}\n")
    log.with_name("kafka-request.log.2").unlink()
    log.with_name("kafka-request.log.2.gz").write_bytes(whole[: len(whole) // 2])

    with caplog.at_level(logging.WARNING):
        assert read_all(follower) == ["3"]

    assert follower.counts.damaged == 1
    assert len(messages_of(caplog, "pipeline.meter.log_follower")) == 1


@pytest.mark.parametrize("damaged", range(1, 21))
def test_a_damaged_file_hides_no_other_one_of_a_long_pause(log: Path, follow: Follow, damaged: int) -> None:
    append(log, "00\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["00"]
    place = saved(follower)
    for number in range(21):
        roll(log, f"kafka-request.log.{number}", modified_ns=10 * (number + 1) * SECOND_NS)
        compress(log.with_name(f"kafka-request.log.{number}"), modified_ns=(10 * (number + 1) + 3) * SECOND_NS)
        append(log, f"{number + 1:02}\n")
    file = log.with_name(f"kafka-request.log.{damaged}.gz")
    modified_ns = file.stat().st_mtime_ns
    file.write_bytes(b"no gzip at all")
    os.utime(file, ns=(modified_ns, modified_ns))

    later = follow(log, "end", place)

    assert read_all(later) == [f"{number:02}" for number in range(1, 22) if number != damaged]
    assert later.counts.damaged == 1


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


@pytest.mark.parametrize("seed", range(20))
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
            read += [line.decode() for line in follower.read()]
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
