"""This package as a file that executors import it from, so that a replay needs nothing of ours on their machines."""

from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

import pipeline
import purgatory
import quota
import schemas

NEEDED: Final = ("deltalake", "numpy", "pyarrow", "pydantic", "yaml")
"""What the Python of the executors must have: parts of these are machine code, which can not be imported from a zip."""
_NAME: Final = "kquota.zip"


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
