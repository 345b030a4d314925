"""By how many jobs the users are divided: the first shard that starts writes it into the quota table of all of them."""

from pipeline.errors import PipelineError
from pipeline.settings.model import Settings
from pipeline.tables.address import shared_root
from pipeline.tables.audit import local_audit
from pipeline.tables.ownership import owner_of
from pipeline.tables.quotas.source import newest_valid
from pipeline.tables.quotas.table import QuotaTable
from quota.errors import InvalidQuotas
from quota.shares import Share, undivided


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


def claim_shards(table: QuotaTable, settings: Settings) -> None:
    """Write down by how many jobs the users are divided at the first start, and check it at later ones.

    Raises:
        ShardsDiffer: They are divided in another way, or one job for all users has written the tables above.
        UsersShareSensors: At the first start, a quota names no user.
    """
    share, stored = settings.share, table.shards()
    above = shared_root(settings.tables.root)
    if share.of not in {1, stored} and stored == 1 and owner_of(above) is None:
        _refuse_undivided(table, share)
        table.set_shards(share.of, local_audit(f"the users are divided by {share.of} jobs"))
    elif share.of != stored:
        raise ShardsDiffer(above, stored, share.of)


def _refuse_undivided(table: QuotaTable, share: Share) -> None:
    newest = table.read().version
    try:
        snapshot = newest_valid(table, newest)
    except InvalidQuotas:
        return  # the job says it, when it reads them
    if problems := undivided(snapshot.quotas):
        raise UsersShareSensors(snapshot.version, problems)


def _told(count: int) -> str:
    return "that of one job for all users" if count == 1 else f"one of {count}"
