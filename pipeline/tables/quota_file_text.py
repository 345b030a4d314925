"""JSON or YAML text as a value, strictly: a key that is given twice is an error, not a silent loss of the first."""

import gc
import json
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from pipeline.tables.errors import QuotaEditRefused


class _Twice(ValueError):
    """A key stands twice in one mapping."""


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the C one is not always built
    """Safe YAML whose mappings have each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        # By their text, before values are made of them: `1` and `"1"` are too alike to be two keys.
        keys = [key.value if isinstance(key, yaml.ScalarNode) else repr(key) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            msg = f"line {node.start_mark.line + 1}: {_repeated(keys)}"
            raise _Twice(msg)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def load_text(text: str) -> Any:
    """Read JSON if the text begins with a brace, YAML otherwise.

    Raises:
        QuotaEditRefused: It is neither, or a key is given twice.
    """
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text, object_pairs_hook=_once)
        with _collector_paused():
            return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a safe loader
    except json.JSONDecodeError as exc:
        problem = f"line {exc.lineno}, column {exc.colno}: {exc.msg}"
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        problem = f"line {mark.line + 1}, column {mark.column + 1}: {exc.problem}" if mark else str(exc.problem)
    except (yaml.YAMLError, _Twice) as exc:
        problem = str(exc).partition("\n")[0]
    raise QuotaEditRefused([f"the file must be JSON or YAML; {problem}"])


@contextmanager
def _collector_paused() -> Iterator[None]:
    """The nodes of thousands of quotas all stay alive; going over them again and again takes half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        raise _Twice(_repeated(keys))
    return dict(pairs)


def _repeated(keys: list[str]) -> str:
    return f"{next(key for key in keys if keys.count(key) > 1)!r} must be given once; got it twice"
