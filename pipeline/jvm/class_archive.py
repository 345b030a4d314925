"""Spark's classes, parsed and verified once: an archive that its JVM maps at the start (class data sharing).

A JVM reads some 15 000 classes before Spark's first answer; from an archive that takes half the time. An archive fits
one Java and one folder of jars with their times; the JVM checks that itself and starts without one that does not fit.
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
    """Where the archive of a Java and a folder of Spark's jars belongs; it may not be there.

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


def keep(draft: Path, archive: Path, jars: Path) -> None:
    """Put a new archive in its place, and remove those whose jars are gone.

    Args:
        draft: On the disk of the archive.
        archive: As of `class_archive`.
        jars: As there.
    """
    (archive.parent / _MADE_FOR).write_text(str(jars.resolve()), encoding="utf-8")
    draft.replace(archive)
    for made_for in archive.parent.parent.glob(f"*/{_MADE_FOR}"):
        if not Path(made_for.read_text(encoding="utf-8")).exists():
            shutil.rmtree(made_for.parent, ignore_errors=True)


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "classes"
