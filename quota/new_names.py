"""Client-ids that a user makes up: beyond `MOST_NEW_NAMES` in an hour they count as one client, `<other>`.

Every client-id takes memory, rows and sensors, and a client chooses its own. So the new names of a user are limited.
The usage of further ones is not lost: it is charged to `<other>`. In a sensor of the user that is the same sensor; at a
level that gives each client-id a sensor of its own, all of them share one.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from quota.arrays import Flags
from quota.entity import DEFAULT
from quota.snapshot import Quota, QuotaSnapshot
from quota.usage import EntityNames, KeyIndex, Seeds, some_of

MOST_NEW_NAMES: Final = 1_000
"""The most client-ids of a user that are new within an hour."""
_HOUR_MS: Final = 3_600_000


class NewNames:
    """The clients that were seen in this hour and the one before, and how many of each user were new. For one thread.

    A new process knows no names: then each user has `MOST_NEW_NAMES` again, beyond those that use the cluster on.
    """

    def __init__(self) -> None:
        self._seeds = Seeds.draw()
        self._seen, self._seen_before = KeyIndex(), KeyIndex()
        self._begun_ms: int | None = None
        self._new_of: dict[str, int] = {}
        self._quotas: tuple[Quota, ...] = ()
        self._with_row: frozenset[tuple[str, str]] = frozenset()

    def too_many(self, clients: pa.Table, quotas: QuotaSnapshot, now_ms: int) -> Flags:
        """Which clients are beyond the limit, in the order of the rows, bool[n].

        Args:
            clients: columns user and client_id; a client may be there more than once.
            quotas: a client with a row of its own is never beyond it, whether the row names its user, the default user,
                or none.
            now_ms: of a clock that is never set back.
        """
        if self._begun_ms is None or now_ms - self._begun_ms >= _HOUR_MS:
            self._seen, self._seen_before, self._begun_ms, self._new_of = KeyIndex(), self._seen, now_ms, {}
        keys = EntityNames(clients, has_brokers=False).hashed(self._seeds).entity_keys()
        found: Flags = self._seen.find(keys) < 0
        rows = np.flatnonzero(found)
        if not len(rows):
            return found
        again = rows[self._seen_before.find(some_of(keys, rows)) >= 0]
        self._seen.add(some_of(keys, again))
        rows = np.setdiff1d(rows, again)
        _, first = np.unique(keys[0][rows], return_index=True)
        names = clients.select(["user", "client_id"]).take(pa.array(rows[np.sort(first)])).to_pylist()
        taken = [row for row, one in zip(rows[np.sort(first)], names, strict=True) if self._takes(**one, quotas=quotas)]
        self._seen.add(some_of(keys, np.array(taken, np.int64)))
        return np.asarray(self._seen.find(keys) < 0, np.bool_)

    def _takes(self, user: str, client_id: str, quotas: QuotaSnapshot) -> bool:
        if self._quotas is not quotas.quotas:
            self._quotas = quotas.quotas
            self._with_row = frozenset((one.user, one.client_id) for one in quotas.quotas if one.client_id)
        if any((part, client_id) in self._with_row for part in (user, DEFAULT, "")):
            return True
        self._new_of[user] = self._new_of.get(user, 0) + 1
        return self._new_of[user] <= MOST_NEW_NAMES
