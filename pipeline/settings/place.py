"""What the place of the tables must be."""

import re
from pathlib import Path
from typing import Final

from pipeline.settings.catalog import CatalogRoot, is_in_catalog

# delta-rs takes these for parts of a URI, also in the path of a folder: it reads another folder, or none.
_NOT_IN_A_FOLDER: Final = re.compile(r"[#?\[\]\\]|%[0-9A-Fa-f]{2}")
_S3: Final = ("s3://", "s3a://")


def refuse_unfit_place(root: str, location: str | None, writer: str, *, has_root: bool) -> None:
    """Refuse settings with which tables are not found again, or are overwritten.

    Args:
        root: `tables.root`.
        location: `tables.location`.
        writer: `tables.writer`.
        has_root: Whether the root is given, and not the default.

    Raises:
        ValueError: They are unfit; the text says why.
    """
    if is_in_catalog(root):
        _refuse_unfit_catalog(root, location, writer)
        return
    if location is not None and not has_root:
        msg = "'tables.location' must stand beside a 'tables.root' as catalog:main.kquota; got no root"
        raise ValueError(msg)
    _refuse_unfit_folder("root", root)
    if writer == "delta-spark" and root.lower().startswith(_S3):
        # Seen with Delta 4.4.0 and Hadoop 3.5.0: the second of two files of the same name is accepted.
        msg = (
            "'tables.writer' must be delta-rs for tables in S3, where Spark's writer looks whether a commit is "
            "there and then writes it, so that two drivers could overwrite each other's; got delta-spark"
        )
        raise ValueError(msg)


def _refuse_unfit_catalog(root: str, location: str | None, writer: str) -> None:
    CatalogRoot(root, location)
    if writer != "delta-spark":
        msg = f"'tables.writer' must be delta-spark for {root}, as only Spark commits to a catalog; got {writer}"
        raise ValueError(msg)
    if location is not None:
        _refuse_unfit_folder("location", location)


def _refuse_unfit_folder(key: str, place: str) -> None:
    if "://" in place:
        return
    folder = str(Path(place).absolute())
    found = _NOT_IN_A_FOLDER.search(folder)
    if found is not None:
        msg = f"'tables.{key}' must be a path without {found[0]}, which Delta takes for a part of a URI; got {folder}"
        raise ValueError(msg)
