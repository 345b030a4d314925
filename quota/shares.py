"""Dividing the work by users: each part decides for its users as one engine would for all.

No sensor may be divided. Quotas of users, of pairs and of the default user make sensors that belong to one user. A
quota of a client-id alone makes sensors that several users share: with such a row the work can not be divided. A client
without any quota may have a sensor that others share too, but nothing is ever decided by it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from quota.snapshot import Quota


@dataclass(frozen=True, slots=True)
class Share:
    """A share of all users, the same in every process and on every machine.

    Attributes:
        number: Which share, from 0 to `of` − 1.
        of: How many shares there are.
    """

    number: int
    of: int

    def has(self, user: str) -> bool:
        """Whether a user belongs to this share."""
        return crc32(user.encode()) % self.of == self.number


ALL_USERS: Final = Share(0, 1)


def can_be_divided(quotas: Iterable[Quota]) -> bool:
    """Whether every sensor that these quotas bound belongs to one user, on the enforced and on the shadow side."""
    return all(quota.user for quota in quotas)
