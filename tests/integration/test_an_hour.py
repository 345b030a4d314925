"""An hour of twenty clients: every decision is made again by command, and other quotas are tried on it."""

import random
import re
from pathlib import Path

import pytest

from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row

pytestmark = pytest.mark.long

HOUR_MS = 3_600_000
SERVICES = 5_000


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> KeptJob:
    """One batch per second on a clock set by hand; two quota edits in between."""
    root = tmp_path_factory.mktemp("hour")
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
    return kept


def test_every_decision_of_the_hour_is_made_again(hour: KeptJob) -> None:
    answer = kquota("throttles", "verify", "--tables", hour.root)
    assert answer.exit_code == 0, answer
    assert re.search(r"3600 batches with usage: \d{5} decisions, 0 mismatches", answer.stdout + answer.stderr)


def test_half_of_the_quotas_throttles_more_clients(hour: KeptJob, tmp_path: Path) -> None:
    half = tmp_path / "half.yaml"
    half.write_text("quotas:\n- {user: <default>, client_id: '', producer_byte_rate: 500}\n", encoding="utf-8")
    ends = ["--since", str(hour.clock.wall_ms - HOUR_MS), "--until", str(hour.clock.wall_ms + HOUR_MS)]
    words = ["--quotas", str(half), "--from", "usage", *ends, "--fail-if", "newly_throttled>0"]
    answer = kquota("what-if", *words, "--tables", hour.root)
    assert answer.exit_code == 1, answer
    assert re.search(r"of 20 clients throttled, [1-9]\d* newly, 0 no longer", answer.stdout + answer.stderr)


def test_quotas_of_thousands_of_services_are_one_commit(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    values = "  values: [{key: producer_byte_rate, value: '1000'}]"
    rows = (f"- entity: [{{type: user, name: service-{number:04}}}]\n{values}" for number in range(SERVICES))
    fleet.write_text("\n".join(["quotas:", *rows, ""]), encoding="utf-8")
    root = new_tables(tmp_path / "tables")
    answer = kquota("quotas", "apply", "-f", str(fleet), "--reason", "services of autumn", "--tables", root)
    assert answer.exit_code == 0, answer
    assert answer.stderr.endswith("quotas v2\n")
    described = kquota("quotas", "describe", "--tables", root)
    assert described.stdout.count("producer_byte_rate=1000") == SERVICES
