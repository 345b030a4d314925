"""Runs a Java source file of this folder on the broker's class path, to measure Kafka's own classes."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pipeline.jvm.errors import JavaNotFound
from pipeline.jvm.jars import broker_classpath, fetch
from pipeline.jvm.java import LOWEST_VERSION, find_jdk


def has_compiler() -> bool:
    """True if there is a JDK. Only its `java` runs source files."""
    return find_jdk() is not None


def run_java(source: str, arguments: Sequence[str], options: Sequence[str] = ()) -> list[list[str]]:
    """Run a source file to its end. Only if `has_compiler`. Returns the words of each line of its stdout.

    Args:
        source: name of a file in this folder.
        arguments: of the program.
        options: of the JVM.

    Raises:
        JavaNotFound, JarMissing, JarAltered: see these.
        CalledProcessError: the program failed; the reason is on its stderr.
    """
    fetch()
    jdk = find_jdk()
    if jdk is None:
        raise JavaNotFound(LOWEST_VERSION, ["none with a compiler in JAVA_HOME or PATH"])
    class_path = os.pathsep.join(map(str, broker_classpath()))
    program = str(Path(__file__).with_name(source))
    command = [str(jdk.executable), *options, "-cp", class_path, program, *arguments]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [line.split() for line in answer.stdout.splitlines()]
