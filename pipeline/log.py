"""The job's log: one line per event on stderr, with key=value facts. Libraries log only what our errors do not say."""

import logging
import sys
import time
from typing import Final

from pipeline.errors import printable

_QUIET: Final = ("py4j", "kafka", "pyspark", "deltalake")


class _LineFormatter(logging.Formatter):
    """`12:00:17.804 INFO stream.query batch_id=7 …`; one printable line without the leading `pipeline.` of the name."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{time.strftime('%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}"
        line = f"{stamp} {record.levelname} {record.name.removeprefix('pipeline.')} {printable(record.getMessage())}"
        if record.exc_info and logging.getLogger().isEnabledFor(logging.DEBUG):
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def set_up_logging(level: str) -> None:
    """Send this process's log to stderr. Replaces earlier handlers, so it may be called again.

    Stack traces are printed only at DEBUG; above it a line says what is wrong and what to do.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    # py4j logs on the root logger that the JVM has ended. Our own error says the same.
    handler.addFilter(lambda record: record.module != "java_gateway")
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # What these two log is also in our own errors: kafka-python says it in other words, py4j with a stack trace.
    for name in ("kafka", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
