"""The errors of this package: one class for each thing that a caller does something about.

PurgatoryError
├── InvalidArgumentError  a time, an array, a size or a watch key that cannot be; nothing was changed
├── WheelFullError        no slot is left for another pending entry
└── AlreadyMutedError     a muted source asked for memory
"""


class PurgatoryError(Exception):
    """The root of the errors of this package."""


class InvalidArgumentError(PurgatoryError, ValueError):
    """A time, array, size, watch key or allocation that cannot be. Nothing was changed."""


class WheelFullError(PurgatoryError):
    """More entries would be pending at once (`requested`) than handles can address (`max_pending`)."""

    def __init__(self, max_pending: int, requested: int) -> None:
        self.max_pending = max_pending
        self.requested = requested
        super().__init__(f"the wheel holds at most {max_pending} pending entries; {requested} would be pending")


class AlreadyMutedError(PurgatoryError):
    """A source asked for memory while it was muted."""
