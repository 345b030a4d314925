"""The limit of the bytes of throttled requests that wait at a gate."""

from dataclasses import dataclass
from typing import Literal

WhenFull = Literal["refuse", "wait"]


@dataclass(frozen=True, slots=True)
class GateLimits:
    """The limit of the bytes of throttled requests that wait.

    Attributes:
        pool_bytes: Size of the memory pool that all throttled clients share. As in KIP-72 a request is let in while
            anything is left, so at most pool_bytes + max_request_bytes − 1 are in use.
        max_request_bytes: The largest single request.
        when_full: What happens to a throttled caller that finds the pool depleted. refuse: it is refused at once.
            wait: it waits until bytes become free; who came first gets them first. When its own throttle is over, it
            waits only while its own client's requests use pool_bytes or more.
    """

    pool_bytes: int = 67_108_864
    max_request_bytes: int = 1_048_576
    when_full: WhenFull = "refuse"
