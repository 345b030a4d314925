"""The state file of a meter: the place in the log up to which all events are stored."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from pipeline.meter.errors import MeterStateDamaged, MeterStateNotWritten
from pipeline.meter.log_follower import ResumePoint

_VERSION: Final = 1


class _StoredState(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: Literal[1]
    inode: NonNegativeInt
    offset_bytes: NonNegativeInt
    head_bytes: NonNegativeInt
    head_sha256: str


def read_state(path: Path) -> ResumePoint | None:
    """The place at which an earlier meter stopped; None if there is no state file.

    Raises:
        MeterStateDamaged: The file is not a state that a meter has written, or it cannot be read. To begin at the end
            of the log instead would leave out usage without a word.
    """
    try:
        stored = _StoredState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise MeterStateDamaged(path, exc.strerror or type(exc).__name__) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        raise MeterStateDamaged(path, ": ".join([*map(str, first["loc"]), first["msg"]])) from exc
    return ResumePoint(**stored.model_dump(exclude={"version"}))


def make_folder(path: Path) -> None:
    """Make the folder of a state file, if there is none.

    Raises:
        MeterStateNotWritten: That is not possible.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise MeterStateNotWritten(path, exc) from exc


def write_state(path: Path, point: ResumePoint) -> None:
    """Write the state file, completely or not at all, and so that it survives a power loss.

    Raises:
        MeterStateNotWritten: The disk is full, or the file cannot be written for another reason. The state of before
            is unchanged.
    """
    written = path.with_name(f"{path.name}.new")
    try:
        with written.open("w", encoding="utf-8") as file:
            json.dump({"version": _VERSION, **asdict(point)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, path)
        _sync_folder(path.parent)
    except OSError as exc:
        raise MeterStateNotWritten(path, exc) from exc


def _sync_folder(folder: Path) -> None:
    # The new name is in the folder, and the folder is on the disk only after this.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
