"""A row of `quotas`: the bounds of one quota entity."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from schemas.columns import ByteRate, Name, Percentage, Row, Text, Unit

DEFAULT_ENTITY: Final = "<default>"
"""A reserved name: stands for every user (or client-id) that has no quota of its own."""


class QuotaRow(Row):
    """The quota of one entity: a user, a client-id, or a pair of them; each is a name or the default."""

    user: Name = Field(description='The user; "" if it is not part of the entity; `<default>` for the default user.')
    client_id: Name = Field(
        description='The client-id; "" if it is not part of the entity; `<default>` for the default client-id.'
    )
    producer_byte_rate: ByteRate | None = Field(
        default=None, gt=0, description="Bound on produced bytes; null for none at this level."
    )
    consumer_byte_rate: ByteRate | None = Field(
        default=None, gt=0, description="Bound on fetched bytes; null for none at this level."
    )
    request_percentage: Percentage | None = Field(
        default=None,
        gt=0,
        description="Bound on request time, io and network threads together; null for none at this level.",
    )
    mode: Annotated[Literal["enforce", "shadow", "exempt"], Unit("mode")] = Field(
        default="enforce",
        description="`enforce`: throttle. `shadow`: only record whom it would throttle. `exempt`: match, no bounds.",
    )
    owner: Text | None = Field(default=None, description="Who is responsible for the quota.")
    note: Text | None = Field(default=None, description="Why the quota is what it is.")

    @model_validator(mode="after")
    def _names_an_entity(self) -> Self:
        if not self.user and not self.client_id:
            message = "'user' and 'client_id' must not both be empty; got \"\" and \"\""
            raise ValueError(message)
        return self
