"""What a job of an earlier release left behind, unpacked: README.md beside this file says how it was made."""

import json
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.upgrade.making import FACTS

RELEASES: Final = ("0.1.0", "0.2.0")


@dataclass(frozen=True)
class Kept:
    """A copy of its own for each test.

    Attributes:
        folder: The broker's data, tables and checkpoint.
        sent: Messages that the old job had read when it was killed: events, and arrays of events.
        unread: Messages that nobody has read.
        records: Records of the throttle topic, in order.
    """

    folder: Path
    sent: list[Any]
    unread: list[Any]
    records: list[dict[str, Any]]

    @property
    def tables(self) -> str:
        """Root of the tables."""
        return str(self.folder / "tables")

    def produced_bytes(self) -> Counter[str]:
        """What was sent in all, by user."""
        messages = [*self.sent, *self.unread]
        events = [event for message in messages for event in (message if isinstance(message, list) else [message])]
        sums: Counter[str] = Counter()
        for event in events:
            sums[event["user"]] += event["produced_bytes"]
        return sums


def unpack(release: str, folder: Path) -> Kept:
    """Unpack a copy of what a release left behind into an empty folder."""
    with tarfile.open(Path(__file__).with_name(f"job-{release}.tar.xz")) as packed:
        packed.extractall(folder, filter="data")
    return Kept(folder, **json.loads((folder / FACTS).read_text("utf-8")))
