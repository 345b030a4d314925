"""`kquota demo` works only in a folder of its own, and deletes only there and only while nothing runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.command_line import carry_nothing, command_text
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.folder import MARK, DemoFolder
from pipeline.demo.plan import STOCK_CLIENTS
from pipeline.demo.run import start_over
from pipeline.errors import Conflict, UsageError
from pipeline.job.lock import JobLock
from tests.pipeline.cli.running import kquota

ROOT = Path(__file__).parents[3]
# The second demo, and then on standard output what it has loaded of what makes it slow.
SECOND_DEMO = """
import sys
from pipeline.cli.main import exit_code
sys.argv = ["kquota", *sys.argv[1:]]
code = exit_code()
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "kafka", "deltalake", "pyarrow", "numpy"}))
sys.exit(code)
"""


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
    with folder.claimed():
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
    assert f"{production} is not a demo's folder" in answer.stderr
    assert content(production) == before


def test_the_folder_of_a_running_job_is_refused_and_stays_as_it_is(production: Path) -> None:
    with JobLock(production, "kquota"):
        before = content(production)
        with pytest.raises(UsageError, match="is not a demo's folder"), DemoFolder(production).claimed():
            pass
        assert content(production) == before


def test_starting_over_deletes_the_data_of_the_demo_and_nothing_else(demo: DemoFolder) -> None:
    notes = demo.root / "notes.txt"
    notes.touch()
    stock = (demo.stock_client(client.client_id) for client in STOCK_CLIENTS)
    for path in (demo.settings_file, demo.candidate, demo.sync_log, *stock):
        path.touch()
    start_over(demo, "kquota")
    locks = {"kquota.lock", "kquota.pid", "demo.lock", "demo.pid"}
    assert {path.name for path in demo.root.iterdir()} == {MARK, "notes.txt", *locks}
    with demo.claimed():
        pass


def test_starting_over_deletes_every_broker_and_each_is_held_meanwhile(demo: DemoFolder) -> None:
    for broker in demo.brokers(3):
        (broker / "data").mkdir(parents=True, exist_ok=True)
    with EmbeddedBroker(demo.brokers(3)[-1]).reserved(), pytest.raises(Conflict, match="broker directory"):
        start_over(demo, "kquota")
    assert demo.former_brokers() == 3
    start_over(demo, "kquota")
    assert demo.former_brokers() == 0


def test_a_demo_has_as_many_brokers_as_the_one_before(demo: DemoFolder) -> None:
    assert [demo.choose_brokers(wanted) for wanted in (None, 1)] == [1, 1]
    demo.brokers(2)[-1].mkdir()
    assert [demo.choose_brokers(wanted) for wanted in (None, 2)] == [2, 2]
    for wanted in (1, 3):
        with pytest.raises(UsageError, match=f"has 2 brokers; --brokers {wanted} cannot"):
            demo.choose_brokers(wanted)


@pytest.mark.parametrize(("wanted", "chosen"), [(None, 1), (2, 2)])
def test_the_first_demo_of_a_folder_has_one_broker_or_as_many_as_are_wanted(
    wanted: int | None, chosen: int, tmp_path: Path
) -> None:
    assert DemoFolder(tmp_path).choose_brokers(wanted) == chosen


def test_passwords_stay_and_users_of_a_later_release_get_theirs(demo: DemoFolder) -> None:
    before = demo.passwords()
    assert demo.passwords() == before
    user, *others = before
    demo.password_file.write_text(json.dumps({user: before[user]}), encoding="utf-8")
    after = demo.passwords()
    assert list(after) == [user, *others]
    assert after[user] == before[user]
    assert demo.passwords() == after


def test_starting_over_deletes_a_link_and_not_what_it_leads_to(demo: DemoFolder, production: Path) -> None:
    demo.checkpoint.rmdir()
    demo.checkpoint.symlink_to(production / "checkpoint")
    start_over(demo, "kquota")
    assert not demo.checkpoint.is_symlink()
    assert (production / "checkpoint").is_dir()


def test_starting_over_is_refused_while_a_job_runs_in_the_folder(demo: DemoFolder) -> None:
    with JobLock(demo.root, "kquota"), pytest.raises(Conflict):
        start_over(demo, "kquota")
    assert demo.tables.is_dir()


def test_starting_over_is_refused_while_a_job_of_another_folder_uses_the_tables(
    demo: DemoFolder, tmp_path: Path
) -> None:
    with JobLock(tmp_path / "elsewhere", "other", str(demo.tables)), pytest.raises(Conflict):
        start_over(demo, "kquota")
    assert demo.tables.is_dir()


def test_starting_over_is_refused_while_another_demo_starts_its_broker(demo: DemoFolder) -> None:
    with EmbeddedBroker(demo.broker).reserved(), pytest.raises(Conflict, match="broker directory"):
        start_over(demo, "kquota")
    assert demo.tables.is_dir()


def test_a_new_folder_and_an_empty_one_become_the_demos_own(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        folder = DemoFolder(tmp_path / name)
        for _ in range(2):
            with folder.claimed():
                (folder.root / "tables").mkdir(exist_ok=True)


def test_a_second_demo_is_refused_before_anything_heavy_is_loaded(demo: DemoFolder) -> None:
    with demo.claimed():
        before = content(demo.root)
        command = [sys.executable, "-c", SECOND_DEMO, "demo", "--folder", str(demo.root), "--fresh"]
        second = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert content(demo.root) == before
    assert second.returncode == 4
    assert f"another demo runs in {demo.root}, as process {os.getpid()}. Fix: stop that one" in second.stderr
    assert f"KQUOTA_CONFIG={demo.settings_file} " in second.stderr
    assert second.stdout.split() == []


def test_commands_that_the_demo_prints_find_its_settings_and_its_tables(
    demo: DemoFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demo.root.parent)
    monkeypatch.delenv("KQUOTA_TABLES__ROOT", raising=False)
    carry_nothing()
    with demo.claimed():
        assert command_text("mode").startswith("KQUOTA_CONFIG=demo/kquota.toml ")
    monkeypatch.setenv("KQUOTA_TABLES__ROOT", "/elsewhere")
    with demo.claimed():
        assert command_text("mode").startswith(f"KQUOTA_CONFIG=demo/kquota.toml KQUOTA_TABLES__ROOT={demo.tables} ")
    carry_nothing()
