"""Following a file that grows, is rolled or truncated, while readers come and go."""

from pathlib import Path

from pipeline.meter.long_line import LongLine
from tests.pipeline.meter.log_folder import Follow, append, follow, log, read_all, roll, saved

__all__ = ["follow", "log"]  # fixtures


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

    assert read_all(follower) == ["two\r"]


def test_lines_longer_than_a_read_are_put_together(log: Path, follow: Follow) -> None:
    append(log, "a line of many reads\nnext\n")
    follower = follow(log, "beginning", read_bytes=4)

    texts = [line for _ in range(8) for line in follower.read()]

    assert texts == [b"a line of many reads", b"next"]


def test_a_line_above_the_limit_is_handed_out_as_a_long_one(log: Path, follow: Follow) -> None:
    append(log, "x" * 35 + "\nnext\n")
    follower = follow(log, "beginning", read_bytes=8, max_line_bytes=10)

    long, after = [line for _ in range(10) for line in follower.read()]

    assert isinstance(long, LongLine)
    assert (long.size_bytes, after) == (35, b"next")
    assert follower.counts.too_long == 1
    assert follower.place.offset_bytes == log.stat().st_size


def test_a_start_at_the_end_finds_where_a_line_of_many_blocks_begins(log: Path, follow: Follow) -> None:
    append(log, "old\n" + "x" * 600_000)
    follower = follow(log)

    append(log, "y\n")

    assert [len(line) for line in read_all(follower)] == [600_001]


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


def test_a_truncated_file_is_begun_again(log: Path, follow: Follow) -> None:
    append(log, "a long first line\n")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["a long first line"]

    log.write_text("new\n", encoding="utf-8")

    assert read_all(follower) + read_all(follower) == ["new"]
    assert follower.counts.truncated == 1
    assert follower.place.offset_bytes == len("new\n")


def test_a_later_reader_goes_on_where_the_first_stopped(log: Path, follow: Follow) -> None:
    append(log, "1\n2")
    first = follow(log, "beginning")
    assert read_all(first) == ["1"]
    point = saved(first)
    append(log, "\n3\n")

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
