"""Archives of parsed and verified classes, which a JVM maps at the start: one of Spark, one of the embedded broker.

A JVM reads some 15 000 classes before Spark's first answer; from an archive that takes half the time. An archive
belongs to one Java and to jars with their modification times, which its path stands for. Java 17 also checks them and
ignores any other archive; Java 25 was seen to take an AOT cache of another class path.

From Java 25 on it is an AOT cache (JEP 514), which also holds what the training run has learned about hot methods
(JEP 515), so the JVM's compiler needs fewer minutes. Before, it is an archive of class data sharing (JEP 350).
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pipeline.jvm.cache import cache_folder
from pipeline.jvm.java import version_in

AOT_SINCE_VERSION: Final = 25
Program = Literal["spark", "broker"]
_ARCHIVE: Final = ".jsa"
_AOT_CACHE: Final = ".aot"
_MADE_FOR: Final = "made-for"
_DRAFTS: Final = "draft-"
_ABANDONED_AFTER_SECONDS: Final = 3600


def class_archive(
    program: Program, java_home: Path, jars: Sequence[Path], environ: Mapping[str, str] = os.environ
) -> Path:
    """The path of a program's archive for a Java and its jars; the file may not exist.

    Args:
        program: What the JVM runs.
        java_home: Of the Java that runs it.
        jars: Its class path in order, jars or folders of jars; they exist.
        environ: KQUOTA_CACHE is read from it.
    """
    try:
        release = (java_home / "release").read_text(encoding="utf-8")
    except OSError:
        release = ""
    of_jars = [part for jar in jars for part in (str(jar.resolve()), str(jar.stat().st_mtime_ns))]
    fits = "\n".join([str(java_home.resolve()), release, *of_jars])
    version = version_in(release)
    suffix = _AOT_CACHE if version is not None and version >= AOT_SINCE_VERSION else _ARCHIVE
    return _folder(environ) / hashlib.sha256(fits.encode()).hexdigest()[:16] / f"{program}{suffix}"


def options_to_make(archive: Path) -> list[str]:
    """The JVM options of a training run, which writes the archive when it ends.

    Args:
        archive: as returned by `class_archive`, or a draft of the same name.
    """
    return [f"-XX:{'AOTCacheOutput' if archive.suffix == _AOT_CACHE else 'ArchiveClassesAtExit'}={archive}"]


def options_to_use(archive: Path) -> list[str]:
    """The JVM options that start from the archive.

    The JVM starts without a file that is no archive of its own version; its message about that is switched off.

    Args:
        archive: as returned by `class_archive`.
    """
    if archive.suffix == _AOT_CACHE:
        return [f"-XX:AOTCache={archive}", "-Xlog:aot*=off", "-Xlog:cds=off"]
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def make_archive(archive: Path, jars: Sequence[Path], train: Callable[[Path], str | None]) -> str:
    """Make an archive if it is missing; returns in words what was done. Several processes may do it at once.

    An archive only saves time, so no failure of the disk is an error here.

    Args:
        archive: As returned by `class_archive`.
        jars: As given to `class_archive`.
        train: Runs the program in a JVM that writes the archive to the path it is given; returns why it did not.
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
    """Move a new archive to its path, and delete archives whose jars no longer exist.

    Args:
        draft: The new archive, on the same disk.
        archive: As returned by `class_archive`.
        jars: As given to `class_archive`.
    """
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


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "classes"


def _megabytes(archive: Path) -> int:
    return archive.stat().st_size // 1_000_000
