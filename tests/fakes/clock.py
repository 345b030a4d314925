"""Clocks that are set by hand."""

from pipeline.clock import Moment


class ManualClock:
    """Both clocks stand still until `advance`. Wall and steady time are equal until `set_wall`."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.wall_ms = start_ms
        self.steady_ms = start_ms

    def now(self) -> Moment:
        return Moment(self.wall_ms, self.steady_ms)

    def advance(self, by_ms: int) -> None:
        self.wall_ms += by_ms
        self.steady_ms += by_ms

    def set_wall(self, wall_ms: int) -> None:
        self.wall_ms = wall_ms


class ManualMonotonicClock:
    def __init__(self, start_ms: int = 0) -> None:
        self.now_ms = start_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
