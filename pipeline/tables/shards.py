"""By how many jobs the users are divided: the first shard that starts writes it into the quota table of all of them."""

from contextlib import suppress

from pipeline.errors import PipelineError
from pipeline.settings.model import Settings
from pipeline.tables.address import TablesInCatalog, shared_root
from pipeline.tables.audit import local_audit
from pipeline.tables.errors import TableMissing
from pipeline.tables.ownership import owner_of
from pipeline.tables.quotas.source import QuotaVersions, newest_valid
from pipeline.tables.quotas.table import QuotaTable
from quota.errors import InvalidQuotas
from quota.shares import undivided


class ShardsDiffer(PipelineError):
    """The users of these tables are divided in another way.

    Attributes:
        place: What all shards share.
        stored: By how many jobs the users are divided there; 1 for one job.
        asked: By how many this job is one of.
    """

    exit_code = 4

    def __init__(self, place: str, stored: int, asked: int) -> None:
        self.place = place
        self.stored = stored
        self.asked = asked
        super().__init__(
            f"'shard' must be {_told(stored)}: so the users of {place} are divided; got {_told(asked)}",
            "a running division can not be changed, as each shard has the rates and the debts of its own users: start "
            "as before, or anew with other tables, another checkpoint and another throttle topic (docs/shards.md)",
        )


class UsersShareSensors(PipelineError):
    """Quotas without a user forbid that the users are divided.

    Attributes:
        version: Of the quota table.
        problems: One text for each such quota.
    """

    exit_code = 5

    def __init__(self, version: int, problems: list[str]) -> None:
        self.version = version
        self.problems = tuple(problems)
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        super().__init__(
            f"quotas v{version} must name a user or the default user in every row; {problems[0]}{more}",
            "change the rows, or run one job without --shard",
        )


def refuse_other_division(settings: Settings) -> None:
    """Check what `claim_shards` checks, before anything is made; without a quota table all is well.

    Raises:
        ShardsDiffer, UsersShareSensors: As `claim_shards` does.
    """
    with suppress(TableMissing, TablesInCatalog):
        _is_new(QuotaTable(settings.tables.root), settings)


def claim_shards(table: QuotaVersions, settings: Settings) -> None:
    """Write down by how many jobs the users are divided at the first start, and check it at later ones.

    Tables in a catalog are those of one job for all users; nothing is written there.

    Args:
        table: The quota table of the settings.
        settings: The whole tree.

    Raises:
        ShardsDiffer: They are divided in another way, or one job for all users has written the tables above.
        UsersShareSensors: At the first start, a quota names no user.
    """
    if isinstance(table, QuotaTable) and _is_new(table, settings):
        count = settings.share.of
        table.set_shards(count, local_audit(f"the users are divided by {count} jobs"))


def _is_new(table: QuotaTable, settings: Settings) -> bool:
    """Whether the division has to be written down."""
    share, stored = settings.share, table.shards()
    if share.of == stored:
        return False
    above = shared_root(settings.tables.root)
    if stored > 1 or owner_of(above) is not None:
        raise ShardsDiffer(above, stored, share.of)
    _refuse_undivided(table)
    return True


def _refuse_undivided(table: QuotaTable) -> None:
    newest = table.read().version
    try:
        snapshot = newest_valid(table, newest)
    except InvalidQuotas:
        return  # the job says it, when it reads them
    if problems := undivided(snapshot.quotas):
        raise UsersShareSensors(snapshot.version, problems)


def _told(count: int) -> str:
    return "that of one job for all users" if count == 1 else f"one of {count}"
