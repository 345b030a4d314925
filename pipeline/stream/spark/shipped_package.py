"""Gives this package to executors as a file, so that nothing of ours must be installed on their machines."""

from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

from pyspark.sql import SparkSession

import pipeline
import purgatory
import quota
import schemas
from pipeline.stream.spark.scratch import scratch_folder

NEEDED_TO_READ: Final = ("msgspec", "numpy", "pyarrow", "pydantic")
"""What the Python of executors must have to read usage. It is machine code, which can not be imported from a zip."""
NEEDED_TO_REPLAY: Final = ("deltalake", "numpy", "pyarrow", "pydantic", "yaml")
"""The same for a replay."""
_NAME: Final = "kquota.zip"


def ship_package(session: SparkSession) -> None:
    """Give the executors of a cluster this package; those of a local session have it.

    Spark hands out the file itself, also to executors that come later; it stays until the process ends.
    """
    if not str(session.sparkContext.master).startswith("local"):
        session.sparkContext.addPyFile(str(zip_package(scratch_folder())))


def zip_package(folder: Path) -> Path:
    """Write all modules of the installed package into a zip. Returns its path.

    Args:
        folder: Where to; a zip that is there is replaced.
    """
    path = folder / _NAME
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for package in (pipeline, purgatory, quota, schemas):
            root = Path(str(package.__file__)).parent
            for module in sorted(root.rglob("*.py")):
                archive.write(module, f"{root.name}/{module.relative_to(root)}")
    return path
