"""What the job logs and the demo prints: a line for each throttle record, unless there are very many at once."""

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.cli.demo_console import DemoConsole
from pipeline.cli.services import MOST_LINES, log_throttles
from pipeline.throttle.shapes import line_with_command
from schemas.names import ClientKey
from tests.pipeline.throttle.factories import publications, violation
from tests.pipeline.throttle.test_publisher import NOW

CANDIDATE = Path("candidate.yaml")


def test_of_a_client_that_does_not_listen_one_record_is_printed_all_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = DemoConsole(CANDIDATE, watched=False)
    clients = ["alice/etl", "erp/exporter", "erp/exporter", "alice/etl", "erp/exporter"]
    for number, client in enumerate(clients):
        user, _, client_id = client.partition("/")
        news = publications(violation(ClientKey("", user, client_id)))
        console.listeners().announce(news.written(number, NOW.wall_ms), 3)
    printed = capsys.readouterr()
    assert [line.split()[2] for line in printed.out.splitlines()] == ["alice/etl", "erp/exporter", "alice/etl"]
    assert printed.err.count("erp/exporter does not listen") == 1
    console.summary()
    assert capsys.readouterr().out.split()[-3:] == ["5", "throttle", "records"]


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
