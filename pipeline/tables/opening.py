"""Opens a Delta table, and says why one cannot be opened.

A table that is missing, one that cannot be read and one that a power loss has damaged are different errors. The files
of a table's log, and waiting until the disk has one, are here, too.
"""

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from shlex import quote
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pydantic import BaseModel

from pipeline.errors import Conflict, PipelineError, first_line
from pipeline.tables.object_store import delta_rs_options
from pipeline.tables.port import (
    UNDO_OTHERS,
    TableUnreadable,
    creating,
    creating_elsewhere,
    is_local,
    looking_at,
    table_missing,
)

_NO_SUCH_VERSION: Final = ("LogSegment end version", "No table metadata or protocol found in delta log")
# delta-rs prints each cause of an error of a store on a line of its own, with an arrow in colour.
_CAUSE: Final = re.compile(r"\x1b\[31m↳\x1b\[0m (.*)")
OF_FEATURES: Final = re.compile(r"[Ff]eature|[Cc]olumn mapping|catalog-managed")
"""What delta-rs says about a table with features that it does not have."""
FIT: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        *("timestampNtz", "variantType", "variantType-preview", "deletionVectors", "v2Checkpoint"),
    }
)
"""The table features that keep kquota from nothing."""
_WRITTEN: Final = FIT | {"columnMapping"}


def open_table(uri: str, version: int | None = None) -> DeltaTable:
    """Open a table at a version; None = the newest.

    Raises:
        TableMissing: there is no table, or it does not have this version any more or not yet.
        TableUnreadable: the store does not answer or refuses, or the table's log is damaged.
    """
    try:
        table = DeltaTable(uri, version=version, storage_options=delta_rs_options(uri))
    except TableNotFoundError as exc:
        # delta-rs has one error for a folder that does not exist and for one that may not be read.
        if "PermissionDenied" in str(exc):
            raise unreadable(uri, exc, version) from exc
        raise table_missing(uri, version) from exc
    except (DeltaError, OSError) as exc:
        if version is not None and any(text in str(exc) for text in _NO_SUCH_VERSION):
            raise table_missing(uri, version) from exc
        raise unreadable(uri, exc, version) from exc
    _refuse_cut(uri, table.version(), is_newest=version is None)
    return table


def _refuse_cut(uri: str, version: int, *, is_newest: bool) -> None:
    files = LogFiles.of(uri)
    cut = None if files is None else files.cut(version)
    if files is None or cut is None:
        return
    if not is_newest:
        raise table_missing(uri, version)
    damage = files.cut_at(cut)
    raise TableUnreadable(uri, damage.cause, damage.fix, exit_code=_DAMAGED)


_DAMAGED: Final = 5  # no other attempt helps


def unfit_features(table: DeltaTable) -> set[str]:
    """The features that others have given a table and that keep kquota from a part of its work."""
    return set(table.protocol().writer_features or ()) - FIT


def unwritable(uri: str, table: DeltaTable) -> Conflict:
    """The error of a table to which delta-rs does not write, or that it cannot read in slices, or not merge.

    A commit to it is refused with the class of error that a commit gets which another one came before.
    """
    unfit = unfit_features(table)
    unwritten = unfit - _WRITTEN
    fails = "cannot be written" if unwritten else "cannot be rolled up, replayed or merged"
    features = ", ".join(sorted(unwritten or unfit))
    message = f"{uri} {fails}: others have given it table features that kquota's library does not have ({features})"
    return Conflict(message, UNDO_OTHERS)


def refuse_unwritable(uri: str, table: DeltaTable) -> None:
    """Raise (`Conflict`) if delta-rs does not write to a table."""
    if unfit_features(table) - _WRITTEN:
        raise unwritable(uri, table)


def columns_of_others(table: DeltaTable, model: type[BaseModel]) -> list[str]:
    """The columns that others have added to a table of this model. They are kept, and have no effect."""
    return [field.name for field in table.schema().fields if field.name not in model.model_fields]


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Turn what delta-rs raises in this block into `TableUnreadable`."""
    try:
        yield
    except (DeltaError, OSError) as exc:
        raise unreadable(table, exc) from exc


def unreadable(uri: str, failure: Exception, version: int | None = None) -> TableUnreadable:
    """The error for what delta-rs raised while it read a table, at a version; None = the newest."""
    cause, text = causes_of(failure), str(failure)
    is_gone = "Object at location" in text and "not found" in text
    if version is not None:
        return TableUnreadable(f"{uri}, version {version}", cause, is_file_missing=is_gone)
    files = LogFiles.of(uri)
    if (damage := None if files is None else files.damage()) is not None:
        return TableUnreadable(uri, damage.cause, damage.fix, is_file_missing=is_gone, exit_code=_DAMAGED)
    if not is_gone and OF_FEATURES.search(text.replace(uri, "")):
        return TableUnreadable(uri, cause, UNDO_OTHERS, exit_code=_DAMAGED)
    fix = None
    if is_gone:
        fix = "repeat it: a file was replaced, and cleaned away while it was read"
    elif "No field named" in text:
        fix = f"it lacks a column: start with new tables under another root: {creating_elsewhere(uri)}"
    return TableUnreadable(uri, cause, fix, is_file_missing=is_gone)


def causes_of(failure: Exception) -> str:
    """The first line of what delta-rs raised, with the causes below it."""
    return ": ".join([first_line(failure), *_CAUSE.findall(str(failure))])


# The log of a table on a local disk, as files: what a power loss left of it, how to go back, and what makes it last.
#
# Neither delta-rs nor Spark waits until the disk has what they write. After a power loss a file may be empty, cut or
# full of zeros. Delta reads an empty commit as one that changed nothing, without a word. So the commits that a version
# is read from are looked at when a table is opened; and what must not be lost is waited for (`keep_on_disk`).

_VERSION: Final = re.compile(r"\.?(\d{20})\.")
_CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\.")
_COMMIT_LENGTH: Final = 25  # of 20 digits and .json
_KIND: Final = re.compile(rb'^\s*\{\s*"(\w+)"', re.MULTILINE)
_LAST_CHECKPOINT: Final = "_last_checkpoint"
_PARQUET: Final = b"PAR1"
_TAKEN_BACK: Final = "_taken_back"  # delta-rs and Spark leave folders with such names alone
_NAMED: Final = 3


class Damage(NamedTuple):
    """What is wrong with the files of a table, and how to go on."""

    cause: str
    fix: str


class LogFiles:
    """The log files of a table on a local disk; there are none if the folder does not exist."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.table = Path(uri).absolute()
        self.folder = self.table / "_delta_log"

    @classmethod
    def of(cls, uri: str) -> "LogFiles | None":
        """The log of a table; None for a table in a store, which writes an object whole or not at all."""
        return cls(uri) if is_local(uri) else None

    @cached_property
    def names(self) -> list[str]:
        """The names of the files."""
        try:
            return sorted(os.listdir(self.folder))
        except FileNotFoundError:
            return []

    @cached_property
    def commits(self) -> list[int]:
        """The versions that have a commit, in order."""
        return [int(name[:20]) for name in self.names if len(name) == _COMMIT_LENGTH and name.endswith(".json")]

    @cached_property
    def checkpoints(self) -> list[int]:
        """The versions that have a checkpoint, in order."""
        return sorted({int(name[:20]) for name in self.names if _CHECKPOINT.match(name)})

    def content(self, version: int) -> bytes | None:
        """What a commit holds; None if it was cleaned away since the files were listed."""
        try:
            return self._commit(version).read_bytes()
        except FileNotFoundError:
            return None

    def actions(self, version: int) -> list[dict[str, Any]]:
        """The actions of a commit that is whole."""
        return [json.loads(line) for line in (self.content(version) or b"").splitlines() if line.strip()]

    def read_for(self, version: int) -> Iterator[int]:
        """The commits that a version is read from: those after the newest checkpoint up to it."""
        first = max((one for one in self.checkpoints if one <= version), default=-1)
        return (one for one in self.commits if first < one <= version)

    def cut(self, version: int) -> int | None:
        """The first of the commits that a version is read from that is not whole."""
        return next((one for one in self.read_for(version) if self._was_cut(one)), None)

    def reaches(self, version: int) -> bool:
        """Whether a version can be read from what is kept."""
        first = max((one for one in self.checkpoints if one <= version), default=-1)
        return version >= 0 and set(range(first + 1, version + 1)) <= set(self.commits)

    def going_back(self, version: int) -> str:
        """How to undo the commits from a version on, for a POSIX shell. Nothing is deleted."""
        last = self.commits[-1]
        if not self.reaches(version - 1):
            place = quote(str(self.table))
            away = f"mv {place} {place}.damaged && {creating(self.uri)}"
            return f"no earlier version is kept; stop the job, move the table away and create a new one: {away}"
        ours = [f"{one:020}.json" for one in range(version, last + 1)]
        files = ours if len(ours) <= _NAMED else [f"$(seq -f %020.0f.json {version} {last})"]
        files += [name for name in self.names if name.strip(".").startswith(_LAST_CHECKPOINT)]
        files += [name for name in self.names if (_version_of(name) or 0) >= version and name not in ours]
        moved = f"cd {quote(str(self.folder))} && mkdir -p ../{_TAKEN_BACK} && mv {' '.join(files)} ../{_TAKEN_BACK}"
        others = f" ({last - version} later commits go with it)" if last > version else ""
        return f"stop the job and go back to version {version - 1}{others}: {moved}"

    def damage(self) -> Damage | None:
        """What is wrong with the files that the newest version is read from; None if they are whole."""
        newest = self.commits[-1] if self.commits else -1
        for version in self.read_for(newest):
            if is_cut(content := self.content(version)) or not _is_json(content):
                return self.cut_at(version)
        return self._damaged_checkpoint() or self._damaged_data()

    def cut_at(self, version: int) -> Damage:
        """The damage of a commit that is not whole."""
        empty = not (self.content(version) or b"").strip(b"\0 \n")
        what = "is empty" if empty else "is cut"
        return Damage(f"its commit {version:020}.json {what}, as after a power loss", self.going_back(version))

    def _damaged_checkpoint(self) -> Damage | None:
        if not self.checkpoints:
            return None
        version = self.checkpoints[-1]
        files = [name for name in self.names if _CHECKPOINT.match(name) and _version_of(name) == version]
        if not any(name.endswith(".parquet") and not _is_parquet(self.folder / name) for name in files):
            return None
        cause = f"its checkpoint of version {version} is empty or cut, as after a power loss"
        self.checkpoints.remove(version)
        if not self.reaches(self.commits[-1] if self.commits else version):
            return Damage(cause, self.going_back(version))
        hint = [_LAST_CHECKPOINT] if _LAST_CHECKPOINT in self.names else []
        away = f"mkdir -p ../{_TAKEN_BACK} && mv {' '.join([*files, *hint])} ../{_TAKEN_BACK}"
        return Damage(cause, f"nothing is lost; read the commits instead of it: cd {quote(str(self.folder))} && {away}")

    def _damaged_data(self) -> Damage | None:
        live: dict[str, tuple[int, int]] = {}
        for version in self.commits:
            for action in self.actions(version) if _is_json(self.content(version)) else ():
                if "add" in action:
                    live[action["add"]["path"]] = version, action["add"]["size"]
                elif "remove" in action:
                    live.pop(action["remove"]["path"], None)
        for path, (version, size_bytes) in sorted(live.items(), key=lambda one: one[1]):
            file = self.table / unquote(path)
            if not file.exists():
                return Damage(f"its data file {path} is gone", f"restore it, or {self.going_back(version)}")
            if file.stat().st_size != size_bytes or not _is_parquet(file):
                cause = f"its data file {path} is empty or cut, as after a power loss"
                return Damage(cause, self.going_back(version))
        return None

    def _was_cut(self, version: int) -> bool:
        file = self._commit(version)
        try:
            status = file.stat()
            return _is_cut_file(file, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:  # cleaned away since the files were listed
            return False

    def _commit(self, version: int) -> Path:
        return self.folder / f"{version:020}.json"


@lru_cache(maxsize=1024)  # a table is opened again and again
def _is_cut_file(path: Path, _size_bytes: int, _modified_ns: int) -> bool:
    return is_cut(path.read_bytes())


def is_cut(content: bytes | None) -> bool:
    """Whether a commit has lost actions, as far as it shows; None = it was cleaned away."""
    if content is None:
        return False
    kinds = Counter(_KIND.findall(content))
    first = next((line for line in content.splitlines() if line.lstrip().startswith(b'{"commitInfo"')), None)
    try:
        info = {} if first is None else json.loads(first)["commitInfo"]
    except ValueError:
        return True
    metrics = info.get("operationMetrics") or {}
    # By delta-rs, in the commits that write rows. The rules of other writers are not known to be as simple.
    if any(int(metrics.get(name, 0)) > kinds[kind] for name, kind in _COUNTED.items()):
        return True
    if kinds.total() > kinds[b"commitInfo"]:
        return False
    writes_nothing = "num_added_files" in metrics and '"versions"' not in info.get("userMetadata", "")
    return not (writes_nothing or str(info.get("operation")).startswith("VACUUM"))


_COUNTED: Final = {"num_added_files": b"add", "num_removed_files": b"remove"}


def keep_on_disk(uri: str) -> None:
    """Wait until a power loss can no longer take the newest version of a table from a local disk.

    Returns at once for a table in a store. `PipelineError` if the disk does not confirm it.
    """
    try:
        for path in _recent_files(uri):
            _sync(path)
    except OSError as exc:
        message = f"what was written to {uri} may be lost with a power loss: the disk does not confirm it: {exc}"
        raise PipelineError(message, f"see the disk, and whether the table has it: {looking_at(uri)}") from exc


def _recent_files(uri: str) -> list[Path]:
    """The files that the newest version needs and the last checkpoint before it does not have, then their folders."""
    log = LogFiles.of(uri)
    if log is None or not log.commits:
        return []
    since = max((one for one in log.checkpoints if one < log.commits[-1]), default=-1)
    recent = [name for name in log.names if (_version_of(name) or 0) >= since or name == _LAST_CHECKPOINT]
    files = {log.folder / name for name in recent}
    for version in log.commits:
        if version > since:
            files |= {log.table / unquote(one["add"]["path"]) for one in log.actions(version) if "add" in one}
    return [*files, *{file.parent for file in files}, log.table, log.table.parent]


# The errors of a file system that has no such call, mostly for folders.
_CANNOT_WAIT: Final = (errno.EINVAL, errno.ENOTSUP)


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # replaced by a later commit, and cleaned away
        return
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno not in _CANNOT_WAIT:
            raise
    finally:
        os.close(descriptor)


def _version_of(name: str) -> int | None:
    found = _VERSION.match(name)
    return None if found is None else int(found[1])


def _is_json(content: bytes | None) -> bool:
    try:
        for line in (content or b"").splitlines():
            json.loads(line or b"0")
    except ValueError:
        return False
    return True


def _is_parquet(file: Path) -> bool:
    with file.open("rb") as opened:
        begin = opened.read(len(_PARQUET))
        opened.seek(max(file.stat().st_size - len(_PARQUET), 0))
        return begin == opened.read() == _PARQUET
