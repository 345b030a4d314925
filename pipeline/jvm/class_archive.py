"""An archive of Spark's parsed and verified classes, which its JVM maps at the start.

A JVM reads some 15 000 classes before Spark's first answer; from an archive that takes half the time. An archive
belongs to one Java and to one folder of jars with their modification times. The JVM checks that and ignores any other
archive.

From Java 25 on it is an AOT cache (JEP 514), which also holds what the training run has learned about hot methods
(JEP 515), so the JVM's compiler needs fewer minutes. Before, it is an archive of class data sharing (JEP 350).
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipeline.jvm.cache import cache_folder
from pipeline.jvm.java import version_in

AOT_SINCE_VERSION: Final = 25
_ARCHIVE: Final = "spark.jsa"
_AOT_CACHE: Final = "spark.aot"
_MADE_FOR: Final = "made-for"


def class_archive(java_home: Path, jars: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The path of the archive for a Java and a folder of Spark's jars; the file may not exist.

    Args:
        java_home: Of the Java that runs Spark.
        jars: The `jars` folder of pyspark.
        environ: KQUOTA_CACHE is read from it.
    """
    try:
        release = (java_home / "release").read_text(encoding="utf-8")
    except OSError:
        release = ""
    fits = "\n".join([str(java_home.resolve()), release, str(jars.resolve()), str(jars.stat().st_mtime_ns)])
    version = version_in(release)
    name = _AOT_CACHE if version is not None and version >= AOT_SINCE_VERSION else _ARCHIVE
    return _folder(environ) / hashlib.sha256(fits.encode()).hexdigest()[:16] / name


def options_to_make(archive: Path) -> list[str]:
    """The JVM options of a training run, which writes the archive when it ends.

    Args:
        archive: as returned by `class_archive`, or a draft of the same name.
    """
    return [f"-XX:{'AOTCacheOutput' if archive.name == _AOT_CACHE else 'ArchiveClassesAtExit'}={archive}"]


def options_to_use(archive: Path) -> list[str]:
    """The JVM options that start from the archive.

    The JVM ignores an archive that does not fit; its message about that is switched off.

    Args:
        archive: as returned by `class_archive`.
    """
    if archive.name == _AOT_CACHE:
        return [f"-XX:AOTCache={archive}", "-Xlog:aot=off", "-Xlog:cds=off"]
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def store_archive(draft: Path, archive: Path, jars: Path) -> None:
    """Move a new archive to its path, and delete archives whose jars no longer exist.

    Args:
        draft: The new archive, on the same disk.
        archive: As returned by `class_archive`.
        jars: As given to `class_archive`.
    """
    (archive.parent / _MADE_FOR).write_text(str(jars.resolve()), encoding="utf-8")
    draft.replace(archive)
    for made_for in archive.parent.parent.glob(f"*/{_MADE_FOR}"):
        if not Path(made_for.read_text(encoding="utf-8")).exists():
            shutil.rmtree(made_for.parent, ignore_errors=True)


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "classes"
