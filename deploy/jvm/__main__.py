"""Writes deploy/jvm/jars.lock: fetches the jars that the pom names and records their hashes.

    python -m deploy.jvm

The fetched jars are trusted without a check, so review the changes of the lock before you commit them.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from pipeline.jvm.jars import LockedJar, download, jars_unavailable, sha256_of

HEADER = "# Jars in addition to those of pyspark. Written by `python -m deploy.jvm` from deploy/jvm/pom.xml.\n"
_FIELDS = "# set, group:artifact:version, sha256\n"
_NAMESPACE = "{http://maven.apache.org/POM/4.0.0}"


def jars_of_pom(pom: Path) -> dict[LockedJar, str]:
    """The jars of each profile (a set), without a hash, and the comment inside each dependency as its note."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))  # noqa: S314 - our own file
    root = ElementTree.parse(pom, parser).getroot()  # noqa: S314
    return dict(found for profile in root.iter(f"{_NAMESPACE}profile") for found in _jars_of_profile(profile))


def format_lock(jars: Sequence[LockedJar], header: str = HEADER, notes: Mapping[str, str] | None = None) -> str:
    """The text of a lock file, set by set, with notes by coordinates; `read_lock` of it gives the same jars."""
    blocks = [header + _FIELDS]
    for jar_set in dict.fromkeys(jar.jar_set for jar in jars):
        lines = []
        for jar in jars:
            if jar.jar_set == jar_set:
                note = (notes or {}).get(jar.coordinates)
                lines += [f"# {note}"] if note else []
                lines.append(f"{jar_set} {jar.coordinates} {jar.sha256}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def write_lock(pom: Path, lock: Path, header: str = HEADER) -> None:
    """Fetch everything `pom` names and write `lock`; raises `Unreachable`."""
    notes = jars_of_pom(pom)
    with tempfile.TemporaryDirectory(prefix="kquota-lock-") as folder:
        reason = download(list(notes), Path(folder))
        places = {jar: Path(folder) / jar.file_name for jar in notes}
        if absent := [jar.file_name for jar, path in places.items() if not path.exists()]:
            raise jars_unavailable(absent, reason)
        locked = [replace(jar, sha256=sha256_of(path)) for jar, path in places.items()]
    text = format_lock(locked, header, {jar.coordinates: note for jar, note in notes.items()})
    lock.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(locked)} jars locked\n")


def _jars_of_profile(profile: ElementTree.Element) -> Iterator[tuple[LockedJar, str]]:
    for dependency in profile.iter(f"{_NAMESPACE}dependency"):
        comments = [child.text or "" for child in dependency if callable(child.tag)]  # a comment's tag is a function
        jar = LockedJar(
            jar_set=profile.findtext(f"{_NAMESPACE}id", ""),
            group=dependency.findtext(f"{_NAMESPACE}groupId", ""),
            artifact=dependency.findtext(f"{_NAMESPACE}artifactId", ""),
            version=dependency.findtext(f"{_NAMESPACE}version", ""),
            sha256="",
        )
        yield jar, " ".join(" ".join(comments).split())


if __name__ == "__main__":
    here = Path(__file__).parent
    write_lock(here / "pom.xml", here / "jars.lock")
