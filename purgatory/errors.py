"""What the purgatory refuses.

    PurgatoryError
    ├── InvalidTimeError      an instant outside [0, MAX_TIME_MS] or not whole; a tick, wheel size or start too small
    ├── InvalidBatchError     an array of the wrong shape or type
    ├── WheelFullError        no slot left for another pending entry
    ├── MissingWatchKeyError  an operation without a key to watch it on
    ├── InvalidSizeError      a memory pool or an allocation of an impossible size
    ├── NotAllocatedError     a release of what the pool did not hand out, or of the same thing twice
    └── AlreadyMutedError     a muted source that asks for memory all the same

All carry what they complain about as attributes.
"""


class PurgatoryError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidTimeError(PurgatoryError, ValueError):
    """An instant the wheel can not hold.

    Attributes:
        name: the argument.
        value: what was given: for a batch, its first refused element.
        reason: what it must be.
    """

    def __init__(self, name: str, value: object, reason: str) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        super().__init__(f"'{name}' must {reason}; got {value!r}")


class InvalidBatchError(PurgatoryError, TypeError):
    """A batch that is no array of integers, or has the wrong shape.

    Attributes:
        name: the argument.
        dtype: the array's type.
        shape: the array's shape.
        expected: what it must be.
    """

    def __init__(
        self, name: str, dtype: str, shape: tuple[int, ...], expected: str = "a one-dimensional integer array"
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.expected = expected
        super().__init__(f"'{name}' must be {expected}; got {dtype} of shape {shape}")


class WheelFullError(PurgatoryError):
    """More entries pending at once than handles can address.

    Attributes:
        max_pending: the most a wheel holds.
        requested: pending entries the call would have led to.
    """

    def __init__(self, max_pending: int, requested: int) -> None:
        self.max_pending = max_pending
        self.requested = requested
        super().__init__(f"'pending' must stay at or below {max_pending}; got {requested}")


class MissingWatchKeyError(PurgatoryError, ValueError):
    """A delayed operation given no watch key: nothing but its time-out could complete it."""

    def __init__(self) -> None:
        super().__init__("'keys' must hold at least one watch key; got none")


class InvalidSizeError(PurgatoryError, ValueError):
    """A size that a memory pool can not have or hand out.

    Attributes:
        name: the argument.
        value: what was given, bytes.
        reason: what it must be.
    """

    def __init__(self, name: str, value: int, reason: str) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        super().__init__(f"'{name}' must {reason}; got {value}")


class NotAllocatedError(PurgatoryError, ValueError):
    """A release of something the pool does not count as outstanding.

    Attributes:
        allocation: what was given.
    """

    def __init__(self, allocation: object) -> None:
        self.allocation = allocation
        super().__init__(f"'allocation' must be outstanding in this pool; got {allocation!r}")


class AlreadyMutedError(PurgatoryError):
    """A source that asks for memory while it is muted.

    Attributes:
        source: which.
    """

    def __init__(self, source: object) -> None:
        self.source = source
        super().__init__(f"'source' must not be muted; got {source!r}")
