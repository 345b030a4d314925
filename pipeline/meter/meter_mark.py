"""The mark of a meter: its place in the log, as text beside a committed offset.

Each process writes its own name into its marks. So a meter that finds its mark moved knows whether it was itself, in a
transaction whose outcome it did not hear of, or a second meter of the same broker.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from pipeline.cluster.marked_transactions import Mark
from pipeline.meter.errors import MeterMarkDamaged
from pipeline.meter.log_place import LogPlace

_VERSION: Final = 1


class MeterMark(BaseModel):
    """What the text of a mark says.

    Attributes:
        version: Of this form.
        meter: The process that wrote it.
        place: All lines before it are on the usage topic, those after it are not.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: Literal[1] = _VERSION
    meter: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    place: LogPlace


def place_of(mark: Mark, group: str, marker_topic: str, bootstrap_servers: str) -> LogPlace:
    """The place that a mark says.

    Args:
        mark: As it was committed.
        group: Where; for the message.
        marker_topic: The same.
        bootstrap_servers: The same.

    Raises:
        MeterMarkDamaged: Its text is empty, damaged, or of a later release. To begin anywhere else instead would leave
            out usage, or report it twice, without a word.
    """
    try:
        return MeterMark.model_validate_json(mark.text).place
    except ValidationError as exc:
        first = exc.errors()[0]
        reason = ": ".join([*(str(part) for part in first["loc"]), first["msg"]]) if mark.text else "it is empty"
        raise MeterMarkDamaged(group, marker_topic, bootstrap_servers, reason) from exc


def mark_of(number: int, meter: str, place: LogPlace) -> Mark:
    """The mark of a place.

    Args:
        number: Of the transaction.
        meter: The process that writes it.
        place: Where it is in the log.
    """
    return Mark(number, MeterMark(meter=meter, place=place).model_dump_json())
