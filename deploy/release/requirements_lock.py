"""The lock of the Python packages, and which of them kquota needs when it runs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Final, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ENTRY: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<rest>.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL
)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")

Scope = Literal["required", "optional", "excluded"]
"""CycloneDX's words: of the core, of an extra, or only for building and testing."""


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One entry of the lock.

    Attributes:
        name: As pip normalises it.
        sha256: Of each of the files that pip may take, sorted, lower-case hex.
    """

    name: str
    version: str
    sha256: tuple[str, ...]


def read_requirements(path: Path) -> list[LockedPackage]:
    """All entries, in file order.

    Raises:
        ValueError: An entry has no hash, or there is none.
    """
    entries = _ENTRY.finditer(path.read_text(encoding="utf-8"))
    packages = [
        LockedPackage(canonicalize_name(found["name"]), found["version"], tuple(sorted(_HASH.findall(found["rest"]))))
        for found in entries
    ]
    without = [package.name for package in packages if not package.sha256]
    if without or not packages:
        message = f"'{path}' must hold packages with hashes; got none for {', '.join(without) or 'any package'}"
        raise ValueError(message)
    return packages


def scopes(names: Iterable[str], core: Iterable[str], extras: Iterable[str]) -> Mapping[str, Scope]:
    """What each package is for, by following what the installed packages require on this machine.

    Args:
        names: Of all locked packages.
        core: What kquota itself requires, as in pyproject.toml.
        extras: What its extras require.
    """
    needed, further = _closure(core), _closure(extras)
    return {name: "required" if name in needed else "optional" if name in further else "excluded" for name in names}


def _closure(lines: Iterable[str]) -> set[str]:
    open_, done = [Requirement(line) for line in lines], dict[str, set[str]]()
    while open_:
        wanted = open_.pop()
        name = canonicalize_name(wanted.name)
        if name in done and wanted.extras <= done[name]:
            continue
        done.setdefault(name, set()).update(wanted.extras)
        open_ += _required(name, done[name])
    return set(done)


def _required(name: str, extras: set[str]) -> list[Requirement]:
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return []
    found = [Requirement(line) for line in lines]
    return [
        one
        for one in found
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras})
    ]
