"""An object as JSON on standard input: does a CustomResourceDefinition in FOLDER allow it? `against_crd.py FOLDER`.

Ends with 0 if it does, 1 if not (what is wrong is on standard output), 3 if no file of the folder defines its kind. It
is run in the environment of `make deploy-check`. A field that the definition does not have is a mistake here, as in
`kubectl apply` with strict validation.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of Kubernetes as JSON Schema, which refuses fields that it does not name."""
    out = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes")}
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("anyOf", None)
        out["type"] = ["integer", "string"]
    for key in ("properties",):
        out |= {key: {name: strict(part) for name, part in schema[key].items()}} if key in schema else {}
    for key in ("items", "additionalProperties"):
        out |= {key: strict(schema[key])} if isinstance(schema.get(key), dict) else {}
    if "properties" in out and not schema.get("x-kubernetes-preserve-unknown-fields"):
        out.setdefault("additionalProperties", False)
    return out


def schema_of(folder: Path, one: dict[str, Any]) -> dict[str, Any] | None:
    """Of the object's kind and version; None if no file has it."""
    group, _, version = one["apiVersion"].partition("/")
    for path in sorted(folder.glob("*.yaml")):
        for crd in yaml.safe_load_all(path.read_text("utf-8")):
            if crd and (crd["spec"]["group"], crd["spec"]["names"]["kind"]) == (group, one["kind"]):
                versions = {each["name"]: each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"]}
                found: dict[str, Any] = versions[version]
                return found
    return None


def main(folder: Path) -> int:
    """The command line; see above."""
    one = json.load(sys.stdin)
    schema = schema_of(folder, one)
    if schema is None:
        return 3
    top = strict(schema)
    top["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
    mistakes = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(top).iter_errors(one)]
    sys.stdout.write("".join(f"{line}\n" for line in mistakes))
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
