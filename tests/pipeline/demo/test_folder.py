"""`kquota demo` works only in a folder of its own, and deletes only there and only while nothing runs."""

from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.errors import BrokerAlreadyRunning, NotADemoFolder
from pipeline.demo.folder import MARK, DemoFolder
from pipeline.job.lock import JobIsRunning, JobLock
from tests.pipeline.cli.running import kquota


@pytest.fixture
def production(tmp_path: Path) -> Path:
    """What `kquota run` leaves in its run folder, which has the names of the demo's own data."""
    folder = tmp_path / ".kquota"
    for name in ("tables/usage", "checkpoint"):
        (folder / name).mkdir(parents=True)
    (folder / "kquota.lock").touch()
    (folder / "kquota.pid").write_text("1")
    return folder


@pytest.fixture
def demo(tmp_path: Path) -> DemoFolder:
    """A folder in which a demo has run."""
    folder = DemoFolder(tmp_path / "demo")
    folder.claim()
    folder.passwords()
    for path in (folder.broker / "data", folder.tables / "usage", folder.checkpoint):
        path.mkdir(parents=True)
    return folder


def content(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("fresh", [(), ("--fresh",)])
def test_the_folder_of_a_real_job_is_refused_and_stays_as_it_is(fresh: tuple[str, ...], production: Path) -> None:
    before = content(production)
    answer = kquota("demo", *fresh, "--folder", str(production))
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert f"'--folder' must be new, empty or made by an earlier demo; got {production}" in answer.stderr
    assert content(production) == before


def test_the_folder_of_a_running_job_is_refused_and_stays_as_it_is(production: Path) -> None:
    with JobLock(production, "kquota"):
        before = content(production)
        with pytest.raises(NotADemoFolder):
            DemoFolder(production).start_over("kquota")
        assert content(production) == before


def test_starting_over_deletes_the_data_of_the_demo_and_nothing_else(demo: DemoFolder) -> None:
    notes = demo.root / "notes.txt"
    notes.touch()
    demo.start_over("kquota")
    assert {path.name for path in demo.root.iterdir()} == {MARK, "notes.txt", "kquota.lock", "kquota.pid"}
    demo.claim()


def test_starting_over_deletes_a_link_and_not_what_it_leads_to(demo: DemoFolder, production: Path) -> None:
    demo.checkpoint.rmdir()
    demo.checkpoint.symlink_to(production / "checkpoint")
    demo.start_over("kquota")
    assert not demo.checkpoint.is_symlink()
    assert (production / "checkpoint").is_dir()


def test_starting_over_is_refused_while_a_job_runs_in_the_folder(demo: DemoFolder) -> None:
    with JobLock(demo.root, "kquota"), pytest.raises(JobIsRunning):
        demo.start_over("kquota")
    assert demo.tables.is_dir()


def test_starting_over_is_refused_while_a_job_of_another_folder_uses_the_tables(
    demo: DemoFolder, tmp_path: Path
) -> None:
    with JobLock(tmp_path / "elsewhere", "other", str(demo.tables)), pytest.raises(JobIsRunning):
        demo.start_over("kquota")
    assert demo.tables.is_dir()


def test_starting_over_is_refused_while_another_demo_starts_its_broker(demo: DemoFolder) -> None:
    with EmbeddedBroker(demo.broker).reserved(), pytest.raises(BrokerAlreadyRunning):
        demo.start_over("kquota")
    assert demo.tables.is_dir()


def test_there_is_nothing_to_delete_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    DemoFolder(tmp_path / "new").start_over("kquota")
    assert not (tmp_path / "new").exists()


def test_a_new_folder_and_an_empty_one_become_the_demos_own(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        folder = DemoFolder(tmp_path / name)
        folder.claim()
        (folder.root / "tables").mkdir()
        folder.claim()
