"""What the generator has sent is on the topic, and holds what the generator meant it to hold."""

import hashlib
from collections.abc import Mapping, Sequence

from tests.faults.evidence import Message, Row
from tests.faults.usage_reading import read
from tests.faults.verdict import Verdict

_ANY_WINDOW_MS = 1_000


def check_ledger(messages: Sequence[Message], ledger: Mapping[str, Row], verdict: Verdict) -> None:
    """Compare the usage topic with the ledgers.

    Args:
        messages: Of the topic.
        ledger: A line for each message that was sent, by its key.
        verdict: Takes what is found.
    """
    by_key = {_key(message): message for message in messages}
    acknowledged = [key for key, line in ledger.items() if line["acknowledged"]]
    # A message whose acknowledgement never came may be there or not.
    found = [key for key in map(_key, messages) if key not in ledger or ledger[key]["acknowledged"]]
    verdict.once_each("ledger", acknowledged, found)
    for key, line in ledger.items():
        if key in by_key:
            message = by_key[key]
            wanted = {name: line[name] for name in ("good", "dead", "ignored", "sha256")}
            verdict.same_values("ledger", f"message {key}", wanted, _held_by(message))


def _held_by(message: Message) -> Row:
    reading = read([message], _ANY_WINDOW_MS)
    return {
        "good": reading.good_count,
        "dead": len(reading.dead),
        "ignored": reading.ignored_count,
        "sha256": hashlib.sha256(message.value or b"").hexdigest(),
    }


def _key(message: Message) -> str:
    return (message.key or b"").decode()
