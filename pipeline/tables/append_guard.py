"""The rules of a guarded append, free of any engine: both adapters decide with them."""

import json
from collections.abc import Callable, Mapping

from pipeline.tables.errors import EpochNotRaised, Fenced, VersionWentBack

Recorded = Callable[[str], int | None]


def is_written(table: str, versions: Mapping[str, int], recorded: Recorded) -> bool:
    """Whether the guarding app id, the first, has the version given or a higher one.

    Raises:
        ValueError: no app id is given.
        VersionWentBack: it has not, but a later app id of `versions` has.
    """
    if not versions:
        message = "'versions' must name at least one app id; got none"
        raise ValueError(message)
    guard, *others = versions
    if _reached(recorded(guard), versions[guard]):
        return True
    for app_id in others:
        found = recorded(app_id)
        if found is not None and found >= versions[app_id]:
            raise VersionWentBack(table, app_id, versions[app_id], found)
    return False


def held_epoch(table: str, epoch: int | None, recorded_epoch: int | None) -> int:
    """This driver's epoch, if it is still the highest.

    Raises:
        EpochNotRaised: this driver has none yet.
        Fenced: a higher one is recorded.
    """
    if epoch is None:
        raise EpochNotRaised(table)
    if recorded_epoch is not None and recorded_epoch > epoch:
        raise Fenced(table, epoch, recorded_epoch)
    return epoch


def refuse_taken_epoch(table: str, epoch: int, recorded_epoch: int | None) -> None:
    """Refuse to raise an epoch that is not above the recorded one.

    Raises:
        Fenced: an equal or higher one is recorded; equal means that another driver chose the same number.
    """
    if _reached(recorded_epoch, epoch):
        raise Fenced(table, epoch, recorded_epoch or epoch)


def commit_note(metadata: Mapping[str, str], versions: Mapping[str, int]) -> str:
    """The user metadata of a commit: one JSON object, readable in `DESCRIBE HISTORY`."""
    return json.dumps({**metadata, "versions": json.dumps(dict(versions))}, ensure_ascii=False)


def noted(user_metadata: object) -> dict[str, str] | None:
    """What `commit_note` wrote, or None if the user metadata is somebody else's."""
    try:
        note = json.loads(user_metadata) if isinstance(user_metadata, str) else None
    except ValueError:
        return None
    return note if isinstance(note, dict) and "versions" in note else None


def _reached(recorded: int | None, version: int) -> bool:
    return recorded is not None and recorded >= version
