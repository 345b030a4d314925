"""What can be wrong with Java and the jars.

PipelineError
├── JobExtraMissing  pyspark and what belongs to it are not installed
├── JavaNotFound     no Java 17 or newer on this machine
├── JarLockInvalid   deploy/jvm/jars.lock is missing or cannot be read
├── JarMissing       a locked jar is not where it should be
├── JarAltered       a jar's size or sha256 is not the locked one
└── JarsUnavailable  no source could deliver a jar
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.command_line import extra_text
from pipeline.errors import PipelineError


class JobExtraMissing(PipelineError):
    """What needs Spark was asked for where only the core is installed.

    Attributes:
        library: The first one that is missing.
    """

    def __init__(self, library: str) -> None:
        self.library = library
        super().__init__(f"this must have pyspark, delta-spark and a Java; got no {library}", extra_text("job"))


class JavaNotFound(PipelineError):
    """No Java of the wanted version was found.

    Attributes:
        wanted_version: lowest feature version that is accepted.
        rejected: what was found, with the reason it was rejected.
    """

    def __init__(self, wanted_version: int, rejected: Sequence[str]) -> None:
        self.wanted_version = wanted_version
        self.rejected = tuple(rejected)
        super().__init__(
            f"'java' must be version {wanted_version} or newer; got {'; '.join(rejected)}",
            f"{extra_text('job')} brings one; or install a JDK {wanted_version} or newer and set JAVA_HOME",
        )


class JarLockInvalid(PipelineError):
    """The jar lock is missing or a line of it cannot be read.

    Attributes:
        path: the lock file.
        line_number: first bad line, from 1; 0 when the file itself is missing.
    """

    def __init__(self, path: Path, line_number: int, reason: str) -> None:
        self.path = path
        self.line_number = line_number
        super().__init__(
            f"jar lock {path}{f', line {line_number},' if line_number else ''} {reason}",
            "restore the file from the repository, or write it again: python -m pipeline.jvm.jars lock",
        )


class JarMissing(PipelineError):
    """A locked jar is not on this machine.

    Attributes:
        jar: its file name.
        path: where it was expected.
    """

    def __init__(self, jar: str, path: Path, fix: str) -> None:
        self.jar = jar
        self.path = path
        super().__init__(f"jar '{jar}' is missing at {path}", fix)


class JarAltered(PipelineError):
    """A jar is not the file that was locked.

    Attributes:
        jar: its file name.
        path: the altered file.
        expected: locked size ("1024 bytes") or hash ("sha256 ab12…").
        got: the file's own.
    """

    def __init__(self, jar: str, path: Path, expected: str, got: str, fix: str) -> None:
        self.jar = jar
        self.path = path
        self.expected = expected
        self.got = got
        super().__init__(f"jar '{jar}' at {path} must have {expected}; got {got}", fix)


class JarsUnavailable(PipelineError):
    """No source could deliver some of the locked jars.

    Attributes:
        jars: the file names that are still missing.
        attempts: what was tried, each with its outcome.
    """

    exit_code = 6

    def __init__(self, jars: Sequence[str], attempts: Sequence[str]) -> None:
        self.jars = tuple(jars)
        self.attempts = tuple(attempts)
        others = f" and {len(jars) - 1} more" if len(jars) > 1 else ""
        super().__init__(
            f"jar '{jars[0]}'{others} could not be fetched; tried {'; '.join(attempts)}",
            "check the network, proxy, Maven settings.xml and which certificates this Java trusts (KQUOTA_JAVA_HOME "
            "chooses another), or point KQUOTA_JARS_DIR at a folder with the jars",
        )
