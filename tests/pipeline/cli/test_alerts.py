"""`kquota alerts`: a test message to each receiver, and the process that tells alerts until it is ended."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli.options import Source
from pipeline.cli.services import running_alerts
from pipeline.errors import UsageError
from pipeline.settings.loading import load_settings
from tests.metrics_reading import metrics_named_in
from tests.pipeline.alerts.receiving import Inbox, receiving
from tests.pipeline.cli.running import kquota
from tests.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with receiving() as running:
        yield running


def settings_file(folder: Path, *lines: str) -> Path:
    """Settings of a job whose tables are missing, which is an alert after a second."""
    file = folder / "kquota.toml"
    head = (f'run_dir = "{folder}"', "[tables]", f'root = "{folder}/tables"', "[alerts]", "stalled_after_ms = 1000")
    file.write_text("\n".join([*head, "look_every_ms = 100", *lines]), encoding="utf-8")
    return file


def wait_for_metric(log: Path, line: str) -> None:
    wait_until(lambda: line in metrics_named_in(log.read_text()), line)


def test_each_receiver_gets_one_test_alert_and_its_answer_is_told(tmp_path: Path, inbox: Inbox) -> None:
    with receiving() as broken:
        broken.answers = [503]
        file = settings_file(tmp_path, "[alerts.webhooks]", f'ops = "{inbox.url}"', f'pager = "{broken.url}"')
        answer = kquota("alerts", "test", "--config", str(file), "-o", "json")
    assert answer.exit_code == 6
    assert answer.stderr.startswith("kquota: the test alert did not arrive at pager. Fix:")
    ops, pager = json.loads(answer.stdout)
    assert (ops["receiver"], ops["result"], ops["answer"]) == ("ops", "taken", "200")
    assert (pager["receiver"], pager["result"], pager["answer"]) == ("pager", "not taken", "503 Service Unavailable")
    assert ops["took_ms"] >= 0
    assert inbox.alerts() == [("KquotaTest", "", "firing")]
    assert len(broken.requests) == 1
    assert "s3cret" not in answer.stdout + answer.stderr


def test_a_test_that_all_receivers_take_ends_well(tmp_path: Path, inbox: Inbox) -> None:
    file = settings_file(tmp_path, "[alerts.webhooks]", f'ops = "{inbox.url}"')
    answer = kquota("alerts", "test", "--config", str(file))
    assert (answer.exit_code, answer.stderr) == (0, "")
    header, row = answer.stdout.splitlines()
    assert header.split() == ["receiver", "at", "result", "answer", "took", "ms"]
    assert row.split()[:4] == ["ops", inbox.url.removesuffix("/hook/s3cret"), "taken", "200"]


@pytest.mark.parametrize("command", ["test", "run"])
def test_without_receivers_it_says_where_they_are_named(command: str, tmp_path: Path) -> None:
    answer = kquota("alerts", command, "--config", str(settings_file(tmp_path)))
    assert answer.exit_code == 2
    assert "alerts have no receiver: neither alerts.webhooks nor alerts.topic is set" in answer.stderr


def test_it_runs_until_it_is_ended_and_the_next_one_knows_what_was_told(tmp_path: Path, inbox: Inbox) -> None:
    file = settings_file(tmp_path, "[alerts.webhooks]", f'ops = "{inbox.url}"', "[metrics]", "port = 0")
    log = tmp_path / "log"
    command = [sys.executable, "-m", "pipeline.cli.main", "alerts", "run", "--config", str(file)]
    for life in range(2):
        with log.open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
            wait_until(lambda: len(inbox.requests) == 1, "the alert")
            wait_for_metric(log, 'kquota_alerts_firing{alertname="KquotaStalled"} 1.0')
            wait_for_metric(log, f'kquota_alerts_sent_total{{receiver="ops"}} {1 - life}.0')
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
    assert inbox.alerts() == [("KquotaStalled", "", "firing")]
    assert "s3cret" not in log.read_text()
    assert "alerts go to ops (http://127.0.0.1:" in log.read_text()


def test_beside_a_job_it_ends_with_it_and_is_refused_without_receivers(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = settings_file(tmp_path, "[alerts.webhooks]", f'ops = "{inbox.url}"')
    with running_alerts(load_settings(file), Source(file)):
        wait_until(lambda: bool(inbox.requests), "the alert")
    assert "alerts go to ops" in capfd.readouterr().err
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(UsageError, match="no receiver"),
        running_alerts(load_settings(settings_file(tmp_path)), Source(file)),
    ):
        pass
