"""Reads JSON or YAML text. A key that is given twice is a mistake; the usual readers would drop the first value."""

import json
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import yaml

from pipeline import garbage_collector
from pipeline.errors import first_line
from pipeline.tables.errors import QuotaFileRefused
from quota.mistakes import Mistake, Mistakes, Step


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the C loader is not always built
    """A safe YAML loader that collects keys that a mapping has twice.

    Attributes:
        mistakes: Where they go.
    """

    mistakes: Mistakes

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        # Keys are compared as text, before values are made of them: `1` and `"1"` look too alike to be two keys.
        keys = [key.value if isinstance(key, yaml.ScalarNode) else repr(key) for key, _ in node.value]
        _refuse_repeated(keys, self.mistakes, node.start_mark.line + 1)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def load_text(text: str, name: str, mistakes: Mistakes) -> Any:
    """Read JSON if the text begins with a brace, YAML otherwise.

    Args:
        text: The text.
        name: How the file is called, for the error.
        mistakes: Gets a mistake for each key that a mapping has twice. The last value counts then.

    Raises:
        QuotaFileRefused: The text is neither JSON nor YAML.
    """
    line: int | None = None
    try:
        if text.lstrip().startswith("{"):
            return _json(text, mistakes)
        return _yaml(text, mistakes)
    except json.JSONDecodeError as exc:
        problem, line = f"column {exc.colno}: {exc.msg}", exc.lineno
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        problem = f"column {mark.column + 1}: {exc.problem}" if mark else str(exc.problem)
        line = mark.line + 1 if mark else None
    except yaml.YAMLError as exc:
        problem = first_line(exc)
    raise QuotaFileRefused(name, [Mistake(f"the file must be JSON or YAML; {problem}", (), line)])


def with_lines(mistakes: Sequence[Mistake], text: str) -> list[Mistake]:
    """The mistakes with the lines of their paths in a text that `load_text` has read.

    A path that is not in the text to its end gets the line of what there is of it. JSON that is no YAML (it
    escapes a character as two surrogates) has no lines.
    """
    try:
        root = yaml.compose(text, Loader=_StrictLoader)
    except yaml.YAMLError:
        return list(mistakes)
    return [one if one.line is not None else replace(one, line=_line(root, one.path)) for one in mistakes]


def _line(node: yaml.Node | None, path: Sequence[Step]) -> int | None:
    if node is None or not path:
        return None
    for step in path:
        inner = _child(node, step)
        if inner is None:
            break
        node = inner
    line: int = node.start_mark.line + 1
    return line


def _child(node: yaml.Node, step: Step) -> yaml.Node | None:
    if isinstance(step, int):
        return node.value[step] if isinstance(node, yaml.SequenceNode) and step < len(node.value) else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == step), None)


def _json(text: str, mistakes: Mistakes) -> Any:
    repeated = Mistakes()

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _refuse_repeated([key for key, _ in pairs], repeated)
        return dict(pairs)

    document = json.loads(text, object_pairs_hook=mapping)
    if repeated.found:
        try:
            _yaml(text, mistakes)  # finds the same keys, and knows their lines
        except yaml.YAMLError:
            for one in repeated.found:
                mistakes.add(one.text)
    return document


def _yaml(text: str, mistakes: Mistakes) -> Any:
    loader = _StrictLoader(text)
    loader.mistakes = mistakes
    try:
        with garbage_collector.paused():
            return loader.get_single_data()
    finally:
        loader.dispose()


def _refuse_repeated(keys: Sequence[str], mistakes: Mistakes, line: int | None = None) -> None:
    if len(keys) == len(set(keys)):
        return
    for key in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        mistakes.add(f"'{key}' must be given once; got it {keys.count(key)} times", line)
