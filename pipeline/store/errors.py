"""What can be wrong with an object store. See `pipeline.errors`."""

from pipeline.errors import PipelineError


class StoreLibraryMissing(PipelineError):
    """The library that looks at stores is not installed.

    Attributes:
        address: What was to be looked at.
    """

    exit_code = 2

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(
            f"{address} can not be checked: the package obstore is not installed",
            "pip install 'kafka-quota-pipeline[object-store]'",
        )


class StoreUnfit(PipelineError):
    """A store does not let us do what tables need, or does not do it as they need it.

    Attributes:
        address: What was looked at.
        step: What was tried, as "write".
        cause: What is wrong, in one clause.
    """

    exit_code = 5

    def __init__(self, address: str, step: str, cause: str, remedy: str) -> None:
        self.address = address
        self.step = step
        self.cause = cause
        super().__init__(f"can not {step} {address}: {cause}", remedy)


class StoreUnreachable(StoreUnfit):
    """Nothing answers at the endpoint of a store."""

    exit_code = 6
