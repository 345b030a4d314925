"""Writes the list of all parts of a release beside its wheel.

    python -m deploy.sbom FOLDER

Licences are read from the packages of this environment and the jars of this machine; a part that is not there is listed
without one.
"""

import json
import sys
from pathlib import Path

from deploy.sbom.bom import bill_of_materials


def main(folder: Path) -> None:
    """Write `kafka-quota-pipeline-VERSION.cdx.json` into a folder, made if it is missing; print what it holds."""
    text = bill_of_materials()
    document = json.loads(text)
    own, parts = document["metadata"]["component"], document["components"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{own['name']}-{own['version']}.cdx.json"
    path.write_text(text, encoding="utf-8")
    told = sum("licenses" in part for part in parts)
    sys.stdout.write(f"{path}: {len(parts)} parts, {told} with a licence\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
