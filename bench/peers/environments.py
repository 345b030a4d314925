"""What the peers run in: a virtual environment for each Python one, compiled classes for the Java one.

All are made once, under the project's cache folder. Other requirements or another source make them anew.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.peers.jars import peer_jars
from pipeline.jvm.cache import cache_folder
from pipeline.jvm.java import find_jdk

_HERE: Final = Path(__file__).parent
_SECONDS: Final = 900


class PeerMissing(Exception):
    """A peer cannot run here; the message says why."""


def peers_folder() -> Path:
    """For environments, classes and measurements."""
    return cache_folder() / "peers"


def python_of(name: str) -> Path:
    """The Python of a peer's environment, made if it is missing.

    Args:
        name: of its requirements file, requirements-<name>.txt in this folder: pinned, with hashes.

    Raises:
        PeerMissing: the packages cannot be installed here.
    """
    requirements = _HERE / f"requirements-{name}.txt"
    folder = peers_folder() / f"{name}-{_digest(requirements)}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
        _run([str(python), "-m", "pip", "install", *options, "-r", str(requirements)])
        (folder / "complete").touch()
    return python


def streams_classpath() -> str:
    """The class path of the Kafka Streams peer, compiled if it is not yet.

    Raises:
        PeerMissing: there is no compiler.
        JarsUnavailable: jars of the lock are in no source.
    """
    jdk = find_jdk()
    if jdk is None:
        message = "no JDK (javac): Kafka Streams is left out"
        raise PeerMissing(message)
    source = _HERE / "StreamsPeer.java"
    jars = [str(jar) for jar in peer_jars("streams")]
    classes = peers_folder() / f"streams-{_digest(source)}"
    if not (classes / "StreamsPeer.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        compiler = str(jdk.home / "bin" / "javac")
        _run([compiler, "--release", "17", "-d", str(classes), "-cp", os.pathsep.join(jars), str(source)])
    return os.pathsep.join([str(classes), *jars])


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
    if ended.returncode:
        reason = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:] or ["no reason told"]
        message = f"{' '.join(command[:4])} … ended with {ended.returncode}: {reason[0]}"
        raise PeerMissing(message)
