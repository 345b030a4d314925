"""What a shard keeps of the usage of users who are not its own.

All shards read the same messages. The newest event of a batch dates its evaluation, whoever sent it: so a shard decides
at the same instant as one job for all users would.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from quota.shares import Share


@dataclass(frozen=True, slots=True)
class OthersUsage:
    """Usage of users of other shares.

    Attributes:
        event_count: Good events.
        newest_event_ms: The largest of their times, clamped; None without events.
    """

    event_count: int = 0
    newest_event_ms: int | None = None

    @classmethod
    def of(cls, times_ms: npt.NDArray[np.int64]) -> "OthersUsage":
        """Of events with these times."""
        return cls(len(times_ms), int(times_ms.max())) if len(times_ms) else NO_OTHERS


NO_OTHERS: Final = OthersUsage()


def all_of(others: Iterable[OthersUsage]) -> OthersUsage:
    """Several together."""
    found = list(others)
    return OthersUsage(sum(one.event_count for one in found), newest(one.newest_event_ms for one in found))


def newest(times_ms: Iterable[int | None]) -> int | None:
    """The largest; None if there is none."""
    return max((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def are_of(share: Share, users: Any) -> npt.NDArray[np.bool_]:
    """For each of many users whether it belongs to a share.

    Args:
        share: Which.
        users: An Arrow array of texts without nulls.
    """
    encoded = users.dictionary_encode()
    is_own = np.fromiter(map(share.has, encoded.dictionary.to_pylist()), np.bool_, len(encoded.dictionary))
    places: npt.NDArray[np.int32] = encoded.indices.to_numpy()
    return is_own[places]
