"""The load of the published purgatory benchmark: Poisson arrivals, log-normal latencies."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

TIMEOUT_MS: Final = 200
KEYS: Final = (17, 42, 96)
"""Three keys of a hundred, drawn once: every request is watched on the same three."""

_P75_IN_SIGMAS: Final = 0.674490

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Case:
    """One distribution of latencies.

    Attributes:
        median_ms: half of the requests can complete within this time.
        p75_ms: three quarters of them can.
    """

    median_ms: int
    p75_ms: int

    def __str__(self) -> str:
        return f"{self.median_ms}/{self.p75_ms} ms"

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm of the latency."""
        return math.log(self.p75_ms / self.median_ms) / _P75_IN_SIGMAS

    @property
    def expired_share(self) -> float:
        """The share of the requests whose latency is longer than the time-out."""
        return 0.5 * math.erfc(math.log(TIMEOUT_MS / self.median_ms) / self.sigma / math.sqrt(2))


CASES: Final = (Case(20, 60), Case(200, 400))


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in the order of their arrival.

    Attributes:
        arrival_ms: float64[n], since the start; all 0 in a load that is not paced.
        latency_ms: int64[n], whole milliseconds; the fraction is carried over to the next request.
    """

    arrival_ms: npt.NDArray[np.float64]
    latency_ms: Int64s

    @property
    def requests(self) -> int:
        """The number of requests."""
        return self.latency_ms.size


def draw_load(case: Case, requests: int, rate_per_second: float, seed: int = 1) -> Load:
    """Draw the requests of one run. With an infinite rate the load is not paced."""
    random = np.random.default_rng(seed)
    exact_ms = random.lognormal(math.log(case.median_ms), case.sigma, requests)
    latency_ms = np.diff(np.floor(np.cumsum(exact_ms)), prepend=0.0).astype(np.int64)
    gaps_ms = random.exponential(1000.0 / rate_per_second, requests) if math.isfinite(rate_per_second) else None
    return Load(np.zeros(requests) if gaps_ms is None else np.cumsum(gaps_ms), latency_ms)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run.

    Attributes:
        target_per_second: the rate of arrivals that was asked for; infinite if the run was not paced.
        achieved_per_second: requests divided by the time until the last of them had arrived.
        cpu_us: processor time of the whole process per request, until all are complete, in microseconds.
        requests: how many there were; fewer than asked for if the time was up.
        expired: how many of them timed out.
    """

    target_per_second: float
    achieved_per_second: float
    cpu_us: float
    requests: int
    expired: int

    def kept_up(self, case: Case) -> bool:
        """True if about as many timed out as must. With fewer, expiry is late; with more, completion is late."""
        return abs(self.expired / self.requests - case.expired_share) <= case.expired_share / 4
