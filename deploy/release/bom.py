"""The list as CycloneDX 1.6 in JSON. The same locks and the same installed packages give the same bytes.

Written by hand, because the document is one dictionary. A test judges it by the published schema.
"""

import json
import tomllib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from deploy.release.licences import licences_of_jar, licences_of_package
from deploy.release.requirements_lock import LockedPackage, Scope, read_requirements, scopes
from pipeline.jvm.jars import JarStore, LockedJar, read_lock

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = "deploy/requirements.lock"
IMAGE_LOCK: Final = "deploy/image/requirements.lock"
_NAMESPACE: Final = uuid.UUID("6a1a4f0c-2f3b-5a0e-9d55-0f3c5f1f8f10")


def bill_of_materials(root: Path = ROOT, lock: str = LOCK) -> str:
    """The text of the document: kquota, every package of the one lock and every jar of the other.

    Args:
        root: A checkout.
        lock: Of the packages, below `root`.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = project["name"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines if not line.startswith(own)]
    packages = read_requirements(root / lock)
    scope_of = scopes([package.name for package in packages], project["dependencies"], extras)
    locked = read_lock(root / "deploy" / "jvm" / "jars.lock")
    path_of = JarStore(locked, sources=()).path_of
    parts = [_package(package, scope_of[package.name]) for package in packages] + [_jar(jar, path_of) for jar in locked]
    parts.sort(key=lambda part: str(part["bom-ref"]))
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _kquota(project)},
        "components": parts,
    }
    # No time of writing: the number stands for the content.
    serial = uuid.uuid5(_NAMESPACE, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": f"urn:uuid:{serial}"}, indent=1, sort_keys=True) + "\n"


def _kquota(project: dict[str, Any]) -> dict[str, Any]:
    purl = f"pkg:pypi/{project['name']}@{project['version']}"
    named = {name: project[name] for name in ("name", "version", "description")}
    return {**_component("application", purl), **named, "licenses": [{"expression": project["license"]}]}


def _component(kind: str, purl: str) -> dict[str, Any]:
    return {"type": kind, "bom-ref": purl, "purl": purl}


def _package(package: LockedPackage, scope: Scope) -> dict[str, Any]:
    purl = f"pkg:pypi/{package.name}@{quote(package.version)}"
    part = {
        **_component("library", purl),
        "name": package.name,
        "version": package.version,
        "scope": scope,
        # One file of several is installed, which one depends on the machine: so these are no hashes of the part.
        "externalReferences": [
            {
                "type": "distribution",
                "url": purl,
                "comment": "any one of the files with these hashes",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.sha256],
            }
        ],
    }
    return part | _told(licences_of_package(package.name, package.version))


def _jar(jar: LockedJar, path_of: Callable[[LockedJar], Path]) -> dict[str, Any]:
    purl = f"pkg:maven/{jar.group}/{jar.artifact}@{quote(jar.version)}?type=jar"
    part = {
        **_component("library", purl),
        "group": jar.group,
        "name": jar.artifact,
        "version": jar.version,
        # Spark's are for the job; the broker is the demo's. The compiler has made a part and runs nowhere.
        "scope": "excluded" if jar.jar_set == "compiler" else "optional",
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
        "properties": [
            {"name": "kquota:set", "value": jar.jar_set},
            {"name": "kquota:origin", "value": jar.origin},
        ],
    }
    return part | _told(licences_of_jar(path_of(jar)))


def _told(licences: list[dict[str, Any]]) -> dict[str, Any]:
    return {"licenses": licences} if licences else {}
