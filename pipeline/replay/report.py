"""A candidate beside the quotas that were live, client by client and in all."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.replay.outcome import Outcome, ReplayResult
from pipeline.replay.pieces import Client

Change = Literal["newly throttled", "no longer throttled", "longer", "shorter", "same"]

_NOTHING = Outcome()


@dataclass(frozen=True, slots=True)
class Line:
    """One client: what happened, and what each replay came to.

    Attributes:
        client: Broker, user, client-id.
        happened: By the stored decisions and records.
        live: Replayed with the quotas that were in force: like is compared with like.
        candidate: Replayed with the candidate.
    """

    client: Client
    happened: Outcome
    live: Outcome
    candidate: Outcome

    @property
    def change(self) -> Change:
        """What the candidate would change, seen from the replay with the live quotas."""
        if bool(self.live.windows) != bool(self.candidate.windows):
            return "newly throttled" if self.candidate.windows else "no longer throttled"
        if self.live.throttle_ms == self.candidate.throttle_ms:
            return "same"
        return "longer" if self.candidate.throttle_ms > self.live.throttle_ms else "shorter"

    @property
    def throttle_change_ms(self) -> int:
        """How much longer it would be held than under the live quotas; negative = shorter."""
        return self.candidate.throttle_ms - self.live.throttle_ms

    def to_row(self) -> dict[str, Any]:
        """For printing: flat, in seconds."""
        broker_id, user, client_id = self.client
        return {
            **({"broker_id": broker_id} if broker_id else {}),
            "user": user,
            "client_id": client_id,
            "change": self.change,
            "windows_live": self.live.windows,
            "windows_candidate": self.candidate.windows,
            "throttle_seconds_live": self.live.throttle_ms / 1000,
            "throttle_seconds_candidate": self.candidate.throttle_ms / 1000,
            "bytes_deferred_live": self.live.deferred_bytes,
            "bytes_deferred_candidate": self.candidate.deferred_bytes,
            "windows_happened": self.happened.windows,
            "throttle_seconds_happened": self.happened.throttle_ms / 1000,
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """All clients together; what `--fail-if` can ask for.

    Attributes:
        clients: That sent usage.
        throttled: Clients the candidate would throttle.
        newly_throttled: Of these, clients that the live quotas do not.
        no_longer_throttled: Clients that the live quotas throttle and the candidate does not.
        windows_throttled: Sample windows in which a client is over the candidate, summed over clients.
        throttle_seconds: Time clients would be held, summed over clients.
        throttle_seconds_change: The same, less that under the live quotas.
        bytes_deferred: Bytes that would have had to wait.
        bytes_deferred_change: The same, less that under the live quotas.
    """

    clients: int
    throttled: int
    newly_throttled: int
    no_longer_throttled: int
    windows_throttled: int
    throttle_seconds: float
    throttle_seconds_change: float
    bytes_deferred: int
    bytes_deferred_change: int


def report_lines(live: ReplayResult, candidate: ReplayResult, happened: Mapping[Client, Outcome]) -> list[Line]:
    """Every client that any of the three knows; the largest change of throttle time first, then by name."""
    clients = {*live.outcomes, *candidate.outcomes, *happened}
    lines = [
        Line(
            client,
            happened.get(client, _NOTHING),
            live.outcomes.get(client, _NOTHING),
            candidate.outcomes.get(client, _NOTHING),
        )
        for client in clients
    ]
    return sorted(lines, key=lambda line: (-abs(line.throttle_change_ms), -line.candidate.throttle_ms, line.client))


def totals_of(lines: Sequence[Line]) -> Totals:
    """All lines together."""
    changes = [line.change for line in lines]
    return Totals(
        clients=len(lines),
        throttled=sum(line.candidate.windows > 0 for line in lines),
        newly_throttled=changes.count("newly throttled"),
        no_longer_throttled=changes.count("no longer throttled"),
        windows_throttled=sum(line.candidate.windows for line in lines),
        throttle_seconds=sum(line.candidate.throttle_ms for line in lines) / 1000,
        throttle_seconds_change=sum(line.throttle_change_ms for line in lines) / 1000,
        bytes_deferred=sum(line.candidate.deferred_bytes for line in lines),
        bytes_deferred_change=sum(line.candidate.deferred_bytes - line.live.deferred_bytes for line in lines),
    )


def touched(lines: Sequence[Line]) -> list[Line]:
    """The lines that say anything: throttled by what happened, by the live quotas or by the candidate."""
    return [line for line in lines if line.happened.windows or line.live.windows or line.candidate.windows]


def to_document(lines: Sequence[Line], totals: Totals, about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report for a program."""
    return {"about": dict(about), "totals": asdict(totals), "clients": [line.to_row() for line in touched(lines)]}
