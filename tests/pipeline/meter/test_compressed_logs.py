"""Rolled logs that are compressed, sooner or later: no line is lost, and none is read twice."""

import gzip
import logging
import os
import random
from pathlib import Path

import pytest

from tests.log_messages import messages_of
from tests.pipeline.meter.log_folder import (
    SECOND_NS,
    Follow,
    append,
    compress,
    follow,
    log,
    read_all,
    roll,
    saved,
    write,
)

__all__ = ["follow", "log"]  # fixtures


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
