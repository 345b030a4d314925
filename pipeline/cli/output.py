"""How data is printed: a table for people, with printable names; JSON or YAML for programs. Always on stdout."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline.errors import PipelineError, printable

FORMATS: Final = ("table", "json", "yaml")
_MANY_ROWS: Final = 200


class UnknownFormat(PipelineError):
    """`-o` names an unknown format."""

    exit_code = 2

    def __init__(self, given: str, known: Sequence[str] = FORMATS) -> None:
        super().__init__(f"'--output' must be one of {', '.join(known)}; got {given}", "give one of them")


def refuse_unknown_format(output: str, also: Sequence[str] = ()) -> None:
    """Refuse an unknown format before any work is done.

    Args:
        output: What was given.
        also: Formats this command has beside table, json and yaml.

    Raises:
        UnknownFormat: It is none of them.
    """
    if output not in {*FORMATS, *also}:
        raise UnknownFormat(output, (*also, *FORMATS))


def print_rows(rows: Sequence[Mapping[str, Any]], output: str, columns: Sequence[str] | None = None) -> None:
    """Print rows that share their keys.

    Args:
        rows: May be empty: the table prints nothing, JSON and YAML an empty list.
        output: table, json or yaml.
        columns: Which keys the table shows, in order; None shows all.

    Raises:
        UnknownFormat: Another output format.
    """
    if output == "table":
        _print_table(rows, columns or list(rows[0] if rows else ()))
    else:
        print_document(list(rows), output)


def print_document(document: Any, output: str) -> None:
    """Print one value as JSON or YAML.

    Raises:
        UnknownFormat: Another output format.
    """
    if output == "json":
        sys.stdout.write(json.dumps(document, indent=2, default=str, ensure_ascii=False) + "\n")
    elif output == "yaml":
        import yaml

        plain = json.loads(json.dumps(document, default=str))
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        sys.stdout.write(yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True))
    else:
        raise UnknownFormat(output)


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    if not rows:
        return
    header = [column.replace("_", " ") for column in columns]
    cells = [["" if row[column] is None else printable(str(row[column])) for column in columns] for row in rows]
    # A pipe has no width, so rows must not be folded. And rich needs seconds for thousands of rows.
    if not sys.stdout.isatty() or len(rows) > _MANY_ROWS:
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        for line in (header, *cells):
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            sys.stdout.write("  ".join(padded).rstrip() + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in header:
        table.add_column(column, overflow="fold")
    for line in cells:
        table.add_row(*line)
    # Names may look like markup or emoji of rich.
    Console(file=sys.stdout, highlight=False, markup=False, emoji=False).print(table)
