"""The locked jars on this machine: fetched once, checked at every start.

Fetched files are in a cache, `<cache>/jars/<sha256>/<name>.jar`, that all checkouts share. KQUOTA_JARS_DIR names a
plain folder of jars instead (for a site without network, or an image that contains the jars); then nothing is fetched
and no other folder is used. `python -m deploy.jvm` adds a hash to a new line of the lock.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from filelock import FileLock

from pipeline.command_line import command_text, extra_text
from pipeline.errors import PipelineError, Unreachable
from pipeline.jvm.java import cache_folder, find_java

OPTIONAL_SETS: Final = ("s3", "compiler")
"""Sets that are fetched only when they are asked for."""

# A checkout has the lock under deploy/; a wheel carries it next to this module.
_CHECKOUT_LOCK = Path(__file__).resolve().parents[2] / "deploy" / "jvm" / "jars.lock"
_PACKAGED_LOCK = Path(__file__).with_name("jars.lock")
_LINE: Final = re.compile(r"(\w\S*) ([^\s:]+):([^\s:]+):([^\s:]+) ([0-9a-f]{64})")


class JarUnfit(PipelineError):
    """A locked jar is missing, or is not the file that was locked."""


@dataclass(frozen=True)
class LockedJar:
    """One line of the lock: `set group:artifact:version sha256`. Lines that start with `#` are notes.

    The lock has no addresses: Maven's settings on the machine say where jars come from.

    Attributes:
        jar_set: "spark" (in addition to pyspark's jars), "broker" (class path of the embedded broker), "s3" (on top of
            "spark", where Spark itself reads or writes a store that speaks S3), "compiler" (of Java; a checkout makes
            the reporter's jar with it).
    """

    jar_set: str
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file name Maven gives it."""
        return f"{self.artifact}-{self.version}.jar"


def lock_path() -> Path:
    """The lock file of this installation."""
    return _CHECKOUT_LOCK if _CHECKOUT_LOCK.exists() else _PACKAGED_LOCK


def read_lock(path: Path | None = None) -> list[LockedJar]:
    """All locked jars, in file order; None = those of this installation's lock."""
    path = path or lock_path()
    fix = "restore the file from the repository; python -m deploy.jvm adds the hash of a new line"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        msg = f"jar lock {path} cannot be read ({error.strerror})"
        raise PipelineError(msg, fix) from error
    jars = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            msg = f"jar lock {path}, line {number}, is not `set group:artifact:version sha256`"
            raise PipelineError(msg, fix)
        jars.append(LockedJar(*found.groups()))
    return jars


def jars_of(*with_sets: str) -> list[LockedJar]:
    """The locked jars that every machine needs, and those of the optional sets that are named."""
    return [jar for jar in read_lock() if jar.jar_set not in OPTIONAL_SETS or jar.jar_set in with_sets]


def sha256_of(path: Path) -> str:
    """Lower-case hex sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_DOWNLOAD_TIMEOUT_SECONDS: Final = 600


def download(jars: Sequence[LockedJar], into: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Copy jars to `into/<file_name>`, by `mvn` if it is on PATH, else by the Ivy inside pyspark.

    These are ordinary clients, so that mirrors, proxies and credentials of the site are honoured. What they bring is
    not trusted: it is compared with the lock.

    Returns:
        Why that failed, in one line; "" if it did not.

    Raises:
        PipelineError: there is neither `mvn` nor a Java and pyspark for Ivy.
    """
    if mvn := shutil.which("mvn", path=environ.get("PATH", "")):
        (into / "pom.xml").write_text(_maven_project(jars, into), encoding="utf-8")
        # -U: without it Maven remembers a failed look-up for a day, and a retry would do nothing.
        command = [mvn, "-B", "-q", "-U", "-f", str(into / "pom.xml"), "dependency:copy"]
    else:
        ivy_jars = sorted(folder.glob("ivy-*.jar")) if (folder := pyspark_jars_folder(environ)) else []
        if not ivy_jars:
            message = "there is neither mvn nor pyspark, which has an Ivy, to fetch jars with"
            raise PipelineError(message, extra_text("job"))
        root = environ.get("DEFAULT_ARTIFACT_REPOSITORY")  # as for Spark's own downloads
        (into / "settings.xml").write_text(_ivy_settings(root, into / "ivy-cache"), encoding="utf-8")
        (into / "ivy.xml").write_text(_ivy_module(jars), encoding="utf-8")
        command = [str(find_java(environ).executable), "-jar", str(ivy_jars[-1])]
        command += ["-settings", str(into / "settings.xml"), "-ivy", str(into / "ivy.xml"), "-warn"]
        # Some jars are published as OSGi bundles and are silently left out unless that type is asked for.
        command += ["-confs", "default", "-types", "jar", "bundle"]
        command += ["-retrieve", str(into / "[artifact]-[revision].[ext]")]
    return _run(command, into, environ)


def _run(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    try:
        ended = subprocess.run(  # noqa: S603 - mvn or java, found by us
            command,
            cwd=folder,
            env=environ,
            check=False,
            timeout=_DOWNLOAD_TIMEOUT_SECONDS,
            capture_output=True,
            text=True,
            errors="replace",
        )
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
    # Looking up sources and javadoc triples the requests.
    return f"""<ivysettings>
<property name="ivy.maven.lookup.sources" value="false"/><property name="ivy.maven.lookup.javadoc" value="false"/>
<settings defaultResolver="repository"/><caches defaultCacheDir={quoteattr(str(cache))}/>
<resolvers><ibiblio name="repository" m2compatible="true"{f" root={quoteattr(root)}" if root else ""}/></resolvers>
</ivysettings>
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


_PAUSES_SECONDS: Final = (0, 1, 3)  # before each try of a fetch: registries answer 429 to bursts


class JarStore:
    """Some locked jars of one machine."""

    def __init__(self, locked: Sequence[LockedJar], environ: Mapping[str, str] = os.environ) -> None:
        self.locked = tuple(locked)
        self._environ = environ
        self._cache = cache_folder(environ) / "jars"
        self._folder = Path(environ["KQUOTA_JARS_DIR"]).expanduser() if environ.get("KQUOTA_JARS_DIR") else None

    def path_of(self, jar: LockedJar) -> Path:
        """Where the jar belongs; it may not be there."""
        if self._folder is not None:
            return self._folder / jar.file_name
        return self._cache / jar.sha256 / jar.file_name

    def check(self, jar: LockedJar) -> Path:
        """The jar's path, after its sha256 was compared with the lock; else `JarUnfit`."""
        path = self.path_of(jar)
        if not path.is_file():
            message = f"jar '{jar.file_name}' is missing at {path}"
            raise JarUnfit(message, self._remedy(jar))
        if (digest := sha256_of(path)) != jar.sha256:
            message = f"jar at {path} has sha256 {digest[:12]}…, not the locked {jar.sha256[:12]}…"
            raise JarUnfit(message, self._remedy(jar))
        return path

    def verify(self) -> dict[LockedJar, JarUnfit]:
        """Every jar that is missing or altered, with the error it would raise; empty when all is well."""
        problems = {}
        for jar in self.locked:
            try:
                self.check(jar)
            except JarUnfit as error:
                problems[jar] = error
        return problems

    def fetch(self, progress: Callable[[str], object] = lambda _line: None) -> int:
        """Fetch every missing or altered jar into the cache, and return how many that were.

        Can be repeated, and run by several processes at once. `progress` gets a line before each try.

        Raises:
            Unreachable: a jar could not be fetched; what was fetched stays.
            JarUnfit: of a jar in KQUOTA_JARS_DIR, where nothing is fetched to.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        with FileLock(self._cache / ".lock", timeout=900):
            missing = self.verify()
            if missing and self._folder is not None:
                raise next(iter(missing.values()))
            wanted = list(missing)
            for pause_seconds in _PAUSES_SECONDS:
                if not wanted:
                    return len(missing)
                sleep(pause_seconds)
                progress(f"{len(wanted)} jars are not in {self._cache} yet: they are fetched once")
                reason = self._take(wanted)
                wanted = [jar for jar in wanted if not self.path_of(jar).is_file()]
        if wanted:
            raise jars_unavailable([jar.file_name for jar in wanted], reason)
        return len(missing)

    def _take(self, wanted: Sequence[LockedJar]) -> str:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self._cache) as folder:
            for jar in wanted:
                self.path_of(jar).unlink(missing_ok=True)
            reason = download(wanted, Path(folder), self._environ)
            for jar in wanted:
                file, target = Path(folder) / jar.file_name, self.path_of(jar)
                if not file.is_file():
                    reason = reason or f"{jar.file_name} did not come"
                elif (digest := sha256_of(file)) != jar.sha256:
                    reason = f"{jar.file_name} has sha256 {digest[:12]}…, the lock has {jar.sha256[:12]}…"
                else:
                    target.parent.mkdir(exist_ok=True)
                    file.replace(target)  # within one file system, so a reader never sees half a jar
        return reason

    def _remedy(self, jar: LockedJar) -> str:
        if self._folder is not None:
            return f"put the locked file into {self._folder}, or unset KQUOTA_JARS_DIR"
        of_its_set = ("--with", jar.jar_set) if jar.jar_set in OPTIONAL_SETS else ()
        return command_text("jars", "fetch", *of_its_set, about="program")


def jars_unavailable(file_names: Sequence[str], reason: str) -> Unreachable:
    """The error of locked jars that could not be fetched, with the last reason."""
    others = f" and {len(file_names) - 1} more" if len(file_names) > 1 else ""
    return Unreachable(
        f"jar '{file_names[0]}'{others} could not be fetched: {reason}",
        "check the network, proxy, Maven settings.xml and which certificates this Java trusts (KQUOTA_JAVA_HOME "
        "chooses another), or point KQUOTA_JARS_DIR at a folder with the jars",
    )


def spark_jars(*with_sets: str) -> list[Path]:
    """Jars that Spark needs in addition to its own (Kafka source, Delta), each checked against the lock."""
    return _checked("spark", *with_sets)


def broker_classpath() -> list[Path]:
    """The embedded broker's class path, each jar checked against the lock."""
    return _checked("broker")


def _checked(*jar_sets: str) -> list[Path]:
    locked = [jar for jar_set in jar_sets for jar in read_lock() if jar.jar_set == jar_set]
    store = JarStore(locked)
    return [store.check(jar) for jar in locked]


def fetch(progress: Callable[[str], object] = lambda _line: None, *with_sets: str) -> int:
    """Fetch every locked jar that is missing, those of optional sets if they are named; see `JarStore.fetch`."""
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
