"""Reads JSON or YAML text. A key that is given twice is an error; the usual readers would drop the first value."""

import gc
import json
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from pipeline.errors import first_line
from pipeline.tables.errors import QuotaEditRefused


class _RepeatedKey(ValueError):
    """One mapping has a key twice."""


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the C loader is not always built
    """A safe YAML loader that refuses a mapping with a repeated key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        # Keys are compared as text, before values are made of them: `1` and `"1"` look too alike to be two keys.
        keys = [key.value if isinstance(key, yaml.ScalarNode) else repr(key) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            msg = f"line {node.start_mark.line + 1}: {_repeated(keys)}"
            raise _RepeatedKey(msg)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def load_text(text: str) -> Any:
    """Read JSON if the text begins with a brace, YAML otherwise.

    Raises:
        QuotaEditRefused: The text is neither JSON nor YAML, or a key is given twice.
    """
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text, object_pairs_hook=_unique_keys)
        with _collector_paused():
            return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a safe loader
    except json.JSONDecodeError as exc:
        problem = f"line {exc.lineno}, column {exc.colno}: {exc.msg}"
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        problem = f"line {mark.line + 1}, column {mark.column + 1}: {exc.problem}" if mark else str(exc.problem)
    except (yaml.YAMLError, _RepeatedKey) as exc:
        problem = first_line(exc)
    raise QuotaEditRefused([f"the file must be JSON or YAML; {problem}"])


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector. All nodes of the text stay alive, and to check them takes half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        raise _RepeatedKey(_repeated(keys))
    return dict(pairs)


def _repeated(keys: list[str]) -> str:
    return f"{next(key for key in keys if keys.count(key) > 1)!r} must be given once; got it twice"
