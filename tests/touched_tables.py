"""What others do to tables of kquota, as Spark SQL leaves it in the log: more columns, table features, properties."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable, Field
from deltalake.schema import ArrayType, PrimitiveType, StructType

COLUMNS: Final = (
    Field("team", PrimitiveType("string")),
    Field("seen", PrimitiveType("timestamp")),
    Field("contact", StructType([Field("mail", ArrayType(PrimitiveType("string"), contains_null=True))])),
)
"""One of each kind that is read in its own way."""


def add_columns(uri: str) -> None:
    """`ALTER TABLE … ADD COLUMNS`."""
    DeltaTable(uri).alter.add_columns(list(COLUMNS))


_READERS_TOO: Final = (
    *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint"),
    *("vacuumProtocolCheck", "variantType", "variantType-preview"),
)


def add_to_log(uri: str, features: Iterable[str] = (), properties: Mapping[str, str] | None = None) -> int:
    """Commit table features and properties; returns the version. delta-rs itself cannot."""
    log = Path(uri, "_delta_log")
    commits = sorted(log.glob("*.json"))
    actions: list[dict[str, Any]] = [json.loads(line) for path in commits for line in path.read_text().splitlines()]
    metadata = [action for action in actions if "metaData" in action][-1]
    metadata["metaData"]["configuration"] |= properties or {}
    info = {"timestamp": 1, "operation": "CLUSTER BY", "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}
    added: list[dict[str, Any]] = [{"commitInfo": info}, metadata]
    if features:
        writers = ["appendOnly", "invariants", "checkConstraints", *features]
        readers = [one for one in features if one in _READERS_TOO]
        for_readers = {"minReaderVersion": 3, "readerFeatures": readers} if readers else {"minReaderVersion": 1}
        added.append({"protocol": {"minWriterVersion": 7, "writerFeatures": writers} | for_readers})
    (log / f"{len(commits):020}.json").write_text("".join(f"{json.dumps(action)}\n" for action in added))
    return len(commits)
