"""Make the jar of the reporter: `python -m deploy.reporter`; the same sources and compiler give the same bytes."""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from pipeline.errors import PipelineError
from pipeline.jvm.jars import JarStore, read_lock
from pipeline.jvm.java import find_jdk
from pipeline.meter.reporter import REPORTER_JAR

_SOURCES: Final = Path(__file__).parent
_JAVA_LEVEL: Final = "11"  # brokers of Kafka 3.9 run on Java 11
_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)  # of an entry of a zip file
_MANIFEST: Final = b"Manifest-Version: 1.0\r\nImplementation-Title: kquota-reporter\r\n\r\n"


def make(jar: Path) -> None:
    """Compile the sources against the oldest kafka-clients in the lock, and write the jar.

    Raises:
        PipelineError: there is no Java compiler, a jar is missing, or the sources do not compile.
    """
    jdk = find_jdk()
    if jdk is None:
        message = "the reporter's jar needs a Java compiler (javac); none in KQUOTA_JAVA_HOME, JAVA_HOME or PATH"
        raise PipelineError(message, "install a JDK 17 or newer (Debian, Ubuntu: default-jdk-headless)")
    store = JarStore(read_lock())
    store.fetch()
    clients = min((one for one in store.locked if one.artifact == "kafka-clients"), key=lambda one: one.version)
    logging = next(one for one in store.locked if one.artifact == "slf4j-api")
    sources = sorted(_SOURCES.rglob("*.java"))
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(jdk.home / "bin" / "javac"),
            "--release",
            _JAVA_LEVEL,
            "-Xlint:all",
            "-Werror",
            "-g:source,lines",
        ]
        command += ["-cp", f"{store.check(clients)}:{store.check(logging)}", "-d", folder, *map(str, sources)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the machine's javac
        if ended.returncode:
            message = f"the reporter does not compile: {' '.join(ended.stderr.split())[:600]}"
            raise PipelineError(message, f"look at the sources in {_SOURCES}")
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
    sys.stdout.write(f"{REPORTER_JAR.relative_to(Path.cwd())} {REPORTER_JAR.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
