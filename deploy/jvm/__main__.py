"""Writes deploy/jvm/jars.lock: fetches the jars that the pom names and records their sizes and hashes.

    python -m deploy.jvm

The fetched jars are trusted without a check, so review the changes of the lock before you commit them.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from pipeline.jvm.jars import SETS, LockedJar, jars_unavailable, machine_sources, pyspark_jars_folder, sha256_of

HEADER = "# Jars in addition to those of pyspark. Written by `python -m deploy.jvm` from deploy/jvm/pom.xml.\n"
_FIELDS = "# set, group:artifact:version, origin (pyspark: taken from pyspark's own jars/ folder), bytes, sha256\n"
_NAMESPACE = "{http://maven.apache.org/POM/4.0.0}"


def jars_of_pom(pom: Path, sets: Sequence[str] = SETS) -> list[LockedJar]:
    """The jars of each profile (a set), with size 0 and no hash. A comment inside a dependency becomes its note."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))  # noqa: S314 - our own file
    root = ElementTree.parse(pom, parser).getroot()  # noqa: S314
    return [jar for profile in root.iter(f"{_NAMESPACE}profile") for jar in _jars_of_profile(profile, sets)]


def format_lock(jars: Sequence[LockedJar], sets: Sequence[str] = SETS, header: str = HEADER) -> str:
    """The text of a lock file, set by set; `read_lock` of it with the same `sets` gives the same jars."""
    blocks = [header + _FIELDS]
    for jar_set in sets:
        lines = []
        for jar in jars:
            if jar.jar_set == jar_set:
                lines += [f"# {jar.note}"] if jar.note else []
                lines.append(f"{jar_set} {jar.coordinates} {jar.origin} {jar.size_bytes} {jar.sha256}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def write_lock(pom: Path, lock: Path, sets: Sequence[str] = SETS, header: str = HEADER) -> None:
    """Fetch everything `pom` names and write `lock`; raises `Unreachable`.

    Not from a local repository: a jar that somebody built or patched there would be locked.
    """
    pyspark_jars = pyspark_jars_folder() or Path("pyspark", "jars")
    sources = [source for source in machine_sources(pyspark_jars) if source.attempts > 1]
    named = jars_of_pom(pom, sets)
    with tempfile.TemporaryDirectory(prefix="kquota-lock-") as folder:
        into = Path(folder)
        attempts: list[str] = []
        for source in sources:
            wanted = [jar for jar in named if jar.origin == "maven" and not (into / jar.file_name).exists()]
            if wanted:
                attempts.append(f"{source.name}: {source.copy(wanted, into)}")
        places = {jar: (pyspark_jars if jar.origin == "pyspark" else into) / jar.file_name for jar in named}
        absent = [jar.file_name for jar, path in places.items() if not path.exists()]
        if absent:
            raise jars_unavailable(absent, attempts)
        locked = [replace(jar, size_bytes=path.stat().st_size, sha256=sha256_of(path)) for jar, path in places.items()]
    lock.write_text(format_lock(locked, sets, header), encoding="utf-8")
    sys.stdout.write(f"{len(locked)} jars locked\n")


def _jars_of_profile(profile: ElementTree.Element, sets: Sequence[str]) -> Iterator[LockedJar]:
    jar_set = profile.findtext(f"{_NAMESPACE}id", "")
    if jar_set not in sets:
        msg = f"profile id '{jar_set}' is none of {', '.join(sets)}"
        raise ValueError(msg)
    for dependency in profile.iter(f"{_NAMESPACE}dependency"):
        comments = [child.text or "" for child in dependency if callable(child.tag)]  # a comment's tag is a function
        provided = dependency.findtext(f"{_NAMESPACE}scope") == "provided"
        yield LockedJar(
            jar_set,
            group=dependency.findtext(f"{_NAMESPACE}groupId", ""),
            artifact=dependency.findtext(f"{_NAMESPACE}artifactId", ""),
            version=dependency.findtext(f"{_NAMESPACE}version", ""),
            origin="pyspark" if provided else "maven",
            size_bytes=0,
            sha256="",
            note=" ".join(" ".join(comments).split()),
        )


if __name__ == "__main__":
    here = Path(__file__).parent
    write_lock(here / "pom.xml", here / "jars.lock")
