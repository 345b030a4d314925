"""What the job logs and the demo prints: a line for each throttle record, unless there are very many at once."""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.cli.demo_console import DemoConsole
from pipeline.cli.services import MOST_LINES, log_throttles
from pipeline.throttle.explain import line_with_command
from schemas.names import ClientKey
from schemas.throttle_record import Target
from tests.pipeline.throttle.factories import publications, violation
from tests.pipeline.throttle.test_publisher import NOW

CANDIDATE = Path("candidate.yaml")


def report(user: str = "alice", client_id: str = "etl") -> dict[str, Any]:
    return {"user": user, "client_id": client_id, "role": "produce", "sent_bytes": 0, "blocked": False}


def test_the_table_says_who_was_slowed_by_what(capsys: pytest.CaptureFixture[str]) -> None:
    console = DemoConsole(CANDIDATE, watched=False)
    console.client_report(
        {**report(), "held_ms": 12_300, "broker_throttle_mean_ms": 0.0, "broker_throttle_max_ms": 0.0}
    )
    stock = {"user": "erp", "client_id": "exporter", "role": "produce", "sent_bytes": 0}
    for mean_ms, longest_ms in ((900.0, 4_000.0), (310.0, 500.0)):
        console.client_report({**stock, "broker_throttle_mean_ms": mean_ms, "broker_throttle_max_ms": longest_ms})
    console.client_report(report("bob", "free"))
    console.summary(dict.fromkeys([("alice", "etl"), ("erp", "exporter"), ("bob", "free")]))
    rows = [line.split(maxsplit=7) for line in capsys.readouterr().out.splitlines()]
    assert {row[0]: row[7] for row in rows if "/" in "".join(row[:1])} == {
        "alice/etl": "listening: 12 s",
        "erp/exporter": "the broker: 310 ms a request, at most 4000",
        "bob/free": "nothing",
    }


def test_of_a_client_that_does_not_listen_one_record_is_printed_all_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = DemoConsole(CANDIDATE, watched=False)
    clients = ["alice/etl", "erp/exporter", "erp/exporter", "alice/etl", "erp/exporter"]
    for number, client in enumerate(clients):
        user, _, client_id = client.partition("/")
        console.client_report(report(user, client_id))
        news = publications(violation(ClientKey("", user, client_id)))
        console.listeners().announce(news.written(number, NOW.wall_ms), 3)
    printed = capsys.readouterr()
    assert [line.split()[2] for line in printed.out.splitlines()] == ["alice/etl", "erp/exporter", "alice/etl"]
    assert printed.err.count("erp/exporter does not listen") == 1
    console.summary(dict.fromkeys([("alice", "etl"), ("erp", "exporter")]))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0]: row[4] for row in rows if "/" in "".join(row[:1])} == {"alice/etl": "2", "erp/exporter": "3"}


def test_a_throttle_of_a_user_is_counted_for_its_client(capsys: pytest.CaptureFixture[str]) -> None:
    console = DemoConsole(CANDIDATE, watched=False)
    console.client_report(report("search", "indexer"))
    console.client_report(report())
    console.listeners().announce(publications(violation(Target("", "search", None, None))).written(0, NOW.wall_ms), 3)
    assert capsys.readouterr().out.split()[1:3] == ["throttle", "search/*"]
    console.summary({})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0]: row[4] for row in rows if "/" in "".join(row[:1])} == {"search/indexer": "1", "alice/etl": "0"}


def written(count: int) -> pa.Table:
    news = publications(*(violation(throttle_time_ms=number + 1) for number in range(count)))
    return news.written(7, NOW.wall_ms)


@pytest.mark.parametrize("more", [-1, 0, 1, 300])
def test_every_record_has_a_line_up_to_a_number_at_once(more: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pipeline.job")
    records = written(MOST_LINES + more)
    log_throttles(records, 3)
    told = [line_with_command(record, 3) for record in records.slice(0, MOST_LINES).to_pylist()]
    rest = [f"and {more} more throttle records at the same time: see throttle_events"] if more > 0 else []
    assert caplog.messages == told + rest
