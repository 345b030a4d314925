"""The settings that environment variables name, as pydantic-settings reads them.

It takes longer to load this library than to read all settings, and few processes have such a variable: `loading`
imports this module only where one is set.
"""

from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from pipeline.settings.loading import PREFIX
from pipeline.settings.model import Settings


class _Variables(BaseSettings, Settings):
    """The settings model, with the names of its variables."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid")


def settings_of_variables() -> dict[str, Any]:
    """What the environment sets, nested as the model is and not yet checked."""
    return EnvSettingsSource(_Variables)()
