"""The locked jars on this machine: fetched once, checked at every start.

Fetched files are in a cache, `<cache>/jars/<sha256>/<name>.jar`, that all checkouts share. KQUOTA_JARS_DIR names a
plain folder of jars instead (for a site without network, or an image that contains the jars); then nothing is fetched
and no other folder is used. `python -m deploy.jvm` writes the lock.
"""

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from filelock import FileLock

from pipeline.command_line import command_text, extra_text, path_text, pip_text
from pipeline.errors import PipelineError, Unreachable
from pipeline.jvm.java import JavaNotFound, cache_folder, find_java

# The jar lock: which files, of which size and sha256, belong to which set.
#
# One line per jar, with five fields: set, coordinates, origin, bytes, sha256. It has no addresses: Maven's settings on
# the machine say where jars come from. Lines that start with `#` are notes.

SETS: Final = ("spark", "broker", "s3", "compiler")
"""The sets of the project's own lock."""
OPTIONAL_SETS: Final = ("s3", "compiler")
"""Sets that are fetched only when they are asked for."""
ORIGINS = ("maven", "pyspark")

# A checkout has the lock under deploy/; a wheel carries it next to this module.
_CHECKOUT_LOCK = Path(__file__).resolve().parents[2] / "deploy" / "jvm" / "jars.lock"
_PACKAGED_LOCK = Path(__file__).with_name("jars.lock")


class JarUnfit(PipelineError):
    """A locked jar is missing, or is not the file that was locked."""


@dataclass(frozen=True)
class LockedJar:
    """One line of the lock.

    Attributes:
        jar_set: "spark" (in addition to pyspark's jars), "broker" (class path of the embedded broker), "s3" (on top of
            "spark", where Spark itself reads or writes a store that speaks S3), "compiler" (of Java; a checkout makes
            the reporter's jar with it).
        note: why this version, printed as a comment above the entry; "" for none.
    """

    jar_set: str
    group: str
    artifact: str
    version: str
    origin: str
    size_bytes: int
    sha256: str
    note: str = ""

    @property
    def file_name(self) -> str:
        """The file name Maven gives it."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        """`group:artifact:version`."""
        return f"{self.group}:{self.artifact}:{self.version}"


def lock_path() -> Path:
    """The lock file of this installation."""
    return _CHECKOUT_LOCK if _CHECKOUT_LOCK.exists() else _PACKAGED_LOCK


def read_lock(path: Path | None = None, sets: Sequence[str] = SETS) -> list[LockedJar]:
    """All locked jars, in file order; None = those of this installation's lock. Only these sets may occur in it."""
    path = path or lock_path()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _lock_invalid(path, 0, f"cannot be read ({error.strerror})") from error
    jars, notes = [], []
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            notes.append(line[1:].strip())
            continue
        if line.strip():
            try:
                jars.append(_parse(line, " ".join(notes), sets))
            except ValueError as error:
                raise _lock_invalid(path, number, str(error)) from error
        notes = []
    return jars


def jars_of(*with_sets: str) -> list[LockedJar]:
    """The locked jars that every machine needs, and those of the optional sets that are named."""
    return [jar for jar in read_lock() if jar.jar_set not in OPTIONAL_SETS or jar.jar_set in with_sets]


def sha256_of(path: Path) -> str:
    """Lower-case hex sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(line: str, note: str, sets: Sequence[str]) -> LockedJar:
    fields = line.split()
    if len(fields) != 5:
        msg = f"has {len(fields)} fields, not 5"
        raise ValueError(msg)
    jar_set, coordinates, origin, size, sha256 = fields
    parts = coordinates.split(":")
    problems = {
        f"set '{jar_set}' is none of {', '.join(sets)}": jar_set not in sets,
        f"coordinates '{coordinates}' are not group:artifact:version": len(parts) != 3,
        f"origin '{origin}' is none of {', '.join(ORIGINS)}": origin not in ORIGINS,
        f"bytes '{size}' is not a whole number": not size.isdecimal(),
        f"sha256 '{sha256}' is not 64 hex digits": not re.fullmatch("[0-9a-f]{64}", sha256),
    }
    for problem, found in problems.items():
        if found:
            raise ValueError(problem)
    group, artifact, version = parts
    return LockedJar(jar_set, group, artifact, version, origin, int(size), sha256, note)


# The sources of jars, nearest first. Each copies the jars it has into a folder and reports what went wrong.
#
# Downloads go through the ordinary clients, Maven or the Ivy inside pyspark, so that mirrors, proxies and
# credentials of the site are honoured; no address is written here. No source is trusted: `JarStore`
# checks every file against the lock.

_DOWNLOAD_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class JarSource:
    """A place jars may come from.

    Attributes:
        copy: Copies the jars it has to `into/<file_name>`. Returns why some are missing, "" if none is.
        attempts: How often to try: more than once if it uses the network.
    """

    name: str
    copy: Callable[[Sequence[LockedJar], Path], str]
    attempts: int = 3


def _copy_from_repository(folder: Path, jars: Sequence[LockedJar], into: Path) -> str:
    """From the user's Maven repository, read only: jars that earlier builds have fetched."""
    for jar in jars:
        path = folder.joinpath(*jar.group.split("."), jar.artifact, jar.version, jar.file_name)
        if path.is_file() and path.stat().st_size == jar.size_bytes:
            shutil.copyfile(path, into / jar.file_name)
    return "not there" if any(not (into / jar.file_name).exists() for jar in jars) else ""


def _copy_by_maven(mvn: str, environ: Mapping[str, str], jars: Sequence[LockedJar], into: Path) -> str:
    """By `mvn` with a generated project: every jar named, two versions of one jar allowed, nothing transitive."""
    pom = into / "pom.xml"
    pom.write_text(_maven_project(jars, into), encoding="utf-8")
    # -U: without it Maven remembers a failed look-up for a day, and a retry would do nothing.
    return _run([mvn, "-B", "-q", "-U", "-f", str(pom), "dependency:copy"], into, environ)


def _copy_by_ivy(java: Path, ivy: Path, environ: Mapping[str, str], jars: Sequence[LockedJar], into: Path) -> str:
    """By the Ivy inside pyspark: no Maven needed. DEFAULT_ARTIFACT_REPOSITORY is honoured, as Spark does."""
    root = environ.get("DEFAULT_ARTIFACT_REPOSITORY")
    (into / "settings.xml").write_text(_ivy_settings(root, into / "ivy-cache"), encoding="utf-8")
    (into / "ivy.xml").write_text(_ivy_module(jars), encoding="utf-8")
    command = [str(java), "-jar", str(ivy), "-settings", str(into / "settings.xml")]
    command += ["-ivy", str(into / "ivy.xml"), "-warn", "-confs", "default"]
    # Some jars are published as OSGi bundles and are silently left out unless that type is asked for.
    command += ["-types", "jar", "bundle", "-retrieve", str(into / "[artifact]-[revision].[ext]")]
    return _run(command, into, environ)


def machine_sources(pyspark_jars: Path | None, environ: Mapping[str, str] = os.environ) -> list[JarSource]:
    """What this machine has, nearest first: its Maven repository, `mvn` if on PATH, Ivy given pyspark and a Java."""
    found: list[JarSource] = []
    repository = _local_repository(environ)
    if repository.is_dir():
        found.append(JarSource("local Maven repository", partial(_copy_from_repository, repository), attempts=1))
    if mvn := shutil.which("mvn", path=environ.get("PATH", "")):
        found.append(JarSource("mvn", partial(_copy_by_maven, mvn, environ)))
    if ivy_jars := sorted(pyspark_jars.glob("ivy-*.jar")) if pyspark_jars else []:
        with contextlib.suppress(JavaNotFound):
            java = find_java(environ).executable
            found.append(JarSource("ivy", partial(_copy_by_ivy, java, ivy_jars[-1], environ)))
    return found


def _local_repository(environ: Mapping[str, str]) -> Path:
    for option in environ.get("MAVEN_OPTS", "").split() + environ.get("MAVEN_ARGS", "").split():
        if option.startswith("-Dmaven.repo.local="):
            return Path(option.partition("=")[2])
    return Path(environ.get("HOME") or Path.home()) / ".m2" / "repository"


def _run(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Runs a client. Returns its error message in one line, "" if it succeeded."""
    as_text: Any = {"capture_output": True, "text": True, "errors": "replace"}
    timeout = _DOWNLOAD_TIMEOUT_SECONDS
    try:  # mvn or java, found by us
        ended = subprocess.run(command, cwd=folder, env=environ, check=False, timeout=timeout, **as_text)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if ended.returncode == 0:
        return ""
    printed = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout + ended.stderr)  # Maven prints colours to a pipe, too
    messages = [line for line in printed.splitlines() if line.strip()]
    errors = [line for line in messages if "ERROR" in line or "not found" in line or "xception" in line]
    return " ".join((errors or messages or [f"exit code {ended.returncode}"])[0].split())[:300]


def _maven_project(jars: Sequence[LockedJar], into: Path) -> str:
    items = "".join(
        f"<artifactItem><groupId>{escape(jar.group)}</groupId><artifactId>{escape(jar.artifact)}</artifactId>"
        f"<version>{escape(jar.version)}</version></artifactItem>\n"
        for jar in jars
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>kquota</groupId><artifactId>fetch</artifactId><version>1</version>
<packaging>pom</packaging><build><plugins><plugin>
<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>
<configuration><outputDirectory>{escape(str(into))}</outputDirectory><artifactItems>
{items}</artifactItems></configuration></plugin></plugins></build></project>
"""


def _ivy_settings(root: str | None, cache: Path) -> str:
    at = f' root="{escape(root, {chr(34): "&quot;"})}"' if root else ""
    # Looking up sources and javadoc triples the requests.
    return f"""<ivysettings>
<property name="ivy.maven.lookup.sources" value="false"/><property name="ivy.maven.lookup.javadoc" value="false"/>
<settings defaultResolver="repository"/><caches defaultCacheDir="{escape(str(cache))}"/>
<resolvers><ibiblio name="repository" m2compatible="true"{at}/></resolvers></ivysettings>
"""


def _ivy_module(jars: Sequence[LockedJar]) -> str:
    # The lock may have two versions of one module; with manager "all" Ivy keeps the older one, too.
    lines = "".join(
        f'<dependency org="{escape(jar.group)}" name="{escape(jar.artifact)}" rev="{escape(jar.version)}" '
        'transitive="false" conf="default->master(*),runtime(*)"/>\n'
        for jar in jars
    )
    return f"""<ivy-module version="2.0"><info organisation="kquota" module="fetch"/>
<configurations><conf name="default"/></configurations>
<dependencies>{lines}<conflict org=".*" module=".*" matcher="regexp" manager="all"/></dependencies></ivy-module>
"""


Progress = Callable[[str], object]
_AT_ONCE = 14  # what one download may ask for: whoever waits sees that it goes on
_FIRST_PAUSE_SECONDS = 1.0  # registries answer 429 to bursts; each further pause is three times as long


@dataclass(frozen=True)
class FetchReport:
    """What a fetch did: jars copied into the cache now, with the source each came from, and all others."""

    fetched: Mapping[LockedJar, str]
    cached: Sequence[LockedJar]


class JarStore:
    """The locked jars of one machine; by default missing ones come from what the machine has."""

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
        """The jar's path, after its size and sha256 were compared with the lock; else `JarUnfit`."""
        path = self.path_of(jar)
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            message = f"jar '{jar.file_name}' is missing at {path}"
            raise JarUnfit(message, self._remedy(jar)) from error
        expected, got = f"{jar.size_bytes} bytes", f"{size_bytes} bytes"
        if expected == got:
            digest = sha256_of(path)
            if digest == jar.sha256:
                return path
            expected, got = f"sha256 {jar.sha256[:12]}…", f"sha256 {digest[:12]}…"
        message = f"jar at {path} is not the locked file: it has {got}, not {expected}"
        raise JarUnfit(message, self._remedy(jar))

    def missing(self) -> list[LockedJar]:
        """The jars without a file where they belong. Reads no file, so it is quick."""
        return [jar for jar in self.locked if not self.path_of(jar).is_file()]

    def verify(self) -> list[PipelineError]:
        """Every jar that is missing or altered, as the error it would raise; empty when all is well."""
        return [problem for jar in self.locked if (problem := self._problem(jar)) is not None]

    def fetch(self, progress: Progress = lambda _line: None) -> FetchReport:
        """Fetches every missing or altered jar into the cache. Can be repeated, and run by several processes at once.

        `progress` gets a line before each download. `Unreachable` if a jar is in no source (what was fetched stays),
        `JarUnfit` for one that is not fetched: pyspark's own, or one in KQUOTA_JARS_DIR.
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
            tried = failures or ["nothing, because there is neither mvn nor a Java for Ivy"]
            raise jars_unavailable([jar.file_name for jar in wanted], tried)
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
        taken: list[LockedJar] = []
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self._cache) as folder:
            reason = source.copy(wanted, Path(folder))
            for jar in wanted:
                file = Path(folder) / jar.file_name
                if not file.is_file():
                    continue
                digest = sha256_of(file)
                if digest != jar.sha256:
                    reason = f"{jar.file_name} has sha256 {digest[:12]}…, the lock has {jar.sha256[:12]}…"
                    continue
                target = self.path_of(jar)
                target.parent.mkdir(exist_ok=True)
                file.replace(target)  # within one file system, so a reader never sees half a jar
                taken.append(jar)
        return reason, taken

    def _problem(self, jar: LockedJar) -> PipelineError | None:
        try:
            self.check(jar)
        except JarUnfit as error:
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
    """Jars that Spark needs in addition to its own (Kafka source, Delta), each checked against the lock."""
    return [path for jar_set in ("spark", *with_sets) for path in _checked(jar_set)]


def broker_classpath() -> list[Path]:
    """The embedded broker's class path, each jar checked against the lock."""
    return _checked("broker")


def fetch(progress: Progress = lambda _line: None, *with_sets: str) -> FetchReport:
    """Fetches every locked jar that is missing, those of optional sets if they are named; see `JarStore.fetch`."""
    return JarStore(jars_of(*with_sets)).fetch(progress)


def pyspark_jars_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The `jars` folder of the installed pyspark; None without it. Does not import pyspark.

    Under spark-submit pyspark is imported from an archive in SPARK_HOME, and the jars are next to it.
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


log = logging.getLogger(__name__)


def fetch_missing(store: JarStore | None = None) -> None:
    """Fetch every jar that is not there, but none of an optional set; each is checked against the lock's sha256."""
    store = store or JarStore(jars_of())
    missing = store.missing()
    if not missing:
        return
    began = time.monotonic()
    facts = len(missing), sum(jar.size_bytes for jar in missing) / 1e6, path_text(store.folder)
    log.info("%d jars of Spark and the broker, %.0f MB, are not in %s yet: they are fetched once", *facts)
    store.fetch(lambda line: log.info("%s", line))
    log.info("jars %.1f s", time.monotonic() - began)


def _lock_invalid(path: Path, line_number: int, reason: str) -> PipelineError:
    place = f", line {line_number}," if line_number else ""
    fix = "restore the file from the repository, or write it again: python -m deploy.jvm"
    return PipelineError(f"jar lock {path}{place} {reason}", fix)


def jars_unavailable(jars: Sequence[str], attempts: Sequence[str]) -> Unreachable:
    """The error of locked jars that no source could deliver; `attempts` is what was tried, with its outcome."""
    others = f" and {len(jars) - 1} more" if len(jars) > 1 else ""
    return Unreachable(
        f"jar '{jars[0]}'{others} could not be fetched; tried {'; '.join(attempts)}",
        "check the network, proxy, Maven settings.xml and which certificates this Java trusts (KQUOTA_JAVA_HOME "
        "chooses another), or point KQUOTA_JARS_DIR at a folder with the jars",
    )
