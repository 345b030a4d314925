"""The errors of this package.

    PurgatoryError
    ├── InvalidTimeError      an instant outside [0, MAX_TIME_MS] or not an integer; a tick, size or start too small
    ├── InvalidBatchError     an array of the wrong shape or type
    ├── WheelFullError        no slot is left for another pending entry
    ├── MissingWatchKeyError  an operation without a watch key
    ├── InvalidSizeError      a memory pool or an allocation of an impossible size
    ├── NotAllocatedError     a release of something that the pool did not hand out, or a second release
    └── AlreadyMutedError     a muted source that asks for memory

Each error carries what was given and what was expected as attributes.
"""


class PurgatoryError(Exception):
    """The root of the errors of this package."""


class InvalidTimeError(PurgatoryError, ValueError):
    """An instant that the wheel cannot hold.

    Attributes:
        name: the argument.
        value: what was given; for a batch its first element that was refused.
        reason: what it must be.
    """

    def __init__(self, name: str, value: object, reason: str) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        super().__init__(f"'{name}' must {reason}; got {value!r}")


class InvalidBatchError(PurgatoryError, TypeError):
    """A batch that is not an array of integers, or has the wrong shape.

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
    """More entries would be pending at once than handles can address.

    Attributes:
        max_pending: the most that a wheel holds.
        requested: how many would be pending after the call.
    """

    def __init__(self, max_pending: int, requested: int) -> None:
        self.max_pending = max_pending
        self.requested = requested
        super().__init__(f"'pending' must stay at or below {max_pending}; got {requested}")


class MissingWatchKeyError(PurgatoryError, ValueError):
    """A delayed operation without a watch key. Only its time-out could ever complete it."""

    def __init__(self) -> None:
        super().__init__("'keys' must hold at least one watch key; got none")


class InvalidSizeError(PurgatoryError, ValueError):
    """A size that a memory pool cannot have or hand out.

    Attributes:
        name: the argument.
        value: what was given, in bytes.
        reason: what it must be.
    """

    def __init__(self, name: str, value: int, reason: str) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        super().__init__(f"'{name}' must {reason}; got {value}")


class NotAllocatedError(PurgatoryError, ValueError):
    """A release of something that is not outstanding in this pool.

    Attributes:
        allocation: what was given.
    """

    def __init__(self, allocation: object) -> None:
        self.allocation = allocation
        super().__init__(f"'allocation' must be outstanding in this pool; got {allocation!r}")


class AlreadyMutedError(PurgatoryError):
    """A source that asked for memory while it was muted.

    Attributes:
        source: the source.
    """

    def __init__(self, source: object) -> None:
        self.source = source
        super().__init__(f"'source' must not be muted; got {source!r}")
