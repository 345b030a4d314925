"""The sources of jars, nearest first. Each copies the jars it has into a folder and reports what went wrong.

Downloads go through the ordinary clients, Maven or the Ivy inside pyspark, so that mirrors, proxies and
credentials of the site are honoured; no address is written here. No source is trusted: `pipeline.jvm.jars`
checks every file against the lock.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from xml.sax.saxutils import escape

from pipeline.jvm.errors import JavaNotFound
from pipeline.jvm.jar_lock import LockedJar
from pipeline.jvm.java import find_java

_DOWNLOAD_TIMEOUT_SECONDS = 600


class JarSource(Protocol):
    """A place jars may come from."""

    name: str
    attempts: int
    """How often to try: more than once if it uses the network."""

    def copy(self, jars: Sequence[LockedJar], into: Path) -> str:
        """Copies the jars it has to `into/<file_name>`. Returns why some are missing, "" if none is."""
        ...


@dataclass
class LocalMavenRepository:
    """The user's Maven repository, read only: jars that earlier builds have fetched."""

    folder: Path
    name: str = "local Maven repository"
    attempts: int = 1

    def copy(self, jars: Sequence[LockedJar], into: Path) -> str:
        """See `JarSource`."""
        for jar in jars:
            path = self.folder.joinpath(*jar.group.split("."), jar.artifact, jar.version, jar.file_name)
            if path.is_file() and path.stat().st_size == jar.size_bytes:
                shutil.copyfile(path, into / jar.file_name)
        return "not there" if any(not (into / jar.file_name).exists() for jar in jars) else ""


@dataclass
class Maven:
    """`mvn` with a generated project: every jar named, two versions of one jar allowed, nothing transitive."""

    executable: str
    environ: Mapping[str, str]
    name: str = "mvn"
    attempts: int = 3

    def copy(self, jars: Sequence[LockedJar], into: Path) -> str:
        """See `JarSource`."""
        pom = into / "pom.xml"
        pom.write_text(_maven_project(jars, into), encoding="utf-8")
        # -U: without it Maven remembers a failed look-up for a day, and a retry would do nothing.
        return _run([self.executable, "-B", "-q", "-U", "-f", str(pom), "dependency:copy"], into, self.environ)


@dataclass
class Ivy:
    """Ivy's command line inside pyspark: no Maven needed. DEFAULT_ARTIFACT_REPOSITORY is honoured, as Spark does."""

    java: Path
    ivy_jar: Path
    environ: Mapping[str, str]
    name: str = "ivy"
    attempts: int = 3

    def copy(self, jars: Sequence[LockedJar], into: Path) -> str:
        """See `JarSource`."""
        root = self.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
        (into / "settings.xml").write_text(_ivy_settings(root, into / "ivy-cache"), encoding="utf-8")
        (into / "ivy.xml").write_text(_ivy_module(jars), encoding="utf-8")
        command = [str(self.java), "-jar", str(self.ivy_jar), "-settings", str(into / "settings.xml")]
        command += ["-ivy", str(into / "ivy.xml"), "-warn", "-confs", "default"]
        # Some jars are published as OSGi bundles and are silently left out unless that type is asked for.
        command += ["-types", "jar", "bundle", "-retrieve", str(into / "[artifact]-[revision].[ext]")]
        return _run(command, into, self.environ)


def machine_sources(pyspark_jars: Path | None, environ: Mapping[str, str] = os.environ) -> list[JarSource]:
    """What this machine has, nearest first: its Maven repository, `mvn` if on PATH, Ivy given pyspark and a Java."""
    found: list[JarSource] = []
    repository = _local_repository(environ)
    if repository.is_dir():
        found.append(LocalMavenRepository(repository))
    mvn = shutil.which("mvn", path=environ.get("PATH", ""))
    if mvn:
        found.append(Maven(mvn, environ))
    ivy_jars = sorted(pyspark_jars.glob("ivy-*.jar")) if pyspark_jars else []
    if ivy_jars:
        with contextlib.suppress(JavaNotFound):
            found.append(Ivy(find_java(environ).executable, ivy_jars[-1], environ))
    return found


def _local_repository(environ: Mapping[str, str]) -> Path:
    for option in environ.get("MAVEN_OPTS", "").split() + environ.get("MAVEN_ARGS", "").split():
        if option.startswith("-Dmaven.repo.local="):
            return Path(option.partition("=")[2])
    return Path(environ.get("HOME") or Path.home()) / ".m2" / "repository"


def _run(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Runs a client. Returns its error message in one line, "" if it succeeded."""
    try:
        ended = subprocess.run(  # noqa: S603 - mvn or java, found by us
            command,
            cwd=folder,
            env=dict(environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DOWNLOAD_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if ended.returncode == 0:
        return ""
    messages = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
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
