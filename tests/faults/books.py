"""The verifier's own books: what every client has used and owes, kept from the first batch on.

They are the scalar model of `tests/quota/model.py`. It takes nothing from the job but the cut of the batches, their
clock readings and their quota versions; no snapshot is ever read into it.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from math import inf
from typing import Any, Final

from tests.faults.evidence import Evidence, Quotas, Row
from tests.quota.model import TYPES, ScalarModel
from tests.quota.model import Row as QuotaRow

_NONE: Final = Quotas((), "enforce")
"""What a version holds that never was: what is based on it differs from what is recomputed."""

Standing = tuple[float | None, int | None]
"""The enforced bound of a client and the level it comes from; None for none."""


class QuickModel(ScalarModel):
    """The scalar model, which remembers how names resolve for as long as the quotas are the same."""

    def load_quotas(self, rows: Iterable[QuotaRow], mode: str = "enforce") -> None:
        super().load_quotas(rows, mode)
        self._known: dict[tuple[Any, ...], Any] = {}

    def remembered(self) -> tuple[Any, ...]:
        """The quotas in force and what was resolved under them."""
        return self.rows, self._known

    def go_back(self, remembered: tuple[Any, ...]) -> None:
        """Put quotas in force again, with what was resolved under them before."""
        self.rows, self._known = remembered

    def records(self, side: str, quota_type: str) -> bool:
        key = ("records", side, quota_type)
        if key not in self._known:
            self._known[key] = super().records(side, quota_type)
        return bool(self._known[key])

    def tags(self, side: str, quota_type: str, user: str, client: str) -> tuple[str, str]:
        key = ("tags", side, quota_type, user, client)
        if key not in self._known:
            self._known[key] = super().tags(side, quota_type, user, client)
        found: tuple[str, str] = self._known[key]
        return found

    def quota_of(self, side: str, quota_type: str, tags: tuple[str, str]) -> tuple[int, QuotaRow] | None:
        key = ("quota", side, quota_type, tags)
        if key not in self._known:
            self._known[key] = super().quota_of(side, quota_type, tags)
        found: tuple[int, QuotaRow] | None = self._known[key]
        return found


class Books:
    """What the verifier knows of usage, debts and quotas.

    Args:
        evidence: For the versions of the quota table and their scope.
        engine_settings: Of the job's engine, as `batches` has them.
    """

    def __init__(self, evidence: Evidence, engine_settings: str) -> None:
        given = json.loads(engine_settings)
        caps = {quota_type: given[f"{quota_type}_cap"] for quota_type in TYPES}
        size = (given["num_samples"], given["sample_window_ms"])
        self.model = QuickModel(*size, caps, evidence.scope, given["carry_debt"])
        self.time_epoch = 0
        self._quotas = evidence.quotas
        self._version: int | None = None
        self._remembered: dict[int, tuple[Any, ...]] = {}

    @property
    def sample_window_ms(self) -> int:
        """Span of a sample window."""
        return self.model.w

    @property
    def ring_ms(self) -> int:
        """Span of the rates' windows: an event as old as this is late."""
        return self.model.n * self.model.w

    @property
    def evaluated_at_ms(self) -> int:
        """The instant of the newest batch, in the present time epoch."""
        return self.model.evaluated_at_ms or 0

    def put_in_force(self, version: int) -> None:
        """Use the quotas of a version from now on."""
        if version == self._version:
            return
        if version in self._remembered:
            self.model.go_back(self._remembered[version])
        else:
            quotas = self._quotas.get(version, _NONE)
            self.model.load_quotas(quotas.rows, quotas.mode)
            self._remembered[version] = self.model.remembered()
        self._version = version

    def versions(self, first: int, last: int | None) -> list[int]:
        """The usable versions of the quota table from the first to the last of these, or to the newest."""
        upper = inf if last is None else max(first, last)
        return [number for number in self._sorted if min(first, last or first) <= number <= upper]

    def begin_epoch(self, now_ms: int) -> None:
        """The clocks were set back: event time goes on at an earlier instant."""
        self.time_epoch += 1
        self.model.begin_epoch(self.evaluated_at_ms, now_ms)

    def record(self, usage: list[Row], evaluated_at_ms: int, version: int, is_old: bool = False) -> list[Row]:
        """Enter a batch's usage; what the quotas of a version decide about it."""
        self.put_in_force(version)
        decisions = self.model.record(usage, evaluated_at_ms, is_old)
        self._forget_old_windows(evaluated_at_ms)
        return decisions

    def owed(self, client: Row, at_ms: int, version: int) -> dict[str, Row]:
        """What a client owes at an instant, by quota type."""
        self.put_in_force(version)
        return {one["quota_type"]: one for one in self.model.evaluate([client], at_ms)}

    def drops(self, client: Row, version: int) -> set[int]:
        """The instants at which a sample window of a client's sensors drops out of its rate."""
        self.put_in_force(version)
        keys = (self.model.key("enforced", quota_type, client) for quota_type in TYPES)
        sensors = [self.model.sensors[key] for key in keys if key in self.model.sensors]
        return {last_ms + self.ring_ms for sensor in sensors for _, last_ms in sensor.windows.values()}

    def standing(self, client: Row, quota_type: str, version: int) -> Standing:
        """Which bound holds for a client, from which level."""
        self.put_in_force(version)
        tags = self.model.key("enforced", quota_type, client)[2][1:]
        quota = self.model.quota_of("enforced", quota_type, tags)
        return self.model.bound_of("enforced", quota_type, tags), None if quota is None else quota[0]

    def sensor(self, client: Row, quota_type: str, version: int) -> tuple[str, str]:
        """User and client-id of the sensor that a client's usage goes to."""
        self.put_in_force(version)
        _, user, client_id = self.model.key("enforced", quota_type, client)[2]
        return user, client_id

    def cap_ms(self, quota_type: str, window_ms: int) -> int | None:
        """The longest slice of a throttle; None for no limit."""
        cap = self.model.caps[quota_type]
        named: dict[str, int | None] = {"none": None, "window": window_ms, "sample_window": self.model.w}
        return named[cap] if isinstance(cap, str) else cap

    @cached_property
    def _sorted(self) -> list[int]:
        return sorted(number for number, quotas in self._quotas.items() if _is_usable(quotas))

    def _forget_old_windows(self, now_ms: int) -> None:
        """The model keeps every window; those before the ring are in no rate any more."""
        oldest_ms = now_ms // self.model.w * self.model.w - self.ring_ms
        for sensor in self.model.sensors.values():
            if sensor.windows and next(iter(sensor.windows)) < oldest_ms - self.ring_ms:
                for start_ms in [start_ms for start_ms in sensor.windows if start_ms < oldest_ms]:
                    del sensor.windows[start_ms]


def most_ms(owed: Mapping[str, Row]) -> int:
    """The longest of what a client owes, by quota type."""
    return max(int(one["owed_ms"]) for one in owed.values())


def debt_ms(owed: Mapping[str, Row]) -> float:
    """How long the deepest bucket of a client's sensors needs to come back to 0; below 0 if none owes anything."""
    debts = (-one["tokens"] / one["bound"] * 1_000.0 for one in owed.values() if one["tokens"] is not None)
    return max(debts, default=0.0)


def _is_usable(quotas: Quotas) -> bool:
    bounds = [row.get(quota_type) for row in quotas.rows for quota_type in TYPES]
    return all(bound is None or 0 < bound < inf for bound in bounds)
