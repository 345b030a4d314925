"""An archive of Spark's parsed and verified classes, which its JVM maps at the start (class data sharing).

A JVM reads some 15 000 classes before Spark's first answer; from an archive that takes half the time. An archive
belongs to one Java and to one folder of jars with their modification times. The JVM checks that and ignores any other
archive.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipeline.jvm.cache import cache_folder

_ARCHIVE: Final = "spark.jsa"
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
    return _folder(environ) / hashlib.sha256(fits.encode()).hexdigest()[:16] / _ARCHIVE


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
