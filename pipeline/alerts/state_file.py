"""What must survive a restart: which alerts go on since when, and which messages have not arrived.

It is written before a message is handed to a receiver. A process that dies therefore sends a message again that had
arrived, with the same `fingerprint` and `startsAt`; and it loses none.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Self

from pipeline.alerts.decision import Book, Watched
from pipeline.alerts.facts import Key
from pipeline.alerts.payload import Message
from pipeline.settings.model import Settings

log = logging.getLogger(__name__)

_VERSION: Final = 1
_NAMES: Final = tuple(each.name for each in fields(Watched))


@dataclass(frozen=True, slots=True)
class AlertsState:
    """What is kept.

    Attributes:
        book: See `decide`.
        undelivered: By receiver, oldest first.
    """

    book: Book = field(default_factory=dict)
    undelivered: Mapping[str, Sequence[Message]] = field(default_factory=dict)

    def text(self) -> str:
        """As JSON."""
        # Not by `asdict`, which copies every label of 10^5 alerts.
        watched = [{"key": key, **{name: getattr(one, name) for name in _NAMES}} for key, one in self.book.items()]
        return json.dumps({"version": _VERSION, "watched": watched, "undelivered": self.undelivered})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `text` wrote.

        Raises:
            ValueError, KeyError, TypeError: It is something else.
        """
        document = json.loads(text)
        if document["version"] != _VERSION:
            msg = f"'version' must be {_VERSION}; got {document['version']}"
            raise ValueError(msg)
        book: dict[Key, Watched] = {}
        for row in document["watched"]:
            key: Any = tuple(row.pop("key"))
            book[key] = Watched(**row)
        return cls(book, document["undelivered"])


def state_path(settings: Settings) -> Path:
    """Where the state of a job's alerts is kept."""
    return settings.alerts.state_file or settings.run_dir / f"{settings.job}.alerts.json"


def read_state(path: Path) -> AlertsState:
    """The state, or an empty one if there is none.

    A file that can not be understood is set aside as `<name>.damaged`, and said so: what goes on is then told anew.

    Raises:
        OSError: It is there and can not be read.
    """
    try:
        return AlertsState.from_text(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return AlertsState()
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        log.warning("%s is not the state of alerts (%s): it is now %s, and all that goes on is told anew",
                    path, exc, aside)  # fmt: skip
        return AlertsState()


def write_state(path: Path, state: AlertsState) -> None:
    """Replace the file in one step: after a crash it holds the old state or the new one.

    Raises:
        OSError: It can not be written.
    """
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(state.text())
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
