"""The state file of a meter of an earlier release: its place in the log, taken over once.

Now the place is on the cluster, in the same transactions as the events. The file is renamed when its place is there, so
that nobody goes on from it a second time.
"""

import json
import logging
from pathlib import Path

from pydantic import ValidationError

from pipeline.meter.errors import MeterStateDamaged
from pipeline.meter.log_place import LogPlace

logger = logging.getLogger(__name__)


def read_state(path: Path) -> LogPlace | None:
    """The place at which an earlier meter stopped; None if there is no state file.

    Raises:
        MeterStateDamaged: The file is not a state that a meter has written, or it cannot be read. To begin at the end
            of the log instead would leave out usage without a word.
    """
    try:
        stored = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise MeterStateDamaged(path, exc.strerror or type(exc).__name__) from exc
    except ValueError as exc:
        reason = f"Invalid JSON: {exc}"
        raise MeterStateDamaged(path, reason) from exc
    if not isinstance(stored, dict):
        reason = "it is no JSON object"
        raise MeterStateDamaged(path, reason)
    if stored.pop("version", None) != 1:
        reason = "version: must be 1"
        raise MeterStateDamaged(path, reason)
    try:
        return LogPlace.model_validate(stored)
    except ValidationError as exc:
        first = exc.errors()[0]
        raise MeterStateDamaged(path, ": ".join([*map(str, first["loc"]), first["msg"]])) from exc


def retire_state(path: Path) -> None:
    """Rename a state file whose place is on the cluster now, and say so. Nothing happens if there is none."""
    if not path.exists():
        return
    old = path.with_name(f"{path.name}.moved")
    try:
        path.rename(old)
    except OSError as exc:
        logger.warning("%s is no longer used; it can not be renamed: %s", path, exc)
        return
    logger.info("the place in the log is on the cluster now; the state file is no longer used and lies at %s", old)
