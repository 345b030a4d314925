"""All settings of the job, with their defaults and ranges.

The tree is frozen and forbids unknown keys: a typo is an error at start, and a setting never changes while the job
runs. Parts of the program receive the smallest branch they need, never the whole tree. `pipeline.settings.loading`
reads the values from defaults, file, environment and flags.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from quota.entity import QUOTA_TYPES
from schemas.names import MARKER_TOPIC, THROTTLE_TOPIC, USAGE_TOPIC

if TYPE_CHECKING:
    from quota.throttle_time import ThrottleCaps


# delta-rs takes these for parts of a URI, also in the path of a folder: it reads another folder, or none.
_NOT_IN_A_FOLDER: Final = re.compile(r"[#?\[\]\\]|%[0-9A-Fa-f]{2}")


def refuse_unfit_root(root: str) -> None:
    """Refuse (`ValueError`) a folder of tables that Delta takes for another one."""
    if "://" in root:
        return
    folder = str(Path(root).absolute())
    found = _NOT_IN_A_FOLDER.search(folder)
    if found is not None:
        msg = f"'tables.root' {folder} contains {found[0]}, which Delta takes for a part of a URI"
        raise ValueError(msg)


class Branch(BaseModel):
    """One frozen branch of the settings tree."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StoreSettings(Branch):
    """The object store of tables and checkpoint. What is not set here comes from where AWS's own tools look."""

    endpoint: str | None = Field(
        None,
        description="URL of a store that speaks S3; null: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else Amazon's own",
    )
    region: str | None = Field(None, description="null: AWS_REGION, AWS_DEFAULT_REGION, else us-east-1")
    access_key_id: SecretStr | None = Field(
        None, description="null: AWS_ACCESS_KEY_ID, else what the machine or its role has"
    )
    secret_access_key: SecretStr | None = Field(None, description="null: AWS_SECRET_ACCESS_KEY, likewise")
    session_token: SecretStr | None = Field(None, description="null: AWS_SESSION_TOKEN, likewise")
    options: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="further options of delta-rs, as azure_storage_account_key or google_service_account; "
        "no value is printed. Those of Spark are entries of spark.conf",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            msg = f"'store.endpoint' {self.endpoint} does not begin with http:// or https://"
            raise ValueError(msg)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            msg = "only one of 'store.access_key_id' and 'store.secret_access_key' is set"
            raise ValueError(msg)
        return self


_UNCAPPED_THROTTLE_MS: Final = 3_600_000


def _known_cap(cap: object) -> object:
    if cap in {"sample_window", "window", "none"}:
        return cap
    try:
        cap_ms = int(str(cap))
    except ValueError:
        cap_ms = 0
    if cap_ms <= 0:
        message = "must be sample_window, window, none or milliseconds above 0"
        raise ValueError(message)
    return cap_ms


Cap = Annotated[Literal["sample_window", "window", "none"] | int, BeforeValidator(_known_cap)]


class KafkaSettings(Branch):
    """Where the topics live and how every Kafka client of the job signs in."""

    bootstrap_servers: str | None = Field(None, description="host:port[,host:port…] of the cluster")
    usage_topic: str = Field(USAGE_TOPIC, description="usage events; must be on LogAppendTime")
    throttle_topic: str = Field(THROTTLE_TOPIC, description="throttles and releases; compacted")
    marker_topic: str = Field(MARKER_TOPIC, description="holds the publish marker as a group offset")
    client: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="client.properties entries (security.protocol, sasl.mechanism, …) for every client; "
        "secrets as ${env:NAME}, ${file:/path}, ${file:/path:key} or ${dir:/path:name}",
    )
    transaction_timeout_ms: int = Field(15_000, ge=1_000, description="longest life of one transaction")


class TablesSettings(Branch):
    """Where the Delta tables live, and how long their rows are kept."""

    root: str = Field(
        ".kquota/tables", description="a folder, or a place in an object store: s3://…, abfss://… or gs://…"
    )
    usage_retention_ms: int = Field(
        7_200_000, ge=60_000, description="how long rows of `usage` and `sensor_state` are kept"
    )
    seconds_retention_ms: int = Field(
        604_800_000, ge=3_600_000, description="how long rows of `usage_by_second` are kept"
    )
    history_retention_ms: int = Field(
        7_776_000_000,
        ge=3_600_000,
        description="how long decisions, throttles, batches, dead letters and the roll-ups by minute are kept",
    )


class StreamSettings(Branch):
    """The streaming query."""

    checkpoint: str = Field(
        ".kquota/checkpoint", description="Spark's checkpoint of this job: a folder, or a place in an object store"
    )
    trigger_ms: int = Field(500, ge=50, description="shortest time between the starts of two micro-batches")
    max_offsets_per_trigger: int = Field(2_000_000, gt=0, description="most messages one micro-batch takes")
    starting_offsets: Literal["earliest", "latest"] = Field(
        "earliest", description="where a job without checkpoint and without stored batches begins"
    )
    max_decision_age_ms: int = Field(
        10_000,
        gt=0,
        description="a batch older than this records its decisions and publishes none; usage that is older after an "
        "outage leads to one burst of debt at most",
    )
    max_event_age_ms: int = Field(
        86_400_000, ge=60_000, description="an event dated longer than this before its append time is a dead letter"
    )
    clock_tolerance_ms: int = Field(
        2_000, ge=0, description="an event further ahead of the driver's clock than this is dated back to it"
    )
    sensor_state_interval_ms: int = Field(10_000, ge=1_000, description="how often buckets are written")
    rollup_interval_ms: int = Field(
        60_000, ge=100, description="how often usage and throttles are rolled up, by second and by minute"
    )
    restart_limit: int = Field(5, ge=0, description="in-process restarts of a failed query in a row")


class EngineSettings(Branch):
    """Kafka's quota settings, under Kafka's defaults (quota.window.num, quota.window.size.seconds)."""

    num_samples: int = Field(11, ge=1, le=31, description="sample windows of a rate (10 whole + 1 current)")
    sample_window_ms: int = Field(1_000, ge=100, description="span of one sample window")
    producer_byte_rate_cap: Cap = Field("window", description="longest slice of a producer throttle")
    consumer_byte_rate_cap: Cap = Field("window", description="longest slice of a consumer throttle")
    request_percentage_cap: Cap = Field("sample_window", description="longest slice of a request throttle")
    carry_debt: bool = Field(True, description="false gives Kafka's rate alone, without the token bucket")

    @property
    def late_after_ms(self) -> int:
        """Age at which an event is no longer part of the rate: N · w, as in Kafka. At exactly this age it is not."""
        return self.num_samples * self.sample_window_ms

    @property
    def rate_span_ms(self) -> int:
        """How far back from an instant the windows of a rate may reach: (N + 1) · w."""
        return (self.num_samples + 1) * self.sample_window_ms

    def throttle_caps(self) -> "ThrottleCaps":
        """The cap of each quota type."""
        from quota.throttle_time import ThrottleCaps  # noqa: PLC0415 - loads numpy

        return ThrottleCaps(self.producer_byte_rate_cap, self.consumer_byte_rate_cap, self.request_percentage_cap)

    def longest_throttle_ms(self) -> int:
        """The longest slice that these caps allow for any quota type. A type without a cap counts as one hour."""
        caps = self.throttle_caps()
        slices_ms = (caps.cap_ms(name, self.rate_span_ms, self.sample_window_ms) for name in QUOTA_TYPES)
        return max(_UNCAPPED_THROTTLE_MS if slice_ms is None else slice_ms for slice_ms in slices_ms)


class PurgatorySettings(Branch):
    """How throttles are held, renewed and released."""

    min_hold_ms: int = Field(
        1_000, ge=1, le=60_000,
        description="shortest time for which a throttle, or more of it, is published; what is less stays owed",
    )  # fmt: skip
    client_lag_ms: int = Field(
        500, ge=0, description="time from publishing a record until a client obeys it; part of the lead of a check"
    )
    min_renew_lead_ms: int = Field(300, ge=0, description="shortest time from a check to the end of its throttle")


class SyncSettings(Branch):
    """`kquota quotas sync`, which keeps the brokers' own quotas."""

    period_ms: int = Field(1_000, ge=100, description="how often it looks for new quotas and new usage")
    describe_every_ms: int = Field(10_000, ge=1_000, description="how often it compares with what the brokers hold")
    users: tuple[str, ...] = Field((), description="whose rows it puts on the brokers; none = all rows")
    own_entries_per_user: int = Field(
        100, ge=0, description="most entries on the brokers for clients of one user that a default bounds"
    )


class MetricsSettings(Branch):
    """Where Prometheus reads metrics: of `run`, `meter` and `quotas sync`. The gate has them at its own address."""

    host: str = Field("127.0.0.1", min_length=1, description="a name or address of this machine; there is no token")
    port: int | None = Field(
        None, ge=0, le=65_535, description="null: no metrics; 0: any free one. Each program on a machine needs its own"
    )


class SparkSettings(Branch):
    """The Spark session of the job."""

    master: str | None = Field(None, description="null: local[*], or what spark-submit sets")
    shared_folders: tuple[str, ...] = Field(
        (), description="folders that every node of the cluster mounts: state may be there in deploy mode cluster"
    )
    conf: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="further Spark settings, passed on unchanged; no value is printed, as many hold credentials. "
        "Without spark.driver.memory the driver's JVM has 512m of heap, and 64m for each core above four",
    )

    def plain_conf(self) -> dict[str, str]:
        """The entries of `conf` as Spark takes them. They may hold secrets, so they are never printed."""
        return {key: value.get_secret_value() for key, value in self.conf.items()}

    def with_default_conf(self, entries: Mapping[str, str]) -> Self:
        """These settings with further entries of `conf`; an entry that is there already keeps its value."""
        return self.model_validate({**self.model_dump(), "conf": {**entries, **self.plain_conf()}})


class Settings(Branch):
    """The whole tree of one job."""

    job: str = Field(
        "kquota",
        pattern=r"^[a-z0-9][a-z0-9-]{0,47}$",
        description="its name, also of lock, group and transactions",
    )
    cluster: str | None = Field(None, description="written to every row; null: the broker's cluster id")
    scope: Literal["cluster", "broker"] | None = Field(
        None, description="null: the quota table's own kquota.scope property"
    )
    run_dir: Path = Field(Path(".kquota"), description="folder of the lock file of a job with tables in a store")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="how much the job logs")
    kafka: KafkaSettings = KafkaSettings()
    tables: TablesSettings = TablesSettings()
    store: StoreSettings = StoreSettings()
    stream: StreamSettings = StreamSettings()
    engine: EngineSettings = EngineSettings()
    purgatory: PurgatorySettings = PurgatorySettings()
    sync: SyncSettings = SyncSettings()
    metrics: MetricsSettings = MetricsSettings()
    spark: SparkSettings = SparkSettings()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        topics = (self.kafka.usage_topic, self.kafka.throttle_topic, self.kafka.marker_topic)
        if len(set(topics)) < len(topics):
            msg = f"the three topics of 'kafka' are not different: {', '.join(topics)}"
            raise ValueError(msg)
        refuse_unfit_root(self.tables.root)
        return self
