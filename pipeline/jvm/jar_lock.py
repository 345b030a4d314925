"""The jar lock: which files, of which size and sha256, belong to which set.

One line per jar, with five fields: set, coordinates, origin, bytes, sha256. It has no addresses: Maven's settings on
the machine say where jars come from. Lines that start with `#` are notes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.jvm.errors import JarLockInvalid

SETS: Final = ("spark", "broker", "s3")
"""The sets of the project's own lock."""
OPTIONAL_SETS: Final = ("s3",)
"""Sets that are fetched only when they are asked for."""
ORIGINS = ("maven", "pyspark")

# A checkout has the lock under deploy/; a wheel carries it beside this module.
_CHECKOUT_LOCK = Path(__file__).resolve().parents[2] / "deploy" / "jvm" / "jars.lock"
_PACKAGED_LOCK = Path(__file__).with_name("jars.lock")

HEADER: Final = """\
# Jars beside those of pyspark. Written by `python -m pipeline.jvm.jars lock` from deploy/jvm/pom.xml.
"""
_FIELDS: Final = """\
# set, group:artifact:version, origin (pyspark: taken from pyspark's own jars/ folder), bytes, sha256
"""


@dataclass(frozen=True)
class LockedJar:
    """One line of the lock.

    Attributes:
        jar_set: "spark" (beside pyspark's jars), "broker" (class path of the embedded broker) or "s3" (beside those of
            "spark", where Spark itself reads or writes a store that speaks S3).
        group, artifact, version: Maven coordinates.
        origin: "maven", or "pyspark" for a jar that pyspark ships.
        size_bytes: exact size of the file.
        sha256: lower-case hex.
        note: why this version, printed as comment lines above the entry; "" for none.
    """

    jar_set: str
    group: str
    artifact: str
    version: str
    origin: str
    size_bytes: int
    sha256: str
    note: str = ""

    @property
    def file_name(self) -> str:
        """The file name Maven gives it."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        """`group:artifact:version`."""
        return f"{self.group}:{self.artifact}:{self.version}"


def lock_path() -> Path:
    """The lock file of this installation."""
    return _CHECKOUT_LOCK if _CHECKOUT_LOCK.exists() else _PACKAGED_LOCK


def read_lock(path: Path | None = None, sets: Sequence[str] = SETS) -> list[LockedJar]:
    """All locked jars, in file order.

    Args:
        path: of the lock; None = that of this installation.
        sets: that may occur in it.

    Raises:
        JarLockInvalid: the file is missing, or a line is not five good fields.
    """
    path = path or lock_path()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise JarLockInvalid(path, 0, f"cannot be read ({error.strerror})") from error
    jars, notes = [], []
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            notes.append(line[1:].strip())
        elif line.strip():
            try:
                jars.append(_parse(line, " ".join(notes), sets))
            except ValueError as error:
                raise JarLockInvalid(path, number, str(error)) from error
            notes = []
        else:
            notes = []
    return jars


def jars_of(*with_sets: str) -> list[LockedJar]:
    """The locked jars that every machine needs, and those of the optional sets that are named.

    Raises:
        JarLockInvalid: as `read_lock`.
    """
    return [jar for jar in read_lock() if jar.jar_set not in OPTIONAL_SETS or jar.jar_set in with_sets]


def format_lock(jars: Sequence[LockedJar], sets: Sequence[str] = SETS, header: str = HEADER) -> str:
    """The text of a lock file; `read_lock` of it with the same `sets` gives the same jars.

    Args:
        jars: in the order of the file within their set.
        sets: in the order of the file.
        header: lines of notes that say who writes the file, each with its end.
    """
    blocks = [header + _FIELDS]
    for jar_set in sets:
        lines = []
        for jar in jars:
            if jar.jar_set == jar_set:
                lines += [f"# {jar.note}"] if jar.note else []
                lines.append(f"{jar_set} {jar.coordinates} {jar.origin} {jar.size_bytes} {jar.sha256}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def sha256_of(path: Path) -> str:
    """Lower-case hex sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(line: str, note: str, sets: Sequence[str]) -> LockedJar:
    fields = line.split()
    if len(fields) != 5:
        msg = f"must have 5 fields; got {len(fields)}"
        raise ValueError(msg)
    jar_set, coordinates, origin, size, sha256 = fields
    parts = coordinates.split(":")
    problems = {
        f"'set' must be one of {', '.join(sets)}; got '{jar_set}'": jar_set not in sets,
        f"'coordinates' must be group:artifact:version; got '{coordinates}'": len(parts) != 3,
        f"'origin' must be one of {', '.join(ORIGINS)}; got '{origin}'": origin not in ORIGINS,
        f"'bytes' must be a whole number; got '{size}'": not size.isdecimal(),
        f"'sha256' must be 64 hex digits; got '{sha256}'": not _is_sha256(sha256),
    }
    for problem, found in problems.items():
        if found:
            raise ValueError(problem)
    group, artifact, version = parts
    return LockedJar(jar_set, group, artifact, version, origin, int(size), sha256, note)


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")
