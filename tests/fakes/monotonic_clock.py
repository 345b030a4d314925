"""A monotonic clock moved by hand."""


class ManualMonotonicClock:
    """Stands still until `advance`."""

    def __init__(self, start_ms: int = 0) -> None:
        self.now_ms = start_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        self.now_ms += by_ms
