"""The licence of a part, as it tells itself: a package in its metadata, a jar in its manifest, pom or licence file."""

import re
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

_CLASSIFIER: Final = "License :: OSI Approved :: "
_LONGEST_NAME: Final = 60
_ABBREVIATIONS: Final = frozenset(
    {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "LGPL-2.1-or-later", "MIT", "MPL-2.0"}
)
# How jars spell them.
_IN_JARS: Final = (
    (re.compile(r"apache.*2\.0|apache.*version 2", re.IGNORECASE | re.DOTALL), "Apache-2.0"),
    (re.compile(r"BSD-2-Clause"), "BSD-2-Clause"),
    (re.compile(r"\bMIT\b|/mit\b|mit-license", re.IGNORECASE), "MIT"),
)
_LICENCE_FILES: Final = ("LICENSE", "META-INF/LICENSE", "META-INF/LICENSE.txt")


def licences_of_package(name: str, version: str) -> list[dict[str, Any]]:
    """CycloneDX's `licenses` of an installed package; empty if this version is not installed or does not tell."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return []
    if installed.version != version:
        return []
    lines = installed.metadata.get_all
    if expressions := lines("License-Expression"):
        return [{"expression": expressions[0]}]
    told = "".join(lines("License") or []).strip()
    classifiers = sorted(line for line in lines("Classifier") or [] if line.startswith(_CLASSIFIER))
    if told in _ABBREVIATIONS or not classifiers:
        return _named(told)
    return _named(classifiers[0].removeprefix(_CLASSIFIER))


def licences_of_jar(path: Path) -> list[dict[str, Any]]:
    """CycloneDX's `licenses` of a jar; empty if the file is not there or does not tell."""
    if not path.is_file():
        return []
    with zipfile.ZipFile(path) as jar:
        told = _of_manifest(jar) or _of_pom(jar) or _of_licence_file(jar)
    found = next((identifier for pattern, identifier in _IN_JARS if pattern.search(told)), told)
    return _named(found)


def _named(text: str) -> list[dict[str, Any]]:
    if not text or "\n" in text or len(text) > _LONGEST_NAME:
        return []
    return [{"license": {"id" if text in _ABBREVIATIONS else "name": text}}]


def _of_manifest(jar: zipfile.ZipFile) -> str:
    text = re.sub(r"\r?\n ", "", _text(jar, "META-INF/MANIFEST.MF"))  # long lines are folded so
    found = re.search(r"^Bundle-License: *(.+?)\r?$", text, re.MULTILINE)
    return found[1] if found else ""


def _of_pom(jar: zipfile.ZipFile) -> str:
    poms = sorted(name for name in jar.namelist() if name.startswith("META-INF/maven/") and name.endswith("/pom.xml"))
    found = re.search(r"<licenses>.*?<name>(.*?)</name>", _text(jar, poms[0]), re.DOTALL) if len(poms) == 1 else None
    return found[1].strip() if found else ""


def _of_licence_file(jar: zipfile.ZipFile) -> str:
    return next((text[:200] for name in _LICENCE_FILES if (text := _text(jar, name).strip())), "")


def _text(jar: zipfile.ZipFile, name: str) -> str:
    return jar.read(name).decode("utf-8", errors="replace") if name in jar.namelist() else ""
