"""What every part of the settings tree is."""

from pydantic import BaseModel, ConfigDict


class Branch(BaseModel):
    """One frozen branch of the settings tree."""

    model_config = ConfigDict(frozen=True, extra="forbid")
