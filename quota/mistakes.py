"""What is wrong with quotas that somebody typed: one collector, for the command line and for files.

>>> mistakes = Mistakes()
>>> mistakes.at("quotas", 0).at("mode").add("must be one of enforce, shadow, exempt; got loud")
>>> print(mistakes.found[0], mistakes.found[0].path)
quotas[0].mode: must be one of enforce, shadow, exempt; got loud ('quotas', 0, 'mode')
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from quota.errors import InvalidBound

Step = str | int


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong.

    Attributes:
        text: what is wrong, without its place and without a full stop.
        path: the place: keys and positions (from 0) in a file, from the outside; or a flag of the command line. Empty
            if the mistake is in no certain place.
        line: line of the file, from 1; None if there is no file, or if the line is not known.
    """

    text: str
    path: tuple[Step, ...] = ()
    line: int | None = None

    @property
    def place(self) -> str:
        """The path as text: `quotas[0].values[1]`; "" for an empty path."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        """The place, if there is one, and what is wrong."""
        line = "" if self.line is None else f"line {self.line}"
        place = ", ".join(part for part in (line, self.place) if part)
        return f"{place}: {self.text}" if place else self.text


class Mistakes:
    """Collects mistakes. A collector made by `at` adds to the same list, at a place further in."""

    def __init__(self) -> None:
        self._path: tuple[Step, ...] = ()
        self._found: list[Mistake] = []

    def at(self, *steps: Step) -> "Mistakes":
        """The collector for a place further in."""
        inner = Mistakes()
        inner._path, inner._found = (*self._path, *steps), self._found
        return inner

    def add(self, text: str, line: int | None = None) -> None:
        """Add a mistake at this place."""
        self._found.append(Mistake(text, self._path, line))

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Add a bound that is refused inside the block, and go on after the block."""
        try:
            yield
        except InvalidBound as exc:
            self.add(exc.mistake)

    @property
    def found(self) -> tuple[Mistake, ...]:
        """All mistakes of all places, in the order they were added."""
        return tuple(self._found)
