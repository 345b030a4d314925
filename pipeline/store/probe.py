"""Whether a store does what tables need: list, write, read, delete, and refuse to overwrite.

A commit to a table is an object that must not be there yet. On a store that ignores this condition, two writers would
overwrite each other's commits without any message. So the condition is tried, with an object that is deleted again.
"""

from typing import Final
from uuid import uuid4

from pipeline.store.errors import StoreUnfit
from pipeline.store.objects import StoreObjects

_FOLDER: Final = ".kquota-probe"


def refuse_unfit(address: str) -> None:
    """Try everything that tables need of a store.

    Args:
        address: Root of the tables, or of another folder of the store.

    Raises:
        StoreUnfit: Something is refused, or done although it must be refused.
        StoreUnreachable: The store does not answer.
        StoreLibraryMissing: obstore is not installed.
    """
    objects = StoreObjects(address)
    name, content = f"{_FOLDER}/{uuid4().hex}", uuid4().bytes
    objects.names("")
    if not objects.create(name, content):
        raise StoreUnfit(address, "write under", "an object with a name of no other is there already", "try again")
    found = _mistake(objects, name, content)
    objects.delete(name)
    if found is not None:
        raise StoreUnfit(address, *found)


def _mistake(objects: StoreObjects, name: str, content: bytes) -> tuple[str, str, str] | None:
    """What can not be done, why, and what to do about it."""
    if objects.read(name) != content:
        return "read", "what was written is not what is read", "use a store that is consistent after a write"
    if objects.create(name, uuid4().bytes):
        cause = "the store ignores conditional put (If-None-Match): the second write of one object was accepted"
        return "keep commits apart under", cause, "use a store, or a version of it, that has conditional put"
    return None
