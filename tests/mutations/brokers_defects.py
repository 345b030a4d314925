"""Defects of what is written to the brokers, and of usage that is scraped from them."""

from typing import Final

from tests.mutations.planting import Defect

_SYNC: Final = "tests/quota/test_broker_sync.py"
_ENTRIES: Final = "tests/quota/test_broker_entries.py"
_CONTROL: Final = "tests/quota/test_levels.py"
_RATES: Final = "tests/pipeline/meter/test_scrapes.py"
_PAGES: Final = "tests/pipeline/meter/test_scrapes.py"
_METER: Final = "tests/pipeline/meter/test_scrape_meter.py"

DEFECTS: Final = (
    Defect(
        "what others wrote on the brokers is written over",
        "BrokerHoldings._judge_new",
        ("if held is not None and not self._adopt:", "if False:"),
        _SYNC,
    ),
    Defect(
        "what someone changed on the brokers is not reported",
        "BrokerHoldings._judge",
        ("return Drift(key, held, owned.value, value, DriftKind.CHANGED), None", "return None, None"),
        _SYNC,
    ),
    Defect(
        "a refused write is tried again each period",
        "WriteRetries.refuse",
        ("now_ms + RETRY_MS", "now_ms"),
        _SYNC,
    ),
    Defect(
        "a write that was not answered is no longer ours when it turns up",
        "BrokerHoldings.observe",
        ("if arrived is not None and not is_ours:", "if False:"),
        _SYNC,
    ),
    Defect(
        "a shadow row becomes an entry on the brokers",
        "quota.broker_levels:_bounds_of",
        ('if quota.mode != "enforce":', 'if quota.mode == "exempt":'),
        _ENTRIES,
    ),
    Defect(
        "an entry that would change another client's quota is written",
        "OwnGrants._harm",
        'lambda original, *_: ""',
        _ENTRIES,
    ),
    Defect(
        "a level moves as soon as the demand does",
        "LevelRules",
        ("alter_interval_ms: int = 10_000", "alter_interval_ms: int = 0"),
        f"{_CONTROL} {_SYNC}",
    ),
    Defect(
        "a level stays below an even share when a broker leaves",
        "propose",
        (" | (level < even * (1 - _ROUNDING))", ""),
        f"{_CONTROL} {_SYNC}",
    ),
    Defect(
        "after a gap in the scrapes all of it is charged at the last rate",
        "ScrapedUsage.observe",
        ("min(since_ms, self.window_ms) / 1000", "since_ms / 1000"),
        _RATES,
    ),
    Defect(
        "a burst is charged only when the mean has seen it",
        "ScrapedUsage.observe",
        ("np.maximum(self._charged, before + rates * _YOUNG_SECONDS)", "self._charged"),
        _RATES,
    ),
    Defect(
        "one sensor under two names is charged twice",
        "SensorTable._add",
        ("if known is not None:", "if False:"),
        _PAGES,
    ),
    Defect(
        "a value that is no rate is charged",
        "SensorTable.read",
        ("0 <= per_second <= LARGEST_MEASURE", "per_second == per_second"),
        _PAGES,
    ),
    Defect(
        "quotes that JMX puts around a client-id are part of its name",
        "_of_jmx",
        "lambda original, value, labels: value",
        _PAGES,
    ),
    Defect(
        "two targets that show one broker are both charged",
        "Target.is_of_the_broker_of",
        "lambda original, *_: False",
        _METER,
    ),
    Defect(
        "scraped events that could not be stored are forgotten",
        "ScrapeMeter._store",
        ("            return False", "            self._is_tried = False\n            return False"),
        _METER,
    ),
    Defect(
        "a broker that is being restarted counts as gone",
        "GONE_AFTER_MS",
        ("60_000", "0"),
        "tests/pipeline/sync/test_broker_quota_sync.py::test_a_broker_that_is_being_restarted_still_counts",
    ),
    Defect(
        "the sync waits for the old time when event time begins anew",
        "UsageFollower._rows_after",
        ("begins = known is None or newest.time_epoch != known.time_epoch or newest < known", "begins = known is None"),
        "tests/pipeline/sync/test_broker_quota_sync.py",
    ),
    Defect(
        "a sync that was superseded goes on",
        "BrokerQuotasTable.refuse_fenced",
        "lambda original, *_: None",
        "tests/pipeline/sync/test_broker_quota_sync.py",
    ),
    Defect(
        "a request has more entities than a controller takes",
        "pipeline.brokers:batches_of",
        ("at : at + _MOST_ENTITIES", "at:"),
        "tests/pipeline/brokers/test_native.py",
    ),
    Defect(
        "imported bounds are those of one broker",
        "imported",
        ("key: value * factor", "key: value"),
        "tests/pipeline/tables/quotas/test_file_reading.py",
    ),
    Defect(
        "a client that makes up names fills the brokers with entries of its own",
        "OwnGrants.ask",
        ("if self._of_user[key.user] >= self._most_per_user:", "if False:"),
        "tests/quota/test_broker_sync.py",
    ),
    Defect(
        "a sync that starts beside running clients throws away the usage that it finds",
        "UsageFollower._rows_after",
        ("newest.evaluated_at_ms - self._first_ms if", "newest.evaluated_at_ms if"),
        "tests/pipeline/sync/test_broker_quota_sync.py",
    ),
    Defect(
        "a line that rules made of several names is charged to a user that cannot exist",
        "_refuse_several_names",
        "lambda original, labels: None",
        _PAGES,
    ),
    Defect(
        "two lines of one sensor count as the later one",
        "SensorTable.read",
        ("elif counts[place] > 1:", "elif False:"),
        _PAGES,
    ),
)
