"""One row of `quotas`: the bounds of one quota entity."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from schemas.columns import ByteRate, Name, Percentage, Row, Text, Unit

DEFAULT_ENTITY: Final = "<default>"
"""The name that stands for "every user (or client-id) without a quota of its own". Reserved."""


class QuotaRow(Row):
    """The quota of one entity: a user, a client-id or a pair of them, each by name or as default."""

    user: Name = Field(description='The user; "" = not part of the entity, `<default>` = the default user.')
    client_id: Name = Field(description='The client-id; "" = not part of the entity, `<default>` = the default.')
    producer_byte_rate: ByteRate | None = Field(
        default=None, gt=0, description="Bound on produced bytes; null = none at this level."
    )
    consumer_byte_rate: ByteRate | None = Field(
        default=None, gt=0, description="Bound on fetched bytes; null = none at this level."
    )
    request_percentage: Percentage | None = Field(
        default=None,
        gt=0,
        description="Bound on request time, io and network threads; null = none at this level.",
    )
    mode: Annotated[Literal["enforce", "shadow", "exempt"], Unit("mode")] = Field(
        default="enforce",
        description="Throttle, only record what a throttle would be, or match without bounds.",
    )
    owner: Text | None = Field(default=None, description="Who answers for the quota.")
    note: Text | None = Field(default=None, description="Why it is as it is.")

    @model_validator(mode="after")
    def _names_an_entity(self) -> Self:
        if not self.user and not self.client_id:
            message = "'user' and 'client_id' must not both be empty; got \"\" and \"\""
            raise ValueError(message)
        return self
