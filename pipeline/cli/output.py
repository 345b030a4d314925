"""How a command prints: data on stdout, as tables for people or JSON or YAML for programs; remarks on stderr.

Whatever names it has, an output changes no terminal and forges no line, and any encoding of stdout can be printed to.
"""

import io
import os
import select
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pipeline.documents import UTF_8, json_text, yaml_text
from pipeline.errors import UsageError, printable

# The layout of a table for the width of a terminal, which rich makes. What a column holds decides what may happen to
# it: a text is broken between words, and the name of a client or of a place wherever it must be. Every other column is
# shown in full or not at all.

_GAP: Final = 2
_LEAST_NAME: Final = 9  # so that <default> is never broken
_LEAST_TEXT: Final = 24

NAMES: Final = frozenset(
    {"user", "client_id", "client", "entity", "sensor_user", "sensor_client_id", "topic", "actor", "host", "owner"}
)
"""Keys of columns that hold names which somebody else has chosen: they have any length."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the table of a command looks, and how it becomes narrower.

    Attributes:
        columns: Keys of the columns, in order; empty = all keys of the first row. `-o wide` adds all others.
        dropped_first: Columns that are left out of a table that is too wide, the least important first; columns without
            any value go before them. If that is not enough, the others follow from the last on; the first column always
            stays.
        texts: Columns whose cells may be broken between words.
        names: Columns whose cells may be broken anywhere.
    """

    columns: Sequence[str] = ()
    dropped_first: Sequence[str] = ()
    texts: Sequence[str] = ()
    names: frozenset[str] = NAMES


def fitted(
    keys: Sequence[str], rows: Sequence[Sequence[str]], layout: Layout, width: int | None
) -> tuple[list[str], list[str]]:
    """The lines of a table, the header first, and the columns left out that have a value.

    A table whose first column cannot become narrower is wider than `width` cells; None = no limit.

    Args:
        keys: Keys of the columns, in order; not empty. They are the header, with spaces for underscores.
        rows: Cells of each row, as many as keys, printable and without line ends.
    """
    cells = {key: [key.replace("_", " "), *(row[place] for row in rows)] for place, key in enumerate(keys)}
    full = {key: max(map(cell_len, column)) for key, column in cells.items()}
    narrow = {**dict.fromkeys(layout.names, _LEAST_NAME), **dict.fromkeys(layout.texts, _LEAST_TEXT)}
    least = {key: min(most, max(narrow.get(key, most), cell_len(cells[key][0]))) for key, most in full.items()}
    with_names = {key: least[key] if key in layout.texts else most for key, most in full.items()}
    empty = [key for key in keys if not any(cells[key][1:])]
    kept = list(keys)
    # Names are broken only when all that may be dropped is dropped.
    for droppable, widths in ((empty, full), (layout.dropped_first, with_names), (reversed(keys), least)):
        for key in droppable:
            is_too_wide = width is not None and sum(widths[one] + _GAP for one in kept) - _GAP > width
            if is_too_wide and key in kept and key != keys[0]:
                kept.remove(key)
    room = sum(full[key] + _GAP for key in kept) if width is None else max(width, least[keys[0]])
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for key in kept:
        table.add_column(no_wrap=key not in narrow, overflow="fold", min_width=least[key])
    for row in zip(*(cells[key] for key in kept), strict=True):
        table.add_row(*map(Text, row))
    console = Console(width=room, file=io.StringIO(), color_system=None)
    lines = ["".join(part.text for part in line).rstrip() for line in console.render_lines(table, pad=False)]
    return lines, [key for key in keys if key not in kept and key not in empty]


FORMATS: Final = ("table", "wide", "json", "yaml")
_UNKNOWN_WIDTH: Final = 80
_ALL_COLUMNS: Final = Layout()

Row = Mapping[str, Any]


def terminal_width() -> int:
    """Cells of a line: those of the terminal, or of the variable COLUMNS, or 80."""
    return shutil.get_terminal_size((_UNKNOWN_WIDTH, 0)).columns


def format_option(text: str, known: Sequence[str]) -> Any:
    """The option `-o`. A format that is not known is refused before any work is done: a `UsageError`."""

    def check(output: str) -> str:
        if output not in known:
            message = f"unknown format -o {output}; use {', '.join(known)}"
            raise UsageError(message, f"for example -o {known[0]}")
        return output

    return typer.Option("-o", "--output", help=text, callback=check)


def is_table(output: str) -> bool:
    """Whether a format is for people: `table` or `wide`."""
    return output in ("table", "wide")


def print_what_it_can() -> None:
    """Let stdout and stderr escape what their encoding cannot say, in place of an exception that ends the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(*lines: str) -> None:
    """Print lines for people on stdout, and hand them over at once. Each is one line, whatever names it has."""
    sys.stdout.write(_printable_lines(lines, sys.stdout))
    sys.stdout.flush()


def remark(*lines: str) -> None:
    """Print lines on stderr, as `say` does."""
    sys.stderr.write(_printable_lines(lines, sys.stderr))
    sys.stderr.flush()


def _printable_lines(lines: Sequence[str], stream: TextIO) -> str:
    encoding = _encoding(stream)
    return "".join(f"{printable(line, encoding)}\n" for line in lines)


def _encoding(stream: TextIO) -> str:
    return stream.encoding or UTF_8  # a stream in memory has none


def print_rows(
    rows: Sequence[Row],
    output: str,
    layout: Layout = _ALL_COLUMNS,
    *,
    shown: Callable[[Row], Row] | None = None,
    document: Any = None,
    name: Callable[[Row], str] | None = None,
) -> None:
    """Print rows that share their keys.

    `table` fits the terminal, or 80 columns where there is none (or the variable COLUMNS). It shows the columns of the
    layout; those that do not fit are named on stderr. `wide` shows all columns in full. If there are no rows, a table
    prints nothing, and JSON and YAML print an empty list.

    Args:
        output: One of `FORMATS`, or `name` if there is one of each row.
        shown: Makes a row of a table from a row, for people: units, clock times. JSON and YAML have the values as
            they are, but for escapes: see `pipeline.documents`.
        document: What JSON and YAML print in place of the rows, where rows are not enough; None = rows.
        name: Makes the name of a row, which `-o name` prints, each once.
    """
    if output == "name" and name is not None:
        say(*dict.fromkeys(map(name, rows)))
    elif is_table(output):
        _print_table([shown(row) for row in rows] if shown else rows, layout, wide=output == "wide")
    else:
        print_document(list(rows) if document is None else document, output)


def print_document(document: Any, output: str, *, indent: int | None = 2) -> None:
    """Print one value as `json`, in one line if there is no indent, or as `yaml`."""
    encoding = _encoding(sys.stdout)
    text = f"{json_text(document, encoding, indent=indent)}\n" if output == "json" else yaml_text(document, encoding)
    sys.stdout.write(text)


def _print_table(rows: Sequence[Row], layout: Layout, *, wide: bool) -> None:
    if not rows:
        return
    encoding = _encoding(sys.stdout)
    columns = list(layout.columns or rows[0])
    if wide:
        columns += [key for key in rows[0] if key not in columns]
    cells = [["" if row[key] is None else printable(str(row[key]), encoding) for key in columns] for row in rows]
    (header, *lines), dropped = fitted(columns, cells, layout, None if wide else terminal_width())
    sys.stdout.write(f"\x1b[1m{header}\x1b[0m\n" if sys.stdout.isatty() else f"{header}\n")
    say(*lines)
    if dropped:
        remark(f"no room for: {', '.join(dropped)}; see them with -o wide")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar within the block; it gives a function that takes the steps done and the steps in all."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, whole: progress.update(task, completed=done, total=whole)


@contextmanager
def until_reader_goes() -> Iterator[None]:
    """End the block, without an error, at the first output after stdout was closed (`| head`)."""
    try:
        yield
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Send what is still printed nowhere; else Python complains about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_has_gone() -> bool:
    """Whether standard output is a pipe or a terminal that was closed. Prints nothing."""
    try:
        number = sys.stdout.fileno()
    except OSError:  # not a file: it has no reader
        return False
    poll = select.poll()
    poll.register(number, 0)  # errors and hang-ups are always reported
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))
