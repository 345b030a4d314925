"""One sync for a set of tables: its lock, and what it notes next to it, for `kquota status`.

The lock lies next to the tables, where they are on a local disk. A sync that starts from elsewhere is not stopped by it
but fences the first one: by the epoch in the table. The note of a sync with tables elsewhere lies in the run folder.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pipeline.command_line import command_text
from pipeline.errors import Conflict
from pipeline.process import LockHeld, ProcessLock, holder_of
from pipeline.settings.model import Settings
from pipeline.tables.address import local_folder

log = logging.getLogger(__name__)

_LOCK: Final = ".kquota-sync.lock"
_STALE_MS: Final = 60_000


@contextmanager
def sync_lock(tables_root: str) -> Iterator[None]:
    """Hold the lock. Raises `Conflict` if another process holds it."""
    path = _lock_file(tables_root)
    if path is None:
        yield
        return
    try:
        lock = ProcessLock(path).__enter__()
    except LockHeld as exc:
        message = f"another sync of these tables runs ({path} is held by process {exc.holder})"
        fix = f"stop the other one (kill {exc.holder}), or start this one with another --tables"
        raise Conflict(message, fix) from exc
    with lock:
        yield


def running_sync(tables_root: str) -> str | None:
    """The process of this machine that holds the lock, as text; None if none does."""
    path = _lock_file(tables_root)
    return None if path is None else holder_of(path)


def _lock_file(tables_root: str) -> Path | None:
    folder = local_folder(tables_root)
    return None if folder is None else folder / _LOCK


@dataclass(frozen=True, slots=True)
class SyncNote:
    """What a sync knows after a period that went well.

    Attributes:
        process: its process id, as text.
        at_ms: when it noted this, by its wall clock.
        owned_values: values on the brokers that are kquota's.
        own_entries: how many of them are entries of their own, of clients that a default bounds.
        left_out: how many more clients need one and get none, because there is no room.
        left_out_by_user: of these the users with the most.
        drifts: values that others wrote and the sync leaves.
        refused_values: values that cannot be written.
    """

    process: str
    at_ms: int
    owned_values: int
    own_entries: int
    left_out: int
    left_out_by_user: Mapping[str, int]
    drifts: int
    refused_values: int

    @property
    def left_out_text(self) -> str:
        """How many get no entry of their own, and of which users; "" if none."""
        if not self.left_out:
            return ""
        shown = [f"{count} of {user or 'no user'}" for user, count in self.left_out_by_user.items()]
        others = self.left_out - sum(self.left_out_by_user.values())
        shown += [f"{others} of others"] * (others > 0)
        return f"{self.left_out} more would need one and get none, as there is no room: {', '.join(shown)}"


class NoteFile:
    """Where the sync of some settings notes what it knows."""

    def __init__(self, settings: Settings) -> None:
        self._root = settings.tables.root
        folder = local_folder(self._root)
        self._path = settings.run_dir / f"{settings.job}.sync.json" if folder is None else folder / ".kquota-sync.json"
        self._has_failed = False

    def write(self, note: SyncNote) -> None:
        """Put a note in place of the last one. A disk that takes nothing is logged once, and ends nothing."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_text(json.dumps(asdict(note)), encoding="utf-8")
            new.replace(self._path)
        except OSError as exc:
            if not self._has_failed:
                log.warning(
                    "%s cannot be written (%s): %s shows no sync", self._path, exc.strerror, command_text("status")
                )
            self._has_failed = True

    def read(self, now_ms: int) -> tuple[SyncNote | None, bool]:
        """The last note, None if there is none, and whether its sync runs, as far as this machine can tell."""
        try:
            note = SyncNote(**json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None, running_sync(self._root) is not None
        if _lock_file(self._root) is not None:
            return note, running_sync(self._root) is not None
        return note, abs(now_ms - note.at_ms) <= _STALE_MS
