"""What the sync says in its log: one line for each change, and one when something begins to stand in the way."""

import logging
from typing import Final

from pipeline.sync.change_writer import Written
from pipeline.sync.words import change_line, drift_line, key_text
from quota.broker_entries import EntryKey
from quota.broker_sync import BrokerSync
from quota.broker_writes import Drift

log = logging.getLogger("pipeline.sync")

MOST_LINES: Final = 200
"""So many changes that were made together get a line each. The lines of 10^4 would take longer than the changes."""


class Telling:
    """Says each thing once. What lasts, as a drift, is told when it begins, and again if it comes back."""

    def __init__(self) -> None:
        self._drifts: frozenset[Drift] = frozenset()
        self._refused: frozenset[tuple[EntryKey, str]] = frozenset()
        self._has_unplaced = False

    def changes(self, written: Written) -> None:
        """A line for each change that the brokers took."""
        for change in written.taken[:MOST_LINES]:
            log.info("%s", change_line(change))
        if len(written.taken) > MOST_LINES:
            log.info("and %d more changes at the same time: see broker_quotas", len(written.taken) - MOST_LINES)

    def obstacles(self, control: BrokerSync) -> None:
        """A line for each drift, refusal and usage without a broker that was not there before."""
        drifts = frozenset(control.drifts)
        for drift in [drift for drift in control.drifts if drift not in self._drifts][:MOST_LINES]:
            log.warning("%s (--adopt takes it over)", drift_line(drift))
        self._drifts = drifts
        refused = {(one.key, one.reason): one for one in control.refused}
        for about, one in refused.items():
            if about not in self._refused:
                whom = "the brokers refuse" if one.by == "broker" else "can not have an entry of its own:"
                log.warning("%s: %s %s", key_text(one.key), whom, one.reason)
        self._refused = frozenset(refused)
        if control.unplaced_bytes and not self._has_unplaced:
            self._has_unplaced = True
            log.warning(
                "usage that names no broker of the cluster counts on none: %d bytes so far; meters must send broker_id",
                control.unplaced_bytes,
            )
