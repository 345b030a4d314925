"""The settings of the meter."""

from typing import Literal

from pydantic import Field

from pipeline.settings.branch import Branch


class MeterSettings(Branch):
    """`kquota meter`, which turns a broker's request log into usage events."""

    codec: Literal["json", "packed"] = Field(
        "json",
        description="how the events of a message are written; json: an array of objects; packed: columns, which the "
        "job reads several times as fast",
    )
