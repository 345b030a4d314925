"""What `kquota doctor` looks at. Every check ends in a finding; none of them raises."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import pyarrow.compute as pc

from pipeline.brokers.metering import metering_findings
from pipeline.brokers.running import sync_findings
from pipeline.clock import wall_ms
from pipeline.cluster.acls import PermissionMissing, acls_of
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error, refuse_unpermitted
from pipeline.cluster.topics import check_topics, refuse_other_throttle_topics, resource_names, topic_ids, wanted_topics
from pipeline.command_line import command_text
from pipeline.errors import PipelineError, TableMissing, Unreachable
from pipeline.job.job_run import refuse_other_messages
from pipeline.job.status import ahead_ms, job_process, last_beat_ms, stalled_after_ms
from pipeline.jvm.jars import JarStore, jars_of
from pipeline.jvm.java import CHOSEN, find_java
from pipeline.meter.reporter import OTHERS
from pipeline.meter.scrape_meter import ACCURACY
from pipeline.settings.model import Settings
from pipeline.stream.checkpoint import Checkpoint, CheckpointFiles, spans_and_newest
from pipeline.stream.job_tables import BatchFacts
from pipeline.stream.recovery import newest_stored
from pipeline.stream.session import jar_sets
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, changes_of_others, owner_of
from pipeline.tables.object_store import STORE_SCHEMES, refuse_unfit, scheme_of
from pipeline.tables.port import Condition, TableUnreadable, is_local, table_uri, tables_of_another_job
from pipeline.tables.queries import newest_batch_under, read_table, recent_usage
from pipeline.tables.quotas.source import in_force, valid_snapshot
from pipeline.tables.quotas.table import EditedTable, QuotaTable, State, TenantTable, TenantTableState
from pipeline.tables.quotas.tenants import tenants_text
from pipeline.throttle.publisher import refuse_other_tables
from pipeline.throttle.topic import KafkaThrottleTopic
from quota.units import age_text

_LITTLE_SPACE_BYTES = 1 << 30
_MOST_USERS: Final = 10
"""How many users of one kind of finding get a line each."""


Check = Callable[[Settings], Iterator["Diagnosis"]]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at."""

    severity: Literal["ok", "warning", "error"]
    subject: str
    text: str


def diagnose(settings: Settings) -> Iterator[Diagnosis]:
    """Look at everything, in the order a start needs it; findings come as they are made."""
    for finding in _findings(settings):
        yield _harmless(finding, settings)


def _findings(settings: Settings) -> Iterator[Diagnosis]:
    checks: list[Check] = [_java, _jars, _disk, _store, _tables, _meters, _clock, _quotas, _checkpoint]
    cluster: list[Check] = [_cluster, _topics, _sync, _metering]
    checks += cluster if settings.kafka.bootstrap_servers else [_no_cluster]
    for check in checks:
        try:
            yield from check(settings)
        except PipelineError as exc:
            yield Diagnosis("error", check.__name__.removeprefix("_"), str(exc))
            if check is _cluster and isinstance(exc, Unreachable):
                return  # the others would wait for the same brokers


def _harmless(finding: Diagnosis, settings: Settings) -> Diagnosis:
    """The finding; with another fix in place of one that deletes something, while the job works."""
    found, has_fix, fix = finding.text.partition("Fix: ")
    sign = _sign_of_life(settings) if has_fix and "delete" in fix else None
    if sign is None:
        return finding
    instead = "see whether the settings are those of this job; if they are, stop it and ask again"
    return replace(finding, text=f"{found}But {sign}. Fix: {instead}: {command_text('doctor')}")


def _sign_of_life(settings: Settings) -> str | None:
    """What shows that the job works, here or elsewhere; None if nothing does."""
    place = settings.run_dir, settings.job, settings.tables.root
    pid, batch = job_process(*place), None
    if pid is not None:
        return f"job {settings.job!r} runs as process {pid}"
    with suppress(PipelineError):  # the tables have a check of their own
        batch = newest_batch_under(settings.tables.root)
    seen_ms = max(last_beat_ms(*place) or 0, 0 if batch is None else batch["processed_at_ms"])
    age_ms = max(wall_ms() - seen_ms, 0)
    return None if age_ms > stalled_after_ms(settings) else f"job {settings.job!r} worked {age_text(age_ms)} ago"


def _no_cluster(_settings: Settings) -> Iterator[Diagnosis]:
    yield Diagnosis("warning", "cluster", "not looked at: no --bootstrap-server")


def _java(_settings: Settings) -> Iterator[Diagnosis]:
    java = find_java()
    kind = "JDK" if java.has_compiler else "JRE"
    another = "" if java.origin == CHOSEN else f" ({CHOSEN} chooses another)"
    yield Diagnosis("ok", "java", f"{kind} {java.version} at {java.home}, from {java.origin}{another}")


def _jars(settings: Settings) -> Iterator[Diagnosis]:
    store = JarStore(jars_of(*jar_sets(settings)))
    problems = list(store.verify().values())
    for problem in problems[:1]:
        others = f"{len(problems)} of {len(store.locked)} are missing or altered, the first: " if problems[1:] else ""
        yield Diagnosis("error", "jars", f"{others}{problem}")
    if not problems:
        yield Diagnosis("ok", "jars", "every locked jar that is needed is there and has its sha256")


def _disk(settings: Settings) -> Iterator[Diagnosis]:
    root = settings.tables.root
    if not is_local(root):
        return
    place = Path(root)
    while not place.exists():
        place = place.parent
    free_bytes = shutil.disk_usage(place).free
    severity: Literal["ok", "warning"] = "warning" if free_bytes < _LITTLE_SPACE_BYTES else "ok"
    yield Diagnosis(severity, "disk", f"{free_bytes / 1e9:.1f} GB free under {root}")


def _store(settings: Settings) -> Iterator[Diagnosis]:
    for address in (settings.tables.root, settings.stream.checkpoint):
        if scheme_of(address) in STORE_SCHEMES:
            refuse_unfit(address)
            text = f"{address}: lists, writes, reads, deletes, and refuses to overwrite (conditional put)"
            yield Diagnosis("ok", "store", text)


def _tables(settings: Settings) -> Iterator[Diagnosis]:
    for name, definition in TABLES.items():
        uri = table_uri(settings.tables.root, name)
        try:
            rows = read_table(uri, definition.partition_by or [*definition.model.model_fields][:1]).num_rows
            yield Diagnosis("ok", "tables", f"{name}: {rows} rows")
            yield from (Diagnosis(severity, "tables", text) for severity, text in changes_of_others(uri, definition))
        except TableUnreadable as exc:  # each is named: they can be damaged together
            yield Diagnosis("error", "tables", str(exc))


def _meters(settings: Settings) -> Iterator[Diagnosis]:
    """What recent usage shows of its meters. Rates do not say how many requests there were."""
    measures = ("request_count", "produced_bytes", "fetched_bytes")
    usage = recent_usage(table_uri(settings.tables.root, "usage"), ["broker_id", "user", "client_id", *measures])
    if usage is None:
        return
    sums = usage.group_by("broker_id").aggregate([(name, "sum") for name in measures]).to_pylist()
    used = [row for row in sums if row["produced_bytes_sum"] or row["fetched_bytes_sum"]]
    found = [row["broker_id"] for row in used if not row["request_count_sum"]]
    if found:
        yield Diagnosis("ok", "meter", f"scrapes are the source of brokers {_named(found)}: {ACCURACY}")
    shared = usage.filter(pc.equal(usage["client_id"], OTHERS)).group_by("user").aggregate([("broker_id", "distinct")])
    for row in shared.to_pylist()[:_MOST_USERS]:
        yield Diagnosis("warning", "meter", _shared_sum(row["user"], row["broker_id_distinct"]))


def _shared_sum(user: str, brokers: Sequence[str]) -> str:
    bound = command_text("quotas", "alter", "--user", user, "--add-config", "producer_byte_rate=1048576")
    return (
        f"user {user!r} has more client-ids than the reporter of brokers {_named(brokers)} counts apart. "
        f"The others are reported as client-id '{OTHERS}': the user's quotas count them, those of client-ids do not. "
        f"Fix: bound the user as a whole, such as: {bound}"
    )


def _named(brokers: Iterable[str]) -> str:
    return ", ".join(sorted(one or "?" for one in brokers))


def _clock(settings: Settings) -> Iterator[Diagnosis]:
    batch = newest_batch_under(settings.tables.root)
    if batch is None:
        return
    yield from _clamped(settings, batch["evaluated_at_ms"])
    ahead, epoch = ahead_ms(batch["evaluated_at_ms"], wall_ms()), f"time epoch {batch['time_epoch']}"
    if not ahead:
        yield Diagnosis("ok", "clock", f"the newest micro-batch is not ahead of the wall clock, {epoch}")
        return
    found = f"the newest micro-batch is {age_text(ahead)} ahead of the wall clock, {epoch}"
    cause = "a clock was ahead and was set back, or one is behind now"
    fix = "set the clocks of the brokers, of the job's machine and of this one"
    yield Diagnosis("warning", "clock", f"{found}: {cause}. Fix: {fix}; the next micro-batch begins a new time epoch")


_CLAMPED_SHARE: Final = 0.01
_CLAMPED_OVER_MS: Final = 600_000


def _clamped(settings: Settings, newest_ms: int) -> Iterator[Diagnosis]:
    """The share of events that are dated after their messages, or ahead of the job's clock."""
    since: Condition = ("evaluated_at_ms", ">", newest_ms - _CLAMPED_OVER_MS)
    counts = read_table(table_uri(settings.tables.root, "batches"), ["good_count", "clamped_count"], [since])
    events, clamped = (pc.sum(counts[name]).as_py() or 0 for name in counts.column_names)
    if clamped > _CLAMPED_SHARE * events:
        share = f"{clamped / events:.1%} of the events of the newest 10 minutes"
        cause = "a meter's clock is ahead, or a broker's is behind"
        text = f"{share} are dated after their messages, and count as of those: {cause}. Fix: set that clock"
        yield Diagnosis("warning", "clock", text)


def _quotas(settings: Settings) -> Iterator[Diagnosis]:
    quotas, tenants = QuotaTable(settings.tables.root), TenantTable.found(settings.tables.root)
    yield from _edited(quotas, valid_snapshot, lambda found: f"{len(found.rows)} entities, {found.scope}, {found.mode}")
    if tenants is not None:
        yield from _edited(tenants, TenantTableState.tenants, lambda found: tenants_text(len(found.rows)))


def _edited(
    table: EditedTable[State], check: Callable[[State], object], facts: Callable[[State], str]
) -> Iterator[Diagnosis]:
    """What is wrong with the rows of a table that operators edit; if nothing is, facts about it, if it has any."""
    name = table.kind.table
    kept, refused = in_force(table, None, check)
    if refused is None:
        if text := facts(kept):
            yield Diagnosis("ok", name, f"v{kept.version}: {text}")
        return
    for problem in refused.problems:
        yield Diagnosis("error", name, f"v{refused.version}: {problem}")
    yield Diagnosis("error", name, _way_back(name, kept.version, refused.version))


def _way_back(name: str, kept_version: int, invalid_version: int) -> str:
    """Which version the job keeps while the newest is invalid, and how to make the table valid again."""
    if kept_version == invalid_version:
        help_text = command_text(*_DELETING[name], "--help")
        return f"no version is valid: the job does not start. Fix: delete the rows named; how: {help_text}"
    rollback, history = command_text(name, "rollback", str(kept_version)), command_text(name, "history")
    return (
        f"v{kept_version} is in force, the newest valid version. Fix: {rollback}, or correct the rows named; "
        f"{history} shows who wrote v{invalid_version}"
    )


_DELETING: Final = {"quotas": ("quotas", "sql"), "tenants": ("tenants", "delete")}


def _checkpoint(settings: Settings) -> Iterator[Diagnosis]:
    root, folder = settings.tables.root, settings.stream.checkpoint
    owner = owner_of(root)
    if owner not in {None, settings.job}:
        raise tables_of_another_job(root, settings.job, str(owner))
    files = CheckpointFiles(folder)
    # A running job plans a batch in its checkpoint, then stores it in the tables, then commits it in its checkpoint. So
    # the newest committed batch is read before the tables, and the newest planned one after them.
    before = Checkpoint.read(files)
    if before is None:
        yield Diagnosis("ok", "checkpoint", f"none at {folder}: the job begins where its tables end")
        return
    usage, batches = (DeltaRsWriter(table_uri(root, name), settings.job) for name in ("usage", "batches"))
    versions = (table.recorded_version(before.query_id) for table in (usage, batches))
    stored = max((version for version in versions if version is not None), default=None)
    newest = newest_stored(usage, batches)
    after = Checkpoint.read(files)
    if after is None or after.query_id != before.query_id:  # a start has made a new one meanwhile
        yield from _checkpoint(settings)
        return
    checkpoint = replace(before, planned=after.planned)
    checkpoint.check({before.query_id: stored}.get, None if newest is None else newest.evaluation.query_id)
    yield Diagnosis("ok", "checkpoint", f"{folder} fits the tables, batch {checkpoint.committed} is committed")


def _topics(settings: Settings) -> Iterator[Diagnosis]:
    """Whether the topics are those of the job's newest batch: the messages it goes on with, and what it publishes."""
    kafka, batch = settings.kafka, newest_batch_under(settings.tables.root)
    before = {} if batch is None else BatchFacts.from_row(batch).ids_of_topics
    access = ClusterAccess.from_settings(kafka)
    with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
        now = topic_ids(admin, [kafka.usage_topic, kafka.throttle_topic, kafka.marker_topic])
    checkpoint = Checkpoint.read(CheckpointFiles(settings.stream.checkpoint))
    if checkpoint is not None:
        try:
            spans, _ = spans_and_newest(access, kafka.usage_topic)
            refuse_other_messages(settings, checkpoint, spans, before, now)
        except PipelineError as exc:
            yield Diagnosis("error", "checkpoint", str(exc))
        else:
            yield Diagnosis("ok", "checkpoint", "the next batch's messages are on the usage topic")
    try:
        own_id = DeltaRsWriter(table_uri(settings.tables.root, "throttle_events"), settings.job).table_id
    except (TableMissing, TableUnreadable):  # the tables have a check of their own
        return
    refuse_other_throttle_topics(settings, before, now)
    if kafka.throttle_topic in now:
        with closing(KafkaThrottleTopic.from_settings(settings, access)) as topic:
            refuse_other_tables(settings.job, topic.committed(), own_id)
        yield Diagnosis("ok", "topics", "what is published comes out of these tables")


_CONNECT_MS: Final = 1_200
"""A broker that has not answered by then counts as dead."""


def _cluster(settings: Settings) -> Iterator[Diagnosis]:
    access = ClusterAccess.from_settings(settings.kafka)
    with access.admin(_CONNECT_MS) as admin, as_cluster_error(access.bootstrap_servers):
        yield Diagnosis("ok", "cluster", f"{access.bootstrap_servers} answers")
        rights = acls_of("job", resource_names(settings))
        refuse_unpermitted(admin, rights, access.client_options(), access.bootstrap_servers)
        findings = check_topics(admin, wanted_topics(settings), access.bootstrap_servers)
    for finding in findings:
        yield Diagnosis(finding.severity, "topics", f"{finding}. Fix: {finding.fix}")
    if not findings:
        yield Diagnosis("ok", "topics", "all three are there and fit")
    group, marker = f"kquota-{settings.job}", settings.kafka.marker_topic
    cause = f"its offset on '{marker}' is how far the throttle topic is published, and no record is there"
    yield Diagnosis("ok", "topics", f"leave group {group!r} out of lag exporters, which show a lag below 0: {cause}")


def _sync(settings: Settings) -> Iterator[Diagnosis]:
    for severity, text in sync_findings(settings, wall_ms()):
        yield Diagnosis(severity, "sync", text)


def _metering(settings: Settings) -> Iterator[Diagnosis]:
    with suppress(PermissionMissing):  # only the sync needs the right
        for severity, text in metering_findings(settings):
            yield Diagnosis(severity, "metering", text)
