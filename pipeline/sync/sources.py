"""What a sync follows: the quotas, and the usage as long as levels are computed from it."""

from collections.abc import Callable

from pipeline.sync.chosen_quotas import ChosenQuotas
from pipeline.sync.usage_follower import UsageFollower
from pipeline.tables.quotas.source import QuotaSource, Scope


class Sources:
    """The quotas and the usage. One caller at a time.

    Args:
        quotas: The rows of the quota table that are put on the brokers.
        open_usage: Opens the usage from now on.
        scope: That of the settings; None = that of the quota table, also when it is changed there.

    Attributes:
        quotas: As given.
    """

    def __init__(
        self,
        quotas: QuotaSource | ChosenQuotas,
        open_usage: Callable[[], UsageFollower],
        scope: Scope | None = None,
    ) -> None:
        self.quotas = quotas
        self._open_usage = open_usage
        self._scope = scope
        self._usage: UsageFollower | None = None

    @property
    def mirror(self) -> bool:
        """Whether every broker gets T: scope `broker`."""
        return (self._scope or self.quotas.scope) == "broker"

    def usage(self) -> UsageFollower | None:
        """The usage; None where no level is computed. It is opened anew when levels are computed again.

        Raises:
            TableMissing, TableUnreadable: The table is not there, or can not be read.
        """
        if self.mirror:
            self._usage = None
        elif self._usage is None:
            self._usage = self._open_usage()
        return self._usage
