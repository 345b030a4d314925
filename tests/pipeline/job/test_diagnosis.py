"""What `kquota doctor` says of a checkpoint without a JVM."""

import json
import os
import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.clock import wall_ms
from pipeline.cluster.topics import Finding
from pipeline.job.diagnosis import Diagnosis, diagnose
from pipeline.job.status import Heartbeat, job_lock, stalled_after_ms
from pipeline.meter.reporter import OTHERS
from pipeline.meter.scrape_meter import ACCURACY
from pipeline.settings.model import KafkaSettings, Settings, StreamSettings, TablesSettings
from pipeline.stream.checkpoint import CheckpointFiles
from pipeline.stream.job_tables import BatchFacts
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.object_store import reach_with
from pipeline.tables.port import table_uri
from pipeline.throttle.publisher import Marker
from quota.replay import Evaluation
from schemas.arrow import conform
from schemas.usage import UsageRow
from tests.object_store import BUCKET, ObjectStore
from tests.pipeline.demo.played import new_job, throttle_one
from tests.pipeline.stream.test_checkpoint import write_checkpoint
from tests.quota.factories import table, usage_row
from tests.touched_tables import add_columns, add_to_log


def findings(root: Path, checkpoint: str) -> list[Diagnosis]:
    tables = TablesSettings(root=str(root / "tables"))
    create_missing(tables.root)
    settings = Settings(tables=tables, stream=StreamSettings(checkpoint=checkpoint), run_dir=root)
    return [finding for finding in diagnose(settings) if finding.subject == "checkpoint"]


@pytest.mark.parametrize(
    ("ahead_ms", "severity", "text"),
    [
        (0, "ok", "the newest micro-batch is not ahead of the wall clock, time epoch 0"),
        (3_600_000, "warning", "ahead of the wall clock, time epoch 0: a clock was ahead and was set back"),
    ],
)
def test_event_time_ahead_of_the_wall_clock_is_shown_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_ms: int, severity: str, text: str
) -> None:
    job = new_job(tmp_path)
    throttle_one(job)
    monkeypatch.setattr("pipeline.job.diagnosis.wall_ms", lambda: job.clock.wall_ms - ahead_ms)
    finding = next(one for one in diagnose(job.settings) if one.subject == "clock")
    assert finding.severity == severity
    assert text in finding.text
    assert ("Fix: " in finding.text) is (severity == "warning")


@pytest.mark.parametrize(("ahead", "share"), [(1, None), (2, "2.0% of the events")])
def test_more_than_one_event_in_a_hundred_dated_after_its_message_is_told(
    tmp_path: Path, ahead: int, share: str | None
) -> None:
    job = new_job(tmp_path)
    for number in range(100):
        at_ms = job.clock.wall_ms + (1_000 if number < ahead else 0)
        job.send(f'{{"event_time_ms":{at_ms},"user":"u","client_id":"c"}}'.encode())
    job.step()
    told = [one.text for one in diagnose(job.settings) if "dated after their messages" in one.text]
    assert [text.partition(" of the newest")[0] for text in told] == ([] if share is None else [share])


def test_brokers_whose_usage_comes_from_scrapes_are_named_with_what_is_not_known(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    for broker_id, request_count in (("1", 0), ("2", 5), ("3", 0)):
        who = {"user": "alice", "client_id": "etl", "broker_id": broker_id}
        event = {"event_time_ms": job.clock.wall_ms, **who, "produced_bytes": 10, "request_count": request_count}
        job.send(json.dumps(event).encode())
    job.step()
    found = [finding.text for finding in diagnose(job.settings) if finding.subject == "meter"]
    assert found == [f"scrapes are the source of brokers 1, 3: {ACCURACY}"]
    page = (Path(__file__).parents[3] / "docs" / "meter.md").read_text("utf-8")
    assert ACCURACY.capitalize() in " ".join(page.split())


def test_users_whose_client_ids_share_a_sum_are_named_with_a_bound_that_counts_them(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    for broker_id, client_id in (("2", OTHERS), ("1", OTHERS), ("1", "etl")):
        who = {"user": "it's", "client_id": client_id, "broker_id": broker_id}
        job.send(json.dumps({"event_time_ms": job.clock.wall_ms, **who, "produced_bytes": 10}).encode())
    job.step()
    (found,) = [finding for finding in diagnose(job.settings) if finding.subject == "meter"]
    assert found.severity == "warning"
    assert found.text.startswith('user "it\'s" has more client-ids than the reporter of brokers 1, 2 counts apart.')
    command = shlex.split(found.text.partition("such as: ")[2])
    assert command[-5:] == ["alter", "--user", "it's", "--add-config", "producer_byte_rate=1048576"]


def test_what_others_or_a_power_loss_have_done_is_told_of_each_table(tmp_path: Path) -> None:
    root = str(tmp_path / "tables")
    create_missing(root)
    add_columns(f"{root}/decisions")
    add_to_log(f"{root}/usage", ["clustering", "domainMetadata"])
    cut = ("batches", "dead_letters")
    for name in cut:
        add_columns(f"{root}/{name}")
        Path(root, name, "_delta_log", f"{1:020}.json").write_bytes(b"")
    settings = Settings(tables=TablesSettings(root=root), run_dir=tmp_path)
    told = [(one.severity, one.text) for one in diagnose(settings) if one.subject == "tables"]
    wrong = [text for severity, text in told if severity == "error"]
    assert [text.partition("Fix: ")[0].removeprefix(f"{root}/") for text in wrong] == [
        "usage cannot be written: others have given it table features that kquota's library does not have "
        "(clustering, domainMetadata). ",
        *(f"{name} cannot be read: its commit {1:020}.json is empty, as after a power loss. " for name in cut),
    ]
    assert ("ok", "decisions: columns of others, without effect: team, seen, contact (null in new rows)") in told


def test_the_checkpoint_of_a_job_that_was_killed_fits_its_tables(tmp_path: Path) -> None:
    create_missing(str(tmp_path / "tables"))
    evaluation = Evaluation("q", 0, 1, 1)
    facts = BatchFacts(evaluation, 1, "", "", "{}", 1, 0, 0, 0, 0)
    usage = conform(table([usage_row(1)]), UsageRow, cluster="c", request_count=1, **asdict(evaluation))
    # The other rows of `batches` come with the next start.
    for name, rows, newest in (("usage", usage, 3), ("batches", facts.to_row("c"), 0)):
        writer = DeltaRsWriter(table_uri(str(tmp_path / "tables"), name), "kquota")
        writer.raise_epoch(1)
        writer.append(rows, {"q": newest}, {})
    write_checkpoint(tmp_path / "checkpoint", planned=3, committed=3)
    (finding,) = findings(tmp_path, str(tmp_path / "checkpoint"))
    assert (finding.severity, "fits the tables" in finding.text) == ("ok", True)


@pytest.mark.parametrize("checkpoint", ["hdfs://namenode/checkpoint", "dbfs:/checkpoint"])
def test_a_checkpoint_with_an_unknown_scheme_is_an_error(tmp_path: Path, checkpoint: str) -> None:
    (finding,) = findings(tmp_path, checkpoint)
    assert finding.severity == "error"
    assert finding.text.startswith(f"'stream.checkpoint' {checkpoint} has a scheme that is not known here")


@pytest.mark.parametrize("is_uri", [False, True])
def test_a_checkpoint_on_this_disk_is_compared_with_the_tables(tmp_path: Path, is_uri: bool) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint = folder.as_uri() if is_uri else str(folder)
    assert findings(tmp_path, checkpoint) == [
        Diagnosis("ok", "checkpoint", f"none at {checkpoint}: the job begins where its tables end")
    ]
    write_checkpoint(folder, planned=3, committed=3)
    (finding,) = findings(tmp_path, checkpoint)
    assert finding.severity == "error"
    assert f"checkpoint {checkpoint} does not fit the tables" in finding.text


def test_a_store_is_tried_and_a_checkpoint_there_is_compared_without_spark(store: ObjectStore, tmp_path: Path) -> None:
    root, checkpoint = store.address("doctor/tables"), store.address("doctor/checkpoint")
    create_missing(root)
    write_checkpoint(store.folder / BUCKET / "doctor" / "checkpoint", planned=3, committed=3)
    settings = Settings(
        store=store.settings,
        tables=TablesSettings(root=root),
        stream=StreamSettings(checkpoint=checkpoint),
        run_dir=tmp_path,
    )
    found = [finding for finding in diagnose(settings) if finding.subject in {"store", "disk", "tables", "checkpoint"}]
    told = [finding.text for finding in found if finding.severity == "ok"]
    works = "lists, writes, reads, deletes, and refuses to overwrite (conditional put)"
    assert told[:2] == [f"{root}: {works}", f"{checkpoint}: {works}"]
    assert len(told) == 2 + len(TABLES)
    (wrong,) = (finding for finding in found if finding.severity != "ok")
    assert f"checkpoint {checkpoint} does not fit the tables" in wrong.text


def test_a_store_that_can_not_be_used_is_told_once_for_each_address(store: ObjectStore, tmp_path: Path) -> None:
    tables = TablesSettings(root="s3://nobucket/tables")
    reach_with(store.settings, tables.root)
    settings = Settings(store=store.settings, tables=tables, run_dir=tmp_path)
    (wrong,) = (finding for finding in diagnose(settings) if finding.subject == "store")
    assert wrong.severity == "error"
    assert wrong.text.startswith("cannot list s3://nobucket/tables: the store answers NoSuchBucket. Fix: correct")


class SteppingJob:
    """A job of which each batch is planned in the checkpoint, stored in `usage`, and committed in the checkpoint.

    Its tables have a batch of an earlier query. Its own have no rows in `batches` yet: they come later than usage.

    Args:
        steps: Of three a batch, made before anything is read.
        hurries_at: Number of the read of doctor before which a whole batch passes.
    """

    def __init__(self, folder: Path, steps: int, hurries_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        root = str(folder / "tables")
        self.settings = Settings(
            tables=TablesSettings(root=root),
            stream=StreamSettings(checkpoint=str(folder / "checkpoint")),
            run_dir=folder,
        )
        self.reads = 0
        self._hurries_at, self._steps, self._checkpoint = hurries_at, 0, folder / "checkpoint"
        create_missing(root)
        self._usage, batches = (DeltaRsWriter(table_uri(root, name), "kquota") for name in ("usage", "batches"))
        for writer in (self._usage, batches):
            writer.raise_epoch(1)
        earlier = self._store("earlier", 7)
        batches.append(earlier.to_row("c"), earlier.versions, earlier.to_metadata())
        write_checkpoint(self._checkpoint, planned=-1, committed=-1)
        for _ in range(steps):
            self._step()
        for kind, name in (
            (CheckpointFiles, "names"),
            (DeltaRsWriter, "recorded_version"),
            (DeltaRsWriter, "commit_metadata"),
        ):
            monkeypatch.setattr(kind, name, self._noted(getattr(kind, name)))

    def _noted(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            if self.reads == self._hurries_at:
                for _ in range(3):
                    self._step()
            self.reads += 1
            return read(*arguments)

        return noted

    def _step(self) -> None:
        batch_id, step = divmod(self._steps, 3)
        self._steps += 1
        if step == 1:
            self._store("q", batch_id)
        else:
            (self._checkpoint / ("offsets" if step == 0 else "commits") / str(batch_id)).write_text("v1\n{}\n{}")

    def _store(self, query_id: str, batch_id: int) -> BatchFacts:
        at_ms = batch_id + (100 if query_id == "q" else 1)
        facts = BatchFacts(Evaluation(query_id, batch_id, at_ms, 1), at_ms, "", "", "{}", 1, 0, 0, 0, 0)
        rows = conform(table([usage_row(1)]), UsageRow, cluster="c", request_count=1, **asdict(facts.evaluation))
        self._usage.append(rows, facts.versions, facts.to_metadata())
        return facts


@pytest.mark.parametrize("steps", [0, 2, *(pytest.param(steps, marks=pytest.mark.long) for steps in (1, 3))])
def test_a_checkpoint_fits_at_whatever_moment_of_a_running_job_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    hurries_at, reads = -1, 0
    while hurries_at <= reads:
        with monkeypatch.context() as patched:
            for slow in ("_java", "_jars"):
                patched.setattr(f"pipeline.job.diagnosis.{slow}", lambda _settings: iter(()))
            job = SteppingJob(tmp_path / str(hurries_at), steps, hurries_at, patched)
            (found,) = (one for one in diagnose(job.settings) if one.subject == "checkpoint")
        assert (found.severity, "fits the tables" in found.text) == ("ok", True), (hurries_at, found.text)
        hurries_at, reads = hurries_at + 1, job.reads
    assert reads >= 6


def test_a_fix_deletes_nothing_while_the_job_gives_signs_of_life(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", planned=3, committed=3)
    settings = Settings(run_dir=tmp_path)
    root = str(tmp_path / "tables")

    def fix() -> str:
        (finding,) = findings(tmp_path, str(tmp_path / "checkpoint"))
        assert finding.severity == "error"
        assert "does not fit the tables: it belongs to a query that has not written them. " in finding.text
        return finding.text.partition("written them. ")[2]

    assert "delete this one" in fix()
    instead = "see whether the settings are those of this job; if they are, stop it and ask again: "
    with job_lock(tmp_path, settings.job, root):
        assert fix().startswith(f"But job 'kquota' runs as process {os.getpid()}. Fix: {instead}")
    Heartbeat(tmp_path, settings.job, root).beat(wall_ms() - 1_000)
    assert re.match(rf"But job 'kquota' worked \d s ago\. Fix: {instead}", fix())
    Heartbeat(tmp_path, settings.job, root).beat(wall_ms() - stalled_after_ms(settings) - 1)
    assert "delete this one" in fix()


@pytest.mark.parametrize(
    ("stored", "marker", "found"),
    [
        ("first", "", "ok: what is published comes out of these tables"),
        ("first", "own", "ok: what is published comes out of these tables"),
        ("first", "other", "error: a job of the same name, 'kquota', publishes out of other tables: "),
        ("before", "", "error: topic 'quota.throttle.v1' was deleted and made anew, or this is another cluster: "),
    ],
)
def test_a_throttle_topic_made_anew_or_published_out_of_other_tables_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str, marker: str, found: str
) -> None:
    create_missing(root := str(tmp_path / "tables"))
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    ids = dict.fromkeys((kafka.usage_topic, kafka.throttle_topic, kafka.marker_topic), "first")
    before = {**ids, kafka.throttle_topic: stored}
    own_id = DeltaRsWriter(table_uri(root, "throttle_events"), "kquota").table_id
    mark = Marker(7, own_id if marker == "own" else marker)
    newest = dict.fromkeys(("processed_at_ms", "evaluated_at_ms", "time_epoch"), 0)
    monkeypatch.setattr("pipeline.job.diagnosis.BatchFacts.from_row", lambda _: SimpleNamespace(ids_of_topics=before))
    monkeypatch.setattr(
        "pipeline.job.diagnosis.newest_batch_under",
        lambda _: newest,
    )
    monkeypatch.setattr("pipeline.job.diagnosis.ClusterAccess.admin", lambda *_: nullcontext())
    monkeypatch.setattr("pipeline.job.diagnosis.topic_ids", lambda *_: ids)
    monkeypatch.setattr("pipeline.job.diagnosis.KafkaThrottleTopic.committed", lambda _: mark)
    monkeypatch.setattr("pipeline.job.diagnosis._cluster", lambda _settings: iter(()))
    for check in ("_sync", "_metering"):
        monkeypatch.setattr(f"pipeline.job.diagnosis.{check}", lambda _settings: iter(()))
    settings = Settings(tables=TablesSettings(root=root), run_dir=tmp_path, kafka=kafka)
    (finding,) = [one for one in diagnose(settings) if one.subject in {"topics", "throttle_topics"}]
    assert f"{finding.severity}: {finding.text}".startswith(found)


@pytest.fixture
def _a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that answers; its marker topic has two partitions."""
    fix = "kafka-topics --delete --topic quota.marker.v1 && kquota topics create"
    found = [Finding("quota.marker.v1", "error", "partitions", "2", "1", fix)]
    monkeypatch.setattr("pipeline.job.diagnosis.ClusterAccess.admin", lambda *_: nullcontext())
    monkeypatch.setattr("pipeline.job.diagnosis.refuse_unpermitted", lambda *_: None)
    monkeypatch.setattr("pipeline.job.diagnosis.check_topics", lambda *_: found)
    for check in ("_topics", "_sync", "_metering"):
        monkeypatch.setattr(f"pipeline.job.diagnosis.{check}", lambda _settings: iter(()))


@pytest.mark.usefixtures("_a_cluster")
def test_a_topic_is_not_to_be_deleted_while_the_job_works_and_the_group_without_a_lag_is_named(tmp_path: Path) -> None:
    create_missing(root := str(tmp_path / "tables"))
    settings = Settings(
        tables=TablesSettings(root=root), run_dir=tmp_path, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1")
    )

    def topics() -> list[str]:
        return [finding.text for finding in diagnose(settings) if finding.subject == "topics"]

    partitions, lag = topics()
    assert "Fix: kafka-topics --delete --topic" in partitions
    assert lag.startswith("leave group 'kquota-kquota' out of lag exporters, which show a lag below 0: ")
    with job_lock(tmp_path, settings.job, root):
        partitions, _ = topics()
    assert "delete" not in partitions
    assert "stop it and ask again: " in partitions
