"""Starts Spark's JVM, and passes on what it writes to standard error, without the lines that every start writes.

Spark's launcher adds the module jdk.incubator.vector to each JVM, and opens a package that Java 25 no longer has. The
JVM then warns of both. No option of Java or Spark switches the warnings off, and nobody can act on them.
"""

import os
from collections.abc import Mapping
from threading import Thread
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

_OF_EVERY_START: Final = (
    b"WARNING: Using incubator modules: jdk.incubator.vector\n",
    b"WARNING: package sun.security.action not in java.base\n",
)
_STDERR: Final = 2

_launch: Any = launch_gateway  # pyspark has no types for it


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process's sessions. Only where none was started before.

    Args:
        settings: Those of the session; the JVM's own options are among them.
    """
    conf = SparkConf().setAll(list(settings.items()))
    read_end, write_end = os.pipe()
    Thread(target=pass_on, args=(read_end, _STDERR), name="jvm-stderr", daemon=True).start()
    try:
        gateway = _launch(conf, {"stderr": write_end})
    finally:
        os.close(write_end)  # the JVM has its own; when it ends, so does the thread
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def pass_on(source: int, target: int) -> None:
    """Copy from one file descriptor to another until the end, but for those lines; closes the first.

    What is not a whole line yet is passed on at once, too, unless it may become one of them.
    """
    held = b""
    with open(source, "rb", buffering=0) as stream:
        while chunk := stream.read(65_536):
            held += chunk
            for line in _OF_EVERY_START:
                held = held.replace(line, b"")
            begun = held.rpartition(b"\n")[2]
            kept = begun if begun and any(line.startswith(begun) for line in _OF_EVERY_START) else b""
            _write(target, held[: len(held) - len(kept)])
            held = kept
        _write(target, held)


def _write(target: int, content: bytes) -> None:
    while content:
        content = content[os.write(target, content) :]
