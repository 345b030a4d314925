"""Each command that the demo proposes works on the demo's data, as it is printed, in the shell that shows it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.command_line import command_text, path_text
from pipeline.demo.folder import DemoFolder, at_the_end, while_it_runs
from pipeline.job.lock import JobLock
from pipeline.settings.loading import load_settings
from pipeline.tables.throttles import recent_events
from tests.faults.hand_job import HandJob
from tests.pipeline.demo.played import OFFENDER, played_demo, throttle_one

ROOT = Path(__file__).parents[3]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[DemoFolder, HandJob]]:
    monkeypatch.chdir(tmp_path)
    with played_demo(tmp_path / "a demo") as played:
        yield played


def paste(command: str) -> str:
    """What a shell in this folder prints for a command that must end with 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # the script beside this Python may be another checkout's
    shell = ["/bin/sh", "-c", command]
    answer = subprocess.run(shell, capture_output=True, text=True, check=False, env=environment)
    assert answer.returncode == 0, f"{command}\n{answer.stdout}{answer.stderr}"
    return answer.stdout


def test_the_settings_file_finds_broker_tables_checkpoint_and_lock(played: tuple[DemoFolder, HandJob]) -> None:
    folder, job = played
    found = load_settings(folder.settings_file)
    assert (found.kafka, found.run_dir, found.job) == (job.settings.kafka, folder.root, job.settings.job)
    assert (found.tables.root, found.stream.checkpoint) == (str(folder.tables), job.settings.stream.checkpoint)


def test_a_candidate_that_its_user_has_changed_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with played_demo(tmp_path / "demo") as (folder, _job):
            assert folder.candidate.read_text().startswith(("# Quotas to try", "mine"))
            folder.candidate.write_text("mine")


def test_what_is_proposed_while_it_runs_tells_of_the_first_throttle(played: tuple[DemoFolder, HandJob]) -> None:
    _, job = played
    throttle_one(job)
    *commands, observe = while_it_runs()
    with JobLock(job.settings.run_dir, job.settings.job, job.settings.tables.root):
        status, throttles, quotas = map(paste, commands)
    assert "batch   2, " in status
    assert OFFENDER[0] in throttles
    assert "default user-principal" in quotas
    assert "observe --usage-topic quota.usage.v1 --minutes 1" in observe


def test_what_is_proposed_at_the_end_explains_a_decision_and_tries_the_candidate(
    played: tuple[DemoFolder, HandJob],
) -> None:
    folder, job = played
    throttle_one(job)
    decision_id = recent_events(str(folder.tables), 1)[0]["decision_id"][:8]
    explained, throttles, compared = (paste(command) for command in at_the_end(decision_id, 3, folder.candidate))
    assert decision_id in explained
    assert "/".join(OFFENDER) in throttles
    assert "clients throttled" in compared


@pytest.mark.parametrize("batches", [0, 1])
def test_what_is_proposed_after_a_short_demo_works_too(batches: int, played: tuple[DemoFolder, HandJob]) -> None:
    folder, job = played
    for _ in range(batches):
        job.send(f'{{"event_time_ms":{job.clock.wall_ms},"user":"u","client_id":"c","produced_bytes":1}}'.encode())
        job.step()
    for command in at_the_end(None, batches, folder.candidate):
        paste(command)


def test_the_other_commands_for_a_running_demo_find_it_by_its_settings(played: tuple[DemoFolder, HandJob]) -> None:
    folder, _ = played
    assert command_text("status").startswith("KQUOTA_CONFIG='a demo/kquota.toml' ")
    assert f"export KQUOTA_CONFIG='{folder.settings_file}'; {command_text('mode')}".count("kquota.toml") == 2
    assert paste(f"export KQUOTA_CONFIG='{path_text(folder.settings_file)}'; {command_text('mode')}") == "enforce\n"
