"""The rules of a guarded append, without any I/O. Both adapters of `TableWriter` use them."""

import json
from collections.abc import Callable, Mapping

from pipeline.tables.errors import EpochNotRaised, Fenced, VersionWentBack

Recorded = Callable[[str], int | None]
"""The version a table has recorded for an app id; None if it has none."""


def is_written(table: str, versions: Mapping[str, int], recorded: Recorded) -> bool:
    """Whether the rows of an append are in the table already.

    They are if the version recorded for the first app id, the guard, is the given one or a higher one.

    Args:
        table: address of the table, for messages.
        versions: app id to the version the append would record, the guard first.
        recorded: looks up the recorded versions.

    Raises:
        ValueError: no app id is given.
        VersionWentBack: the guard has a lower version, but another app id of `versions` has reached its own.
    """
    if not versions:
        message = "'versions' must name at least one app id; got none"
        raise ValueError(message)
    guard, *others = versions
    if _has_reached(recorded(guard), versions[guard]):
        return True
    for app_id in others:
        found = recorded(app_id)
        if found is not None and found >= versions[app_id]:
            raise VersionWentBack(table, app_id, versions[app_id], found)
    return False


def checked_epoch(table: str, epoch: int | None, recorded_epoch: int | None) -> int:
    """The epoch of this driver, after a check that no higher one is recorded.

    Raises:
        EpochNotRaised: this driver has not raised an epoch yet.
        Fenced: a higher one is recorded.
    """
    if epoch is None:
        raise EpochNotRaised(table)
    if is_fenced(epoch, recorded_epoch):
        raise Fenced(table, epoch, recorded_epoch or epoch)
    return epoch


def is_fenced(epoch: int, recorded_epoch: int | None) -> bool:
    """Whether a higher epoch than this driver's is recorded."""
    return recorded_epoch is not None and recorded_epoch > epoch


def refuse_taken_epoch(table: str, epoch: int, recorded_epoch: int | None) -> None:
    """Refuse to raise an epoch that is not above the recorded one.

    Raises:
        Fenced: an equal or higher epoch is recorded. An equal one means that another driver chose the same number.
    """
    if _has_reached(recorded_epoch, epoch):
        raise Fenced(table, epoch, recorded_epoch or epoch)


def commit_note(metadata: Mapping[str, str], versions: Mapping[str, int]) -> str:
    """The user metadata of a commit: one JSON object, readable in `DESCRIBE HISTORY`."""
    return json.dumps({**metadata, "versions": json.dumps(dict(versions))}, ensure_ascii=False)


def parse_commit_note(user_metadata: object) -> dict[str, str] | None:
    """Read what `commit_note` wrote; None if another program wrote the user metadata."""
    try:
        note = json.loads(user_metadata) if isinstance(user_metadata, str) else None
    except ValueError:
        return None
    return note if isinstance(note, dict) and "versions" in note else None


def _has_reached(recorded: int | None, version: int) -> bool:
    return recorded is not None and recorded >= version
