"""The jars of brokers of other Kafka releases: `kafka_jars("3.9")`; logging is that of pyspark.

    python -m tests.compatibility.kafka_jars

writes jars.lock anew: Maven resolves each release. The fetched jars are trusted without a check, so review the lock's
changes before you commit them.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pipeline.jvm.jars import JarStore, LockedJar, pyspark_jars_folder, read_lock, sha256_of

RELEASES: Final = {"3.7": "3.7.2", "3.9": "3.9.2", "4.0": "4.0.1"}
"""Older than the locked broker of the project, by major and minor."""
NEWEST_JAVA: Final = {"3.7": 21, "3.9": 21}
"""On which a release runs; later ones run on all Javas that kquota runs on."""

_LOCK: Final = Path(__file__).with_name("jars.lock")
_HEADER: Final = "# Brokers of other Kafka releases. Written by `python -m tests.compatibility.kafka_jars`.\n\n"
_LOGGING: Final = ("log4j-1.2-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "slf4j-api")
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>kquota</groupId><artifactId>broker</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{}</version></dependency></dependencies>
</project>"""


def kafka_jars(release: str) -> tuple[Path, ...]:
    """The class path of a broker, fetched and checked.

    * `release`: one of `RELEASES`.
    """
    store = JarStore([jar for jar in read_lock(_LOCK) if jar.jar_set == f"kafka-{release}"])
    store.fetch()
    return tuple(store.path_of(jar) for jar in store.locked)


def _resolved(jar_set: str, version: str, folder: Path) -> Iterator[LockedJar]:
    (folder / "pom.xml").write_text(_POM.format(version), encoding="utf-8")
    listed, jars = folder / "listed", folder / "jars"
    goals = ["dependency:list", f"-DoutputFile={listed}", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    subprocess.run(["mvn", "-q", "-B", *goals, "-DincludeScope=runtime"], cwd=folder, check=True)  # noqa: S607
    for line in sorted(listed.read_text("utf-8").splitlines()):
        group, _, rest = line.strip().partition(":")
        if rest and not rest.startswith("slf4j-api:"):
            artifact, _jar, resolved = rest.split(":")[:3]
            path = jars / f"{artifact}-{resolved}.jar"
            yield LockedJar(jar_set, group, artifact, resolved, sha256_of(path))


def main() -> None:
    """Write the lock."""
    pyspark_jars = pyspark_jars_folder()
    assert pyspark_jars is not None
    jars: list[LockedJar] = []
    for release, version in RELEASES.items():
        jar_set = f"kafka-{release}"
        with tempfile.TemporaryDirectory() as folder:
            jars += _resolved(jar_set, version, Path(folder))
        for artifact in _LOGGING:
            (path,) = pyspark_jars.glob(f"{artifact}-[0-9]*.jar")
            group = "org.slf4j" if artifact == "slf4j-api" else "org.apache.logging.log4j"
            found = path.stem.removeprefix(f"{artifact}-")
            jars.append(LockedJar(jar_set, group, artifact, found, sha256_of(path)))
    lines = (f"{jar.jar_set} {jar.group}:{jar.artifact}:{jar.version} {jar.sha256}\n" for jar in jars)
    _LOCK.write_text("".join([_HEADER, *lines]), encoding="utf-8")
    sys.stdout.write(f"{len(jars)} jars locked\n")


if __name__ == "__main__":
    main()
