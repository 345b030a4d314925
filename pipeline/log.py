"""The job's log: one line per event on stderr, with key=value facts. Libraries log only what our errors do not say.

A log must not become the trouble: a place in the code that warns again and again is cut short, and a record that can
not be formatted is a short line, not an exception.
"""

import codecs
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from pipeline.errors import printable

codecs.lookup("unicode_escape")  # loaded now: `printable` needs it, also when no file can be opened any more

_SPAN_SECONDS: Final = 10.0
_LINES_PER_SPAN: Final = 20
_QUIET: Final = ("py4j", "kafka", "pyspark", "deltalake")


class _LineFormatter(logging.Formatter):
    """`12:00:17.804 INFO stream.query batch_id=7 …`; one printable line without the leading `pipeline.` of the name."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            text = printable(record.getMessage()) + getattr(record, "cut_short", "")
        except Exception as exc:
            return f"{record.levelname} {record.name} line {record.lineno}: not formatted: {type(exc).__name__}"
        stamp = f"{time.strftime('%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}"
        line = f"{stamp} {record.levelname} {record.name.removeprefix('pipeline.')} {text}"
        if record.exc_info and logging.getLogger().isEnabledFor(logging.DEBUG):
            trace = self.formatException(record.exc_info).split("\n")
            line = "\n".join([line, *(f"  {printable(text)}" for text in trace)])  # so that none looks like a line
        return line


class CutShort(logging.Filter):
    """Lets each place in the code log 20 warnings or errors in 10 s. What is left out is counted in its next line."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._places: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        if record.levelno < logging.WARNING:
            return True
        place, now = (record.pathname, record.lineno), self._now()
        began, lines = self._places.get(place, (now, 0))
        if now - began >= _SPAN_SECONDS:
            left_out = max(lines - _LINES_PER_SPAN, 0)
            record.cut_short = f" ({left_out} lines like this were left out)" if left_out else ""
            began, lines = now, 0
        lines += 1
        self._places[place] = (began, lines)
        if lines == _LINES_PER_SPAN:
            record.cut_short = f" (more lines like this are left out for {began + _SPAN_SECONDS - now:.0f} s)"
        return lines <= _LINES_PER_SPAN


def set_up_logging(level: str, stream: Any = None) -> None:
    """Send this process's log to a stream, or to stderr. Replaces earlier handlers, so it may be called again.

    Stack traces are printed only at DEBUG; above it a line has what is wrong and what to do.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_LineFormatter())
    # py4j logs on the root logger that the JVM has ended. Our own error names it too.
    handler.addFilter(lambda record: record.module != "java_gateway")
    handler.addFilter(CutShort())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # What these two log is also in our own errors: kafka-python has other words, py4j a stack trace.
    for name in ("kafka", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
