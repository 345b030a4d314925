"""How a command prints: data on stdout, as tables for people or CSV, JSON or YAML for programs; remarks on stderr.

Whatever names it has, an output changes no terminal and forges no line, and any encoding of stdout can be printed to.
"""

import io
import os
import re
import select
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, TextIO

import typer
from rich.cells import cell_len, set_cell_size

from pipeline.documents import UTF_8, csv_text, json_text, yaml_text
from pipeline.errors import UsageError, is_shown, printable

# The layout of a table for the width of a terminal. Pure. Lengths are counted in cells of a terminal: a Chinese
# character takes two. What a column holds decides what may happen to it. A text is broken between words, and within a
# word only if that has more than 32 cells. The name of a client or of a place loses its middle, if nothing else helps.
# Every other column, and every header, is shown in full or not at all.

_GAP: Final = "  "
_SHORTEST_NAME: Final = 9  # so that <default> is never shortened
_SHORTEST_TEXT: Final = 16
_COMFORTABLE_TEXT: Final = 24
_LONGEST_WORD: Final = 32
_LEFT_OUT: Final = "…"
_JOINER: Final = "\ue000"  # one cell wide, no white space, and not printable: no cell has it
_IN_BRACKETS: Final = re.compile(r"\([^()]{1,14}\)")

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
        names: Columns whose cells may lose their middle; those in `texts` are broken instead.
    """

    columns: Sequence[str] = ()
    dropped_first: Sequence[str] = ()
    texts: Sequence[str] = ()
    names: frozenset[str] = NAMES


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table that fits: header and rows, which may need several lines; and the columns left out that have a value."""

    lines: tuple[str, ...]
    dropped: tuple[str, ...]
    is_shortened: bool


class _Column:
    """A column: its key, its header and cells, and how wide it becomes."""

    def __init__(self, key: str, cells: list[str]) -> None:
        self.key = key
        self.cells = [key.replace("_", " "), *cells]
        self.width = max(map(cell_len, self.cells))

    def least(self, narrow: Mapping[str, int]) -> int:
        """The width of the table in cells where some columns may be narrow; a header is never broken."""
        return min(self.width, max(narrow.get(self.key, self.width), cell_len(self.cells[0])))

    def longest_word(self) -> int:
        """Cells of the longest word that is not to be broken."""
        words = (cell_len(word) for cell in self.cells for word in _joined(cell).split())
        return max((length for length in words if length <= _LONGEST_WORD), default=0)


def fitted(keys: Sequence[str], rows: Sequence[Sequence[str]], layout: Layout, width: int | None) -> Fitted:
    """Lay out a table. A table whose first column cannot become narrower is wider than `width` cells; None = no limit.

    Args:
        keys: Keys of the columns, in order; not empty. They are the header, with spaces for underscores.
        rows: Cells of each row, as many as keys, printable and without line ends.
    """
    columns = [_Column(key, [row[place] for row in rows]) for place, key in enumerate(keys)]
    if width is not None:
        columns = _narrowed(columns, layout, width)
    kept = {column.key for column in columns}
    dropped = [key for place, key in enumerate(keys) if key not in kept and any(row[place] for row in rows)]
    names, shortened = layout.names.difference(layout.texts), False
    for column in columns:
        if column.key in names:
            short = [shortened_name(cell, column.width) for cell in column.cells]
            shortened |= short != column.cells
            column.cells = short
    lines = [line for cells in zip(*(column.cells for column in columns), strict=True) for line in _row(cells, columns)]
    return Fitted(tuple(lines), tuple(dropped), shortened)


def shortened_name(name: str, width: int) -> str:
    """A name without its middle, in at most `width` cells; the name itself if it is not longer.

    >>> shortened_name("service-0007", 8)
    'serv…007'
    """
    if cell_len(name) <= width:
        return name
    tail = (width - 1) // 2
    head = width - 1 - tail
    return f"{set_cell_size(name, head).rstrip()}{_LEFT_OUT}{set_cell_size(name[::-1], tail).rstrip()[::-1]}"


def _narrowed(columns: list[_Column], layout: Layout, width: int) -> list[_Column]:
    """Drop columns until the others can fit, then set their widths: texts give way before names do."""
    first = columns[0].key
    words = {column.key: column.longest_word() for column in columns if column.key in layout.texts}
    comfortable = {key: max(longest, _COMFORTABLE_TEXT) for key, longest in words.items()}
    empty = [column.key for column in columns if not any(column.cells[1:])]
    for key in (*empty, *layout.dropped_first):
        if key != first and _needed(columns, comfortable) > width:
            columns = [column for column in columns if column.key != key]
    texts = {key: max(longest, _SHORTEST_TEXT) for key, longest in words.items()}
    names = dict.fromkeys(layout.names.difference(texts), _SHORTEST_NAME)
    while len(columns) > 1 and _needed(columns, texts | names) > width:
        columns = columns[:-1]
    for narrow in (comfortable, texts, names):
        _squeeze(columns, narrow, width)
    return columns


def _needed(columns: Sequence[_Column], narrow: Mapping[str, int]) -> int:
    """Cells of a line in which some columns are narrow."""
    return sum(column.least(narrow) for column in columns) + cell_len(_GAP) * (len(columns) - 1)


def _squeeze(columns: Sequence[_Column], narrow: Mapping[str, int], width: int) -> None:
    """Take cells from some columns, always from the widest one that has any to give, until the line fits."""
    for _ in range(_needed(columns, {}) - width):
        giving = [column for column in columns if column.width > column.least(narrow)]
        if not giving:
            return
        max(giving, key=lambda column: column.width).width -= 1


def _row(cells: Sequence[str], columns: Sequence[_Column]) -> list[str]:
    lines = []
    lines_of_cells = (broken(cell, column.width) for cell, column in zip(cells, columns, strict=True))
    for parts in zip_longest(*lines_of_cells, fillvalue=""):
        padded = (part + " " * (column.width - cell_len(part)) for part, column in zip(parts, columns, strict=True))
        lines.append(_GAP.join(padded).rstrip())
    return lines


def broken(text: str, width: int) -> list[str]:
    """A text in lines of at most `width` cells; one line, however wide, where nothing is to be broken."""
    if cell_len(text) <= width:
        return [text]
    # Not at the top: these take 0.15 s, and few tables have a text to break.
    from rich.console import Console
    from rich.text import Text

    lines = Text(_joined(text)).wrap(Console(width=width), width)
    return [line.plain.rstrip().replace(_JOINER, " ") for line in lines]


def _joined(text: str) -> str:
    """A text in which what is in short parentheses is one word: `1048576 (1.0 MB/s)` is broken before the bracket."""
    return _IN_BRACKETS.sub(lambda found: found[0].replace(" ", _JOINER), text)


FORMATS: Final = ("table", "wide", "csv", "json", "yaml")
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
) -> None:
    """Print rows that share their keys.

    `table` fits the terminal, or 80 columns where there is none (or the variable COLUMNS). It shows the columns of the
    layout, and names on stderr the columns without room. `wide` shows all columns in full. Without rows a table and CSV
    print nothing, JSON and YAML an empty list.

    Args:
        output: One of `FORMATS`.
        shown: Makes a row of a table from a row, for people: units, clock times. CSV, JSON and YAML have the values
            as they are, but for escapes: see `pipeline.documents`.
        document: What JSON and YAML print in place of the rows, where rows are not enough; None = rows.
    """
    if is_table(output):
        _print_table([shown(row) for row in rows] if shown else rows, layout, wide=output == "wide")
    elif output != "csv":
        print_document(list(rows) if document is None else document, output)
    elif rows:
        sys.stdout.write(csv_text([rows[0], *(row.values() for row in rows)], _encoding(sys.stdout)))


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
    width = None if wide else terminal_width()
    table = fitted(columns, cells, layout, width)
    # No cell has the sign by now where the encoding lacks it.
    left_out = _LEFT_OUT if is_shown(_LEFT_OUT, encoding) else "~"
    header, *lines = (line.replace(_LEFT_OUT, left_out) for line in table.lines)
    sys.stdout.write(f"\x1b[1m{header}\x1b[0m\n" if sys.stdout.isatty() else f"{header}\n")
    say(*lines)
    if table.dropped:
        remark(f"no room for: {', '.join(table.dropped)}; see them with -o wide")
    if table.is_shortened:
        remark(f"names with {left_out} are shortened; see them in full with -o wide")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar within the block; it gives a function that takes the steps done and the steps in all."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

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
