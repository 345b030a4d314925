"""What each guard of the outbox is for: `python -m tests.model` writes the list into docs/faults.md.

It prints the steps to each broken state, too, and the planted defect that takes the guard away. Ends with 1 if a
property is broken although all guards are there, or if a guard that is left out is not missed.
"""

import sys
from pathlib import Path
from typing import Final

from bench.pages import write_part
from tests.model.guards import GUARDS
from tests.model.search import Found, explore

PAGE: Final = Path(__file__).parents[2] / "docs" / "faults.md"
_MARKS: Final = ("<!-- model -->", "<!-- /model -->")


def broken_by(found: Found) -> str:
    """The property that is broken, without the rows that show it."""
    return found.broken.partition(":")[0]


def guard_of(name: str, found: Found) -> str:
    """What a guard does, and the number of steps to a broken state without it."""
    return f"{GUARDS[name].does} ({len(found.way)})"


def main() -> int:
    """Search with all guards, then without each."""
    whole = explore()
    found = {name: explore(name) for name in GUARDS}
    for name, each in found.items():
        guard = GUARDS[name]
        planted = guard.defect or "no planted defect"
        sys.stdout.write(f"{guard.does}: {'; '.join(each.way)}: {each.broken} ({planted})\n")
    guards: dict[str, list[str]] = {}
    for name, each in found.items():
        guards.setdefault(broken_by(each), []).append(guard_of(name, each))
    head = f"With all guards: {whole.states} states, {whole.broken or 'no property is broken'}. Without one of these:"
    text = "\n".join([head, "", *(f"* **{broken}**: {'; '.join(those)}" for broken, those in guards.items())])
    sys.stdout.write(f"{text}\n")
    write_part(PAGE, *_MARKS, text)
    return int(bool(whole.broken) or not all(each.broken for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
