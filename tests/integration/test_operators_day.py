"""Runs the commands of docs/operators-day.md on a running job.

To renew the page, run this test with KQUOTA_RENEW_DOCS=1 and read the difference.
"""

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.tables.quotas.edit import QuotaChange
from tests.integration.running_job import RunningJob, running_job, usage
from tests.integration.transcript import Player, shape
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

DOCUMENT = Path(__file__).parents[2] / "docs" / "operators-day.md"
SERVICES = 5_000
HOUR_MS = 3_600_000


@pytest.fixture
def job(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[RunningJob]:
    with running_job("day", tmp_path, broker.bootstrap_servers) as running:
        yield running


def write_fleet(folder: Path) -> None:
    """Write two files: the quotas of all services, and half of the quotas of the recorded hour."""
    lines = ["quotas:"]
    for number in range(SERVICES):
        lines += [f"- entity: [{{type: user, name: service-{number:04}}}]", "  values:"]
        lines += ["  - {key: producer_byte_rate, value: '1000'}"]
    (folder / "fleet.yaml").write_text("\n".join(lines) + "\n")
    half = ["quotas:", "- entity: [{type: user, name: <default>}]", "  values:"]
    (folder / "half.yaml").write_text("\n".join([*half, "  - {key: producer_byte_rate, value: '500'}", ""]))


def keep_an_hour(root: Path) -> None:
    """Twenty clients for an hour on a clock set by hand, one batch per second; two quota edits in between."""
    kept = KeptJob(str(root), QuotaChange("<default>", "", {"producer_byte_rate": 1_000.0}))
    draw = random.Random(11)
    start_ms = kept.clock.wall_ms
    for second in range(HOUR_MS // 1000):
        if second in {1_200, 2_400}:
            kept.edit(QuotaChange("user-3", "", {"producer_byte_rate": 2_000.0 if second == 1_200 else None}))
        at_ms = start_ms + second * 1000
        users = [number for number in range(20) if draw.random() < 0.8]
        sent = {number: draw.randrange(240 * (number + 1)) for number in users}
        kept.batch([usage_row(at_ms, user=f"user-{number}", produced_bytes=bytes_) for number, bytes_ in sent.items()])
    kept.flush()


def test_the_operators_day_goes_as_the_document_says(job: RunningJob) -> None:
    write_fleet(job.folder)
    keep_an_hour(job.folder / "hour")

    def happens(event: str) -> None:
        user, _, what = event.partition(" ")
        if what.startswith("produces"):
            if job.process is None:
                job.start()
            job.send(usage(user, 600_000, client_id="etl"))
            job.wait_for_record(user=user, action="throttle")
        elif what == "is released":
            job.wait_for_record(user=user, action="release", cause="quota_changed")
        else:
            job.wait_until(lambda: job.records()[-1]["action"] == "release", f"what happens: {what}")
            assert job.records()[-1]["cause"] == "quota_changed"

    environment = {**os.environ, **job.environment, "LOGNAME": "dana", "COLUMNS": "120"}
    written = DOCUMENT.read_text(encoding="utf-8")
    played = Player(job.folder, environment, happens).play(written)
    for here, there in ((socket.gethostname(), "ops1"), (str(job.folder), "/data/kquota")):
        played = played.replace(here, there)
    if "KQUOTA_RENEW_DOCS" in os.environ:
        DOCUMENT.write_text(played, encoding="utf-8")
    assert shape(played) == shape(written)
