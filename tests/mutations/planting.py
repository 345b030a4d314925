"""Puts a defect into a copy of the tree, at a place that is found by its name, whichever module has it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SHIPPED: Final = ("quota", "purgatory", "schemas", "pipeline")

_NAMED: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_CHANGED: Final = (
    "@lambda original: __import__('functools').wraps(original)(lambda *a, **k: ({change})(original, *a, **k))"
)


class NotPlantable(Exception):
    """The place or the text that a defect changes is gone: whoever moved it moves the defect, too."""


@dataclass(frozen=True, slots=True)
class Defect:
    """A mistake in what the program does, and the tests that find it.

    Attributes:
        what: What goes wrong, in a sentence; unique.
        where: The name of a function, class or constant, `Class.method`; `package:name` where several have that name,
            with the package or module that has it once.
        change: Two texts, the first of which is there once and becomes the second. Or the source of a function that is
            called in place of `where`, with the original as its first argument.
        finder: Test files or tests, as pytest takes them; one of their tests fails.
        is_slow: The finder starts a broker or Spark.
    """

    what: str
    where: str
    change: tuple[str, str] | str
    finder: str
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Planted:
    """A module, by its path in the tree, and its text with the defect."""

    path: Path
    text: str


class Tree:
    """The shipped modules of a tree, and the places of all names in them."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    @cached_property
    def _places(self) -> dict[str, list[tuple[Path, ast.stmt]]]:
        places: dict[str, list[tuple[Path, ast.stmt]]] = {}
        for package in SHIPPED:
            for path in sorted((self._root / package).rglob("*.py")):
                module = path.relative_to(self._root)
                parts = module.with_suffix("").parts
                rooms = ["", *(f"{'.'.join(parts[:depth])}:" for depth in range(1, len(parts) + 1))]
                for name, node in _names_of(ast.parse(path.read_text(encoding="utf-8"))):
                    for room in rooms:
                        places.setdefault(f"{room}{name}", []).append((module, node))
        return places

    def planted(self, defect: Defect) -> Planted:
        """The changed module; `NotPlantable` says what is gone."""
        found = self._places.get(defect.where, [])
        if len(found) != 1:
            modules = ", ".join(str(path) for path, _ in found)
            detail = f"several modules have it ({modules}): write package:name" if found else "no module has it"
            message = f"{defect.where} was not found: {detail}"
            raise NotPlantable(message)
        [(path, node)] = found
        lines = (self._root / path).read_text(encoding="utf-8").splitlines(keepends=True)
        before, own, after = (
            lines[: node.lineno - 1],
            lines[node.lineno - 1 : node.end_lineno],
            lines[node.end_lineno :],
        )
        text = "".join([*before, _changed("".join(own), defect), *after])
        compile(text, path, "exec")
        return Planted(path, text)


def _names_of(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for node in tree.body:
        if isinstance(node, _NAMED):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _names_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((f"{prefix}{target.id}", node) for target in targets if isinstance(target, ast.Name))


def _changed(own: str, defect: Defect) -> str:
    if isinstance(defect.change, str):
        indent = own[: len(own) - len(own.lstrip())]
        return f"{indent}{_CHANGED.format(change=defect.change)}\n{own}"
    old, new = defect.change
    times = own.count(old)
    if times != 1:
        message = f"{defect.where} has {old!r} {times} times, not once"
        raise NotPlantable(message)
    return own.replace(old, new)
