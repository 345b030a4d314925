"""What each guard of the outbox is for: `python -m tests.model` writes the table into docs/faults.md.

It prints the steps, too, and the planted defect that takes the guard away.

Ends with 1 if a property is broken although all guards are there, or if a guard that is left out is not missed.
"""

import sys
from pathlib import Path
from typing import Final

from bench.pages import row, table, write_part
from tests.model.guards import GUARDS
from tests.model.search import Found, explore

PAGE: Final = Path(__file__).parents[2] / "docs" / "faults.md"
_MARKS: Final = ("<!-- model -->", "<!-- /model -->")


def line_of(name: str, found: Found) -> str:
    """The row of a guard."""
    return row([GUARDS[name].does, found.broken, str(len(found.way))])


def main() -> int:
    """Search with all guards, then without each."""
    whole = explore()
    found = {name: explore(name) for name in GUARDS}
    for name, each in found.items():
        guard = GUARDS[name]
        planted = guard.defect or "no planted defect"
        sys.stdout.write(f"{guard.does}: {'; '.join(each.way)}: {each.broken} ({planted})\n")
    lines = [line_of(name, each) for name, each in found.items()]
    head = f"With all guards: {whole.states} states, {whole.broken or 'no property is broken'}."
    text = f"{head}\n\n{table(['guard', 'without it', 'steps'])}\n" + "\n".join(lines)
    sys.stdout.write(f"{text}\n")
    write_part(PAGE, *_MARKS, text)
    return int(bool(whole.broken) or not all(each.broken for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
