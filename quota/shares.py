"""Dividing the work by users: each part decides for its users as one engine would for all.

No sensor may be divided. Quotas of users, of pairs and of the default user make sensors that belong to one user. A
quota of a client-id alone makes sensors that several users share: with such a row the work can not be divided. A client
without any quota may have a sensor that others share too, but nothing is ever decided by it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from quota.entity import label
from quota.snapshot import Quota

LARGEST_COUNT: Final = 64
"""The largest number of shares."""


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


def share_of(text: str) -> Share:
    """The share that a text names: `0/2` is the first of two.

    Raises:
        ValueError: it names none; the message says what it must be.
    """
    number, slash, of = text.partition("/")
    # Not isdecimal: other alphabets have digits, too.
    is_a_share = slash and all(part.isascii() and part.isdecimal() for part in (number, of)) and int(number) < int(of)
    if not is_a_share or not 2 <= int(of) <= LARGEST_COUNT:
        message = f"must be i/n, with i from 0 to n − 1 and n from 2 to {LARGEST_COUNT}, as in 0/2"
        raise ValueError(message)
    return Share(int(number), int(of))


def can_be_divided(quotas: Iterable[Quota]) -> bool:
    """Whether every sensor that these quotas bound belongs to one user, on the enforced and on the shadow side."""
    return not undivided(quotas)


def undivided(quotas: Iterable[Quota]) -> list[str]:
    """The quotas that make sensors of several users: a text for each, with what to do; none if work can be divided."""
    return [
        f"the quota of {label(quota.user, quota.client_id)} names no user, so that users of several shards would share "
        "its sensor; with shards every quota must name a user or the default user: give it one, or remove it"
        for quota in quotas
        if not quota.user
    ]
