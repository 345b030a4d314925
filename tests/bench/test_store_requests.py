"""Requests are counted as the server's log has them, and priced as Amazon does."""

from pathlib import Path

import pytest

from bench.object_store import AccessLog, Requests

LINE = (
    "me kquota [23/November/2026:13:37:53 +0000] 127.0.0.1 me ID s3_{operation} {key} /kquota/{key} {status} 0 16 0 0 "
    "- object_store/0.14.2 - x= SigV4 - AuthHeader s3 - arn:aws:s3:::/kquota/{key} Yes"
)
LOG = [
    *[LINE.format(operation="PutObject", key="t/usage/1.parquet", status="200 -")] * 3,
    LINE.format(operation="PutObject", key="t/usage/_delta_log/1.json", status="412 PreconditionFailed"),
    *[LINE.format(operation="ListObjectsV2", key="-", status="200 -")] * 2,
    *[LINE.format(operation="GetObject", key="t/a", status="200 -")] * 10,
    LINE.format(operation="HeadObject", key="t/a", status="404 NoSuchKey"),
    LINE.format(operation="DeleteObjects", key="-", status="200 -"),
]


def test_requests_are_counted_by_their_price() -> None:
    found = Requests.of(LOG, 10.0)
    assert (found.puts, found.lists, found.gets, found.refused) == (4, 2, 11, 1)
    assert found.a_day(found.puts) == 34_560


def test_a_month_costs_what_its_requests_cost() -> None:
    # 6 a second of the dear ones and 11 of the cheap ones: 518 400 and 950 400 a day.
    found = Requests.of(LOG, 1.0)
    assert found.dollars_a_month == pytest.approx(30 * (518.4 * 0.005 + 950.4 * 0.0004))


def test_only_lines_after_the_beginning_are_read(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("before\n")
    log = AccessLog(path)
    path.write_text("before\nafter\n")
    assert log.new_lines() == ["after"]
