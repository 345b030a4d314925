"""How far a roll-up of `usage` has come in each time epoch.

When a clock that was ahead is set back a new time epoch begins, whose rows have smaller times than those of the one
before. A roll-up takes each epoch by itself, with a place of its own: an app id with the number of the epoch. So
nothing of the new epoch is late, nothing of the old one is lost, and no row is taken twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pipeline.tables.port import Instant, RolledTable

_EVER_MS: Final = 2**52


@dataclass(slots=True)
class RolledEpoch:
    """One epoch.

    Attributes:
        newest_ms: No row that is still to come is evaluated before this instant: that of its newest row; for an epoch
            that is over, an instant after all.
        is_over: A newer epoch has begun, so no row is to come.
    """

    time_epoch: int
    app_id: str
    newest_ms: int
    is_over: bool
    done_ms: int


class RolledEpochs:
    """The epochs that are not yet rolled up.

    Args:
        app_id: That of epoch 0; the other ones have their number behind it.
    """

    def __init__(self, app_id: str) -> None:
        self._app_id = app_id
        self._first = 0
        self._open: dict[int, RolledEpoch] = {}

    @property
    def written_until_ms(self) -> int:
        """All usage evaluated before this instant is rolled up, whatever its epoch. 0 before the first step."""
        return min((epoch.done_ms for epoch in self._open.values()), default=0)

    def step(
        self, newest: Instant, begin_ms: Callable[[int, str], int], roll_up: Callable[[RolledEpoch], None]
    ) -> None:
        """Roll up what there is, the oldest epoch first. An epoch that is over is not asked for again.

        * `begin_ms`: Epoch and app id -> where it goes on.
        """
        for number in range(self._first, newest.time_epoch + 1):
            app_id = f"{self._app_id}:{number}" if number else self._app_id
            is_over = number < newest.time_epoch
            newest_ms = _EVER_MS if is_over else newest.evaluated_at_ms
            self._open[number] = RolledEpoch(number, app_id, newest_ms, is_over, begin_ms(number, app_id))
        for number in range(self._first, newest.time_epoch + 1):
            roll_up(self._open[number])
            if number < newest.time_epoch:
                self._first = number + 1
                del self._open[number]


def first_sample_ms(usage: RolledTable, time_epoch: int) -> int:
    """When the first sample of an epoch begins; 0 without one."""
    if not time_epoch:
        return usage.oldest_value("sample_start_ms") or 0
    return usage.slices("sample_start_ms", time_epoch=time_epoch).first_time(0, _EVER_MS) or 0
