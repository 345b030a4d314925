"""Lines above the limit are charged from what was seen of them, and no cut of a log changes what is charged."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.meter.log_follower import FollowerCounts, LogFollower
from pipeline.meter.long_line import KEPT_BYTES, LongLine
from pipeline.meter.request_log import LineCounts, MalformedLine
from tests.pipeline.meter.log_folder import Follow, append, follow, log, read_all, roll
from tests.pipeline.meter.logged_requests import FETCH, PRODUCE, api, event_of, line_of, parser

__all__ = ["follow", "log"]  # fixtures

MANY = [{"name": f"topic-{n}", "partitionData": [{"index": n, "recordsSizeInBytes": 1_000 * n}]} for n in range(9)]


def produce(topics: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return PRODUCE | {"request": PRODUCE["request"] | {"topicData": topics}} | changes


def compact(logged: dict[str, Any]) -> bytes:
    """A line as Kafka writes it, without blanks."""
    text = json.dumps(logged, separators=(",", ":"), ensure_ascii=False)
    return f"[2026-11-21 07:33:33,391] DEBUG Completed request:{text} (kafka.request.logger)".encode()


def long_line(line: bytes, *cuts: int) -> LongLine:
    long = LongLine()
    for begin, end in zip((0, *cuts), (*cuts, len(line)), strict=True):
        long.add(line[begin:end])
    return long


def seen(long: LongLine) -> tuple[int, int, int | None, bytes]:
    return long.size_bytes, long.records_bytes, long.acks, long.shortened


CHARGED = [
    (produce(MANY), 36_000, None),
    (FETCH, None, 72),
    (FETCH | {"requestHeader": api("SHARE_FETCH")["requestHeader"]}, None, 72),
    (produce(MANY, requestHeader=PRODUCE["requestHeader"] | {"requestApiVersion": 99}), 36_000, None),
    (produce([{"name": "a", "partitionData": [{"index": 0, "recordsSizeInBytes": -1}]}]), 0, None),
    (produce([{"name": '","recordsSizeInBytes":7,"', "partitionData": []}]), 0, None),
]


@pytest.mark.parametrize(("logged", "produced", "fetched"), CHARGED)
def test_a_long_line_is_charged_with_its_records_and_its_length(
    logged: dict[str, Any], produced: int | None, fetched: int | None
) -> None:
    line, reader = compact(logged), parser()
    event, whole = event_of(reader, long_line(line, 300)), event_of(parser(), line)
    assert event is not None
    assert whole is not None
    assert (event.user, event.client_id, event.io_time_ns) == (whole.user, whole.client_id, whole.io_time_ns)
    assert event.event_time_ms == whole.event_time_ms
    assert event.produced_bytes == (None if produced is None else produced + len(line))
    assert event.fetched_bytes == (None if fetched is None else fetched + len(line))
    assert (event.produced_bytes or 0) >= (whole.produced_bytes or 0), "never too little"
    assert (reader.counts.events, reader.counts.estimated) == (1, 1)


def test_a_long_line_of_a_request_without_records_has_its_time_alone() -> None:
    reader = parser()
    event = event_of(reader, long_line(compact(api("METADATA"))))
    assert event is not None
    assert (event.produced_bytes, event.fetched_bytes, event.io_time_ns) == (None, None, 1_204_000)
    assert reader.counts.estimated == 0


@pytest.mark.parametrize(("acks", "is_exempt"), [(0, True), (1, False), (-1, False)])
def test_the_acks_of_a_long_line_are_seen(acks: int, is_exempt: bool) -> None:
    event = event_of(parser(), long_line(compact(produce(MANY) | {"request": {"acks": acks, "timeoutMs": 1}})))
    assert event is not None
    assert event.throttle_exempt == is_exempt


@pytest.mark.parametrize(
    "changes",
    [
        {"principal": 'User:a","connection":"'},
        {"requestHeader": PRODUCE["requestHeader"] | {"clientId": '},"request":{"acks":0},"principal":"User:b"'}},
        {"requestHeader": PRODUCE["requestHeader"] | {"clientId": "\x01" * 32_767}},
        {"request": PRODUCE["request"] | {"topicData": [{"name": '","principal":"User:b' * KEPT_BYTES}]}},
    ],
)
def test_no_name_in_a_long_line_is_taken_for_a_key(changes: dict[str, Any]) -> None:
    logged = PRODUCE | changes
    event = event_of(parser(), long_line(compact(logged)))
    assert event is not None
    assert event.user == logged["principal"].removeprefix("User:")
    assert event.client_id == logged["requestHeader"]["clientId"]


def test_a_long_line_that_names_no_client_is_counted_with_its_length() -> None:
    line, reader = compact(produce(MANY)), parser()
    with pytest.raises(MalformedLine):
        event_of(reader, long_line(line[:900]))
    assert (reader.counts.malformed, reader.counts.uncharged_bytes) == (1, 900)


def test_what_is_kept_of_a_long_line_is_bounded() -> None:
    long = long_line(compact(produce(MANY)))
    for _ in range(40):
        long.add(b'{"index":0,"recordsSizeInBytes":70},' * 1_000)
    assert len(long) == 2 * KEPT_BYTES
    assert long.records_bytes == 36_000 + 40 * 70_000


LINE = compact(produce(MANY))


@given(st.lists(st.integers(0, len(LINE)), max_size=40).map(sorted))
def test_however_a_long_line_is_cut_the_same_is_seen(cuts: list[int]) -> None:
    assert seen(long_line(LINE, *cuts)) == seen(long_line(LINE))


LOG = (
    b"\n".join(
        (LINE, line_of(PRODUCE), line_of(FETCH), b"", compact(FETCH), b"x" * 900, LINE[:600], line_of(api("METADATA")))
    )
    + b"\n"
)


def metered(
    read_bytes: int, max_line_bytes: int
) -> tuple[list[tuple[int, Any]], list[str], LineCounts, FollowerCounts]:
    reader = parser()
    events: list[tuple[int, Any]] = []
    refused: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kafka-request.log")
        path.write_bytes(LOG)
        follower = LogFollower(path, "beginning", read_bytes=read_bytes, max_line_bytes=max_line_bytes)
        while follower.place.offset_bytes < len(LOG):
            events += reader.elements(follower.read(), lambda error, _: refused.append(str(error)))
        follower.close()
    return events, refused, reader.counts, follower.counts


@given(st.integers(1, 3 * len(LOG)), st.integers(1, 2 * len(LINE)))
def test_wherever_chunks_end_events_and_counts_are_the_same(read_bytes: int, max_line_bytes: int) -> None:
    assert metered(read_bytes, max_line_bytes) == metered(len(LOG), max_line_bytes)


@pytest.mark.parametrize(("limit", "is_long"), [(len(LINE) - 1, True), (len(LINE), False), (len(LINE) + 1, False)])
@pytest.mark.parametrize("read_bytes", [64, len(LINE), len(LINE) + 1, 1 << 20])
def test_the_limit_is_the_same_for_a_line_within_a_chunk(
    log: Path, follow: Follow, limit: int, is_long: bool, read_bytes: int
) -> None:
    log.write_bytes(LINE + b"\n" + LINE + b"\n")
    follower = follow(log, "beginning", read_bytes=read_bytes, max_line_bytes=limit)
    lines = [line for _ in range(100) for line in follower.read()]
    assert [isinstance(line, LongLine) for line in lines] == [is_long, is_long]
    assert follower.counts.too_long == 2 * is_long


def test_lines_of_1_5_mb_are_charged_to_the_byte(log: Path, follow: Follow) -> None:
    hidden = [{"name": "\x01" * 32_000, "partitionData": [{"index": 0, "recordsSizeInBytes": 70}]} for _ in range(8)]
    sent = [{"name": "orders", "partitionData": [{"index": 0, "recordsSizeInBytes": 50_000_000}]}]
    line = line_of(produce(sent + hidden))
    assert len(line) > 1_500_000
    log.write_bytes((line + b"\n") * 3)
    follower, reader = follow(log, "beginning"), parser()
    events = [event_of(reader, one) for _ in range(20) for one in follower.read()]
    assert [event and event.produced_bytes for event in events] == [50_256_691] * 3
    assert reader.counts.estimated == 0


def test_a_reader_that_resumes_within_a_long_line_reads_it_again(log: Path, follow: Follow) -> None:
    append(log, "one\n" + "x" * 60)
    first = follow(log, "beginning", max_line_bytes=50)
    assert read_all(first) == ["one"]
    place = first.place
    append(log, "y\n")
    (line,) = follow(log, "end", place, max_line_bytes=50).read()
    assert isinstance(line, LongLine)
    assert line.size_bytes == 61


def test_a_last_line_without_end_is_handed_out_when_its_file_is_left(log: Path, follow: Follow) -> None:
    append(log, "one\ntw")
    follower = follow(log, "beginning")
    assert read_all(follower) == ["one"]
    roll(log, "kafka-request.log.1", modified_ns=1_000_000_000)
    append(log, "three\n")
    assert read_all(follower) == ["tw", "three"]


def test_an_idle_log_with_half_a_line_keeps_nothing_more(log: Path, follow: Follow) -> None:
    append(log, "half")
    follower = follow(log, "beginning", max_line_bytes=10)
    for _ in range(50):
        assert follower.read() == []
    append(log, " a line\n")
    (line,) = follower.read()
    assert isinstance(line, LongLine)
    assert (line.size_bytes, line.shortened) == (11, b"half a line")
