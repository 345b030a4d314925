"""The wheel in an environment and a folder of its own, as a user has it: the demo runs, and so do hints it prints."""

import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.jvm.jars import JarStore, fetch, jars_of
from pipeline.process import terminate
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and the empty folder from which it is used.

    Attributes:
        bin: Folder of its programs.
        home: What the user's home would be; its `mvn` brings the jars.
        folder: The working folder.
    """

    bin: Path
    home: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """All variables: nothing leads to the checkout, or to what this machine has fetched before."""
        return {
            "PATH": f"{self.home}/maven:/usr/bin:/bin",
            "HOME": str(self.home),
            "KQUOTA_CACHE": str(self.home / "cache"),
        }

    def shell(self, line: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place / "dist"))
    (wheel,) = (place / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(place / "venv"))
    python = place / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel))
    # The libraries of this environment, but not what its own .pth files add: kquota as it is in the checkout.
    libraries = next((place / "venv").glob("lib/*/site-packages")) / "libraries.pth"
    libraries.write_text(f"{sysconfig.get_path('purelib')}\n")
    made = Installed(place / "venv" / "bin", place / "home", place / "folder")
    made.folder.mkdir()
    make_maven(made.home / "maven")
    return made


def run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_SECONDS)


def make_maven(folder: Path) -> None:
    """An `mvn` that copies the jars from here, so that none is downloaded."""
    fetch()
    store = JarStore(jars_of())
    (folder / "shelf").mkdir(parents=True)
    for jar in store.locked:
        (folder / "shelf" / jar.file_name).symlink_to(store.path_of(jar))
    (folder / "mvn").write_text('#!/bin/sh\ncp "$(dirname "$0")"/shelf/* .\n')
    (folder / "mvn").chmod(0o755)


@pytest.fixture(scope="module")
def demo(installed: Installed) -> Iterator[Path]:
    """What the demo prints, in a file; it runs and has throttled a client."""
    path = installed.folder.parent / "printed"
    with path.open("wb") as output:
        command = [str(installed.bin / "kquota"), "demo", "--duration", "120", "--port", "18788"]
        process = subprocess.Popen(
            command,
            cwd=installed.folder,
            env=installed.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until(lambda: process.poll() is not None or "to try meanwhile" in path.read_text(), "a throttle")
            wait_until(lambda: process.poll() is not None or len(hints(path)) >= 4, "the hints")
            assert process.poll() is None, path.read_text()
            yield path
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0, path.read_text()
        finally:
            terminate(process, 20)


def hints(printed: Path) -> list[str]:
    """Commands that the demo proposes, and the one behind its first throttle."""
    return re.findall(r"KQUOTA_CONFIG=\S+ \S*kquota .*$", printed.read_text(), re.MULTILINE)


def test_missing_jars_are_fetched_into_the_cache_and_told(demo: Path, installed: Installed) -> None:
    wanted = len(jars_of())
    assert re.search(rf"{wanted} jars are not in .*: they are fetched once", demo.read_text())
    assert len(list((installed.home / "cache" / "jars").glob("*/*.jar"))) == wanted


def test_the_demo_has_started_from_the_wheel_alone(demo: Path, installed: Installed) -> None:
    assert "Traceback" not in demo.read_text()
    where = installed.shell(f"{installed.bin}/python -c 'import pipeline; print(pipeline.__file__)'").stdout
    assert where.startswith(str(installed.bin.parent)), where
    assert list(installed.folder.iterdir()) == [installed.folder / ".kquota"]


def test_every_hint_runs_as_it_is_printed(demo: Path, installed: Installed) -> None:
    commands = list(dict.fromkeys(hints(demo)))[:4]
    assert {"explain", "status", "list", "describe"} <= {word for line in commands for word in line.split()}
    for line in commands:
        done = installed.shell(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
