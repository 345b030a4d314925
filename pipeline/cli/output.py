"""How data is printed: a table for people, with printable names; CSV, JSON or YAML for programs. Always on stdout."""

import csv
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import typer

from pipeline.cli.table_layout import Layout, fitted
from pipeline.errors import PipelineError, printable

FORMATS: Final = ("table", "wide", "csv", "json", "yaml")
DOCUMENTS: Final = ("json", "yaml")
_TABLES: Final = ("table", "wide")
UNKNOWN_WIDTH: Final = 80
_ALL_COLUMNS: Final = Layout()

Row = Mapping[str, Any]


class UnknownFormat(PipelineError):
    """`-o` names an unknown format."""

    exit_code = 2

    def __init__(self, given: str, known: Sequence[str] = FORMATS) -> None:
        super().__init__(f"'--output' must be one of {', '.join(known)}; got {given}", f"for example -o {known[0]}")


def refuse_unknown_format(output: str, also: Sequence[str] = ()) -> None:
    """Refuse an unknown format before any work is done.

    Args:
        output: What was given.
        also: Formats this command has beside the known ones.

    Raises:
        UnknownFormat: It is none of them.
    """
    if output not in {*FORMATS, *also}:
        raise UnknownFormat(output, (*also, *FORMATS))


def is_table(output: str) -> bool:
    """Whether a format is for people: `table` or `wide`."""
    return output in _TABLES


def print_rows(
    rows: Sequence[Row],
    output: str,
    layout: Layout = _ALL_COLUMNS,
    *,
    shown: Callable[[Row], Row] | None = None,
    document: Any = None,
) -> None:
    """Print rows that share their keys.

    `table` fits the terminal, or 80 columns where there is none (or the variable COLUMNS). It shows the columns of the
    layout, and says on stderr which of them had no room. `wide` shows all columns in full.

    Args:
        rows: May be empty: a table prints nothing, CSV too, JSON and YAML an empty list.
        output: One of `FORMATS`.
        layout: The columns of the table, and what to do if it is too wide.
        shown: Makes a row of a table from a row, for people: units, clock times. CSV, JSON and YAML have the values
            as they are. In CSV a list or a mapping is written as JSON, None as nothing.
        document: What JSON and YAML print in place of the rows, where there is more to say than rows can; None = rows.

    Raises:
        UnknownFormat: Another output format.
    """
    refuse_unknown_format(output)
    if is_table(output):
        _print_table([shown(row) for row in rows] if shown else rows, layout, wide=output == "wide")
    elif output == "csv":
        _print_csv(rows)
    else:
        print_document(list(rows) if document is None else document, output)


def print_document(document: Any, output: str) -> None:
    """Print one value as JSON or YAML.

    Raises:
        UnknownFormat: Another output format.
    """
    sys.stdout.write(document_text(document, output))


def document_text(document: Any, output: str) -> str:
    """One value as JSON or YAML.

    Raises:
        UnknownFormat: Another output format.
    """
    if output == "json":
        return json.dumps(document, indent=2, default=str, ensure_ascii=False) + "\n"
    if output != "yaml":
        raise UnknownFormat(output, DOCUMENTS)
    import yaml

    plain = json.loads(json.dumps(document, default=str))
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def _print_table(rows: Sequence[Row], layout: Layout, *, wide: bool) -> None:
    if not rows:
        return
    columns = list(layout.columns or rows[0])
    if wide:
        columns += [key for key in rows[0] if key not in columns]
    cells = [["" if row[key] is None else printable(str(row[key])) for key in columns] for row in rows]
    width = None if wide else shutil.get_terminal_size((UNKNOWN_WIDTH, 0)).columns
    table = fitted(columns, cells, layout, width)
    header, *lines = table.lines
    typer.echo(typer.style(header, bold=True))  # bold on a terminal only
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if table.dropped:
        sys.stderr.write(f"no room for: {', '.join(table.dropped)}; see them with -o wide\n")
    if table.is_shortened:
        sys.stderr.write("names with … are shortened; see them in full with -o wide\n")


def _print_csv(rows: Sequence[Row]) -> None:
    if not rows:
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_csv_cell(value) for value in row.values()] for row in rows)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool | dict | list | tuple):
        return json.dumps(value, default=str, ensure_ascii=False)
    return value
