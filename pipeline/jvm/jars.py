"""The locked jars on this machine: fetched once, checked at every start.

Fetched files are in a cache, `<cache>/jars/<sha256>/<name>.jar`, that all checkouts share. KQUOTA_JARS_DIR names a
plain folder of jars instead (for a site without network, or an image that contains the jars); then nothing is fetched
and no other folder is used.

`python -m pipeline.jvm.jars` is what the bootstrap calls, before the console script exists: `fetch` fetches
missing jars, `lock` writes deploy/jvm/jars.lock from the pom.xml beside it.
"""

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pipeline.command_line import command_text, extra_text, pip_text
from pipeline.errors import PipelineError
from pipeline.jvm.cache import cache_folder
from pipeline.jvm.errors import JarAltered, JarMissing, JarsUnavailable
from pipeline.jvm.jar_lock import OPTIONAL_SETS, LockedJar, jars_of, lock_path, read_lock, sha256_of
from pipeline.jvm.jar_sources import JarSource, machine_sources

Progress = Callable[[str], object]

_AT_ONCE = 14  # what one download may ask for: whoever waits sees that it goes on
_FIRST_PAUSE_SECONDS = 1.0  # registries answer 429 to bursts; each further pause is three times as long


@dataclass(frozen=True)
class FetchReport:
    """What a fetch did.

    Attributes:
        fetched: jars copied into the cache now, with the source each came from.
        cached: jars that were there already, or come with pyspark or KQUOTA_JARS_DIR.
    """

    fetched: Mapping[LockedJar, str]
    cached: Sequence[LockedJar]


class JarStore:
    """The locked jars of one machine.

    Args:
        locked: the lock's entries.
        environ: KQUOTA_CACHE, KQUOTA_JARS_DIR, PATH and Maven's variables are read from it.
        sources: where missing jars come from, nearest first; by default what the machine has.
        pause: sleeps between attempts; seconds.
        pyspark_jars: the `jars` folder of pyspark; by default the installed one's.
    """

    def __init__(
        self,
        locked: Sequence[LockedJar],
        environ: Mapping[str, str] = os.environ,
        sources: Sequence[JarSource] | None = None,
        pause: Callable[[float], None] = time.sleep,
        pyspark_jars: Path | None = None,
    ) -> None:
        self.locked = tuple(locked)
        self._cache = cache_folder(environ) / "jars"
        self._folder = Path(environ["KQUOTA_JARS_DIR"]).expanduser() if environ.get("KQUOTA_JARS_DIR") else None
        self._pyspark_jars = pyspark_jars or pyspark_jars_folder()
        self._sources = machine_sources(self._pyspark_jars, environ) if sources is None else sources
        self._pause = pause

    @property
    def folder(self) -> Path:
        """Where the jars are that do not come with pyspark."""
        return self._folder or self._cache

    def path_of(self, jar: LockedJar) -> Path:
        """Where the jar belongs; it may not be there."""
        if self._folder is not None:
            return self._folder / jar.file_name
        if jar.origin == "pyspark":
            return (self._pyspark_jars or Path("pyspark", "jars")) / jar.file_name
        return self._cache / jar.sha256 / jar.file_name

    def check(self, jar: LockedJar) -> Path:
        """The jar's path, after its size and sha256 were compared with the lock.

        Raises:
            JarMissing: no such file.
            JarAltered: another size or hash.
        """
        path = self.path_of(jar)
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise JarMissing(jar.file_name, path, self._remedy(jar)) from error
        if size_bytes != jar.size_bytes:
            expected, got = f"{jar.size_bytes} bytes", f"{size_bytes} bytes"
            raise JarAltered(jar.file_name, path, expected, got, self._remedy(jar))
        digest = sha256_of(path)
        if digest != jar.sha256:
            expected, got = f"sha256 {jar.sha256[:12]}…", f"{digest[:12]}…"
            raise JarAltered(jar.file_name, path, expected, got, self._remedy(jar))
        return path

    def missing(self) -> list[LockedJar]:
        """The jars without a file where they belong. Reads no file, so it is quick."""
        return [jar for jar in self.locked if not self.path_of(jar).is_file()]

    def verify(self) -> list[PipelineError]:
        """Every jar that is missing or altered, as the error it would raise; empty when all is well."""
        return [problem for jar in self.locked if (problem := self._problem(jar)) is not None]

    def fetch(self, progress: Progress = lambda _line: None) -> FetchReport:
        """Fetches every missing or altered jar into the cache. Can be repeated, and run by several processes at once.

        Args:
            progress: called with a line before each download, and before each look at the local Maven repository.

        Raises:
            JarsUnavailable: a jar is in no source; the jars that were fetched stay in the cache.
            JarMissing, JarAltered: a jar that is not fetched (pyspark's own, or in KQUOTA_JARS_DIR).
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        with FileLock(self._cache / ".lock", timeout=900):
            missing = [jar for jar in self.locked if self._problem(jar) is not None]
            for jar in missing:
                if self._folder is not None or jar.origin == "pyspark":
                    self.check(jar)
            fetched = self._fetch(missing, progress) if missing else {}
        return FetchReport(fetched, [jar for jar in self.locked if jar not in fetched])

    def _fetch(self, missing: Sequence[LockedJar], progress: Progress) -> dict[LockedJar, str]:
        fetched: dict[LockedJar, str] = {}
        failures: list[str] = []
        for source in self._sources:
            pause_seconds = _FIRST_PAUSE_SECONDS
            for attempt in range(1, source.attempts + 1):
                wanted = [jar for jar in missing if jar not in fetched]
                if not wanted:
                    return fetched
                if attempt > 1:
                    self._pause(pause_seconds)
                    pause_seconds *= 3
                reason, taken = self._attempt(source, attempt, wanted, progress)
                fetched |= dict.fromkeys(taken, source.name)
            if reason:
                failures.append(f"{source.name}: {reason}")
        wanted = [jar for jar in missing if jar not in fetched]
        if wanted:
            raise JarsUnavailable(
                [jar.file_name for jar in wanted],
                failures or ["nothing, because there is neither mvn nor a Java for Ivy"],
            )
        return fetched

    def _attempt(
        self, source: JarSource, attempt: int, wanted: Sequence[LockedJar], progress: Progress
    ) -> tuple[str, list[LockedJar]]:
        """Tries a source once, some jars at a time if it is a download; one that brings nothing ends the attempt."""
        at_once = len(wanted) if source.attempts == 1 else _AT_ONCE
        name = f"{source.name}, attempt {attempt}" if attempt > 1 else source.name
        reason, taken = "", list[LockedJar]()
        for begin in range(0, len(wanted), at_once):
            some = wanted[begin : begin + at_once]
            part = "" if len(some) == len(wanted) else f"{begin + 1} to {begin + len(some)} of "
            progress(f"{part}{len(wanted)} jars from {name}")
            failure, got = self._take(source, some)
            reason, taken = failure or reason, taken + got
            if not got:
                break
        return reason, taken

    def _take(self, source: JarSource, wanted: Sequence[LockedJar]) -> tuple[str, list[LockedJar]]:
        """Tries a source once and moves the jars that match the lock into the cache."""
        taken: list[LockedJar] = []
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self._cache) as folder:
            reason = source.copy(wanted, Path(folder))
            for jar in wanted:
                file = Path(folder) / jar.file_name
                if not file.is_file():
                    continue
                digest = sha256_of(file)
                if digest != jar.sha256:
                    reason = f"{jar.file_name} has sha256 {digest[:12]}…, the lock says {jar.sha256[:12]}…"
                    continue
                target = self.path_of(jar)
                target.parent.mkdir(exist_ok=True)
                file.replace(target)  # within one file system, so a reader never sees half a jar
                taken.append(jar)
        return reason, taken

    def _problem(self, jar: LockedJar) -> PipelineError | None:
        try:
            self.check(jar)
        except (JarMissing, JarAltered) as error:
            return error
        return None

    def _remedy(self, jar: LockedJar) -> str:
        if self._folder is not None:
            return f"put the locked file into {self._folder}, or unset KQUOTA_JARS_DIR"
        if jar.origin == "pyspark":
            if self._pyspark_jars is None:
                return extra_text("job")
            return f"reinstall it: {pip_text('install', '--force-reinstall', '--no-deps', 'pyspark==4.2.0')}"
        of_its_set = ("--with", jar.jar_set) if jar.jar_set in OPTIONAL_SETS else ()
        return command_text("jars", "fetch", *of_its_set, about="program")


def spark_jars(*with_sets: str) -> list[Path]:
    """Jars that Spark needs beside its own (Kafka source, Delta), each checked against the lock.

    Args:
        with_sets: optional sets that are needed too.

    Raises:
        JarLockInvalid, JarMissing, JarAltered: see there.
    """
    return [path for jar_set in ("spark", *with_sets) for path in _checked(jar_set)]


def broker_classpath() -> list[Path]:
    """The embedded broker's class path, each jar checked against the lock.

    Raises:
        JarLockInvalid, JarMissing, JarAltered: see there.
    """
    return _checked("broker")


def fetch(progress: Progress = lambda _line: None, *with_sets: str) -> FetchReport:
    """Fetches every locked jar that is missing, those of optional sets if they are named; see `JarStore.fetch`."""
    return JarStore(jars_of(*with_sets)).fetch(progress)


def pyspark_jars_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The `jars` folder of the installed pyspark; None without it. Does not import pyspark.

    Args:
        environ: SPARK_HOME is read from it. Under spark-submit pyspark is imported from an archive in that folder, and
            the jars are beside it.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    home = environ.get("SPARK_HOME")
    return Path(home, "jars") if home and not package.is_dir() else package / "jars"


def _checked(jar_set: str) -> list[Path]:
    locked = [jar for jar in read_lock() if jar.jar_set == jar_set]
    store = JarStore(locked, sources=())
    return [store.check(jar) for jar in locked]


def main(arguments: Sequence[str]) -> int:
    """Run `fetch` or `lock` and return the exit code. The result is one line on stdout; all else is on stderr."""
    try:
        if list(arguments) == ["fetch"]:
            report = fetch(lambda line: sys.stderr.write(f"{line}\n"))
            sys.stdout.write(f"{len(report.fetched)} fetched, {len(report.cached)} from cache\n")
        elif list(arguments) == ["lock"]:
            sys.stdout.write(f"{_write_lock()} jars locked\n")
        else:
            sys.stderr.write("usage: python -m pipeline.jvm.jars fetch|lock\n")
            return 2
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _write_lock() -> int:
    from pipeline.jvm.jar_lock_making import write_lock  # noqa: PLC0415 - needed for this command only

    folder = pyspark_jars_folder()
    downloads = [source for source in machine_sources(folder) if source.attempts > 1]
    lock = lock_path()
    return len(write_lock(lock.with_name("pom.xml"), lock, downloads, folder or Path("pyspark", "jars")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
