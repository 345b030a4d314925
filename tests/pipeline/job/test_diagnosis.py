"""What `kquota doctor` finds: of clocks, meters, tables, stores, checkpoints and topics."""

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
from pipeline.job.diagnosis import Diagnosis, diagnose
from pipeline.job.status import Heartbeat, job_lock, stalled_after_ms
from pipeline.meter.reporter import OTHERS
from pipeline.settings.model import KafkaSettings, Settings, StreamSettings, TablesSettings
from pipeline.stream.checkpoint import CheckpointFiles
from pipeline.stream.job_tables import BatchFacts
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.throttle.publisher import Marker
from quota.decisions import Evaluation
from tests.faults.hand_job import HandJob
from tests.object_store import BUCKET, ObjectStore
from tests.pipeline.demo.played import new_job, throttle_one
from tests.pipeline.stream.test_checkpoint import write_checkpoint
from tests.pipeline.tables.factories import job_writer, usage
from tests.quota.factories import usage_row
from tests.touched_tables import add_columns, add_to_log


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leaves only these checks: the others take seconds, or need a cluster."""

    def leave(*checks: str) -> None:
        named = {"_java", "_jars", "_meters", "_clock", "_quotas", "_checkpoint", "_cluster", "_topics"}
        for name in named | {"_sync", "_metering"}:
            if name not in checks:
                monkeypatch.setattr(f"pipeline.job.diagnosis.{name}", lambda _settings: iter(()))

    return leave


def settings_of(folder: Path, **values: Any) -> Settings:
    """Those of tables under a folder, which are made if they are missing."""
    root = str(folder / "tables")
    create_missing(root)
    return Settings(tables=TablesSettings(root=root), run_dir=folder, **values)


def found(settings: Settings, *subjects: str) -> list[Diagnosis]:
    return [one for one in diagnose(settings) if one.subject in subjects]


def of_checkpoint(folder: Path, checkpoint: str) -> Diagnosis:
    """What is said of a checkpoint and tables under a folder."""
    (finding,) = found(settings_of(folder, stream=StreamSettings(checkpoint=checkpoint)), "checkpoint")
    return finding


def use(job: HandJob, *events: dict[str, Any]) -> None:
    """A batch of these events."""
    good = {"event_time_ms": job.clock.wall_ms, "user": "u", "client_id": "c"}
    job.send(*(json.dumps(good | one).encode() for one in events))
    job.step()


def test_event_time_ahead_of_the_wall_clock_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: Callable[..., None]
) -> None:
    only("_clock")
    job = new_job(tmp_path)
    throttle_one(job)
    for ahead_ms, severity in ((0, "ok"), (3_600_000, "warning")):
        monkeypatch.setattr("pipeline.job.diagnosis.wall_ms", lambda ms=job.clock.wall_ms - ahead_ms: ms)
        (finding,) = found(job.settings, "clock")
        assert finding.severity == severity
        assert "time epoch 0" in finding.text


@pytest.mark.parametrize(("ahead", "share"), [(1, None), (2, "2.0% of the events")])
def test_many_events_dated_after_their_messages_are_told(
    tmp_path: Path, only: Callable[..., None], ahead: int, share: str | None
) -> None:
    only("_clock")
    job = new_job(tmp_path)
    use(job, *({"event_time_ms": job.clock.wall_ms + 1_000 * (number < ahead)} for number in range(100)))
    told = [one.text for one in found(job.settings, "clock") if "dated after their messages" in one.text]
    assert [text.partition(" of the newest")[0] for text in told] == ([] if share is None else [share])


def test_users_whose_client_ids_share_a_sum_are_named(tmp_path: Path, only: Callable[..., None]) -> None:
    """And brokers whose usage comes from scrapes, which do not say how many requests there were."""
    only("_meters")
    job = new_job(tmp_path)
    used = {"user": "it's", "produced_bytes": 10}
    shared = [{**used, "broker_id": broker_id, "client_id": OTHERS} for broker_id in ("2", "1")]
    scraped = [{**used, "broker_id": broker_id, "request_count": 0} for broker_id in ("4", "3")]
    use(job, *shared, {**used, "broker_id": "1"}, *scraped)
    of_scrapes, warning = found(job.settings, "meter")
    assert of_scrapes.text.startswith("scrapes are the source of brokers 3, 4: ")
    assert warning.severity == "warning"
    assert warning.text.startswith('user "it\'s" has more client-ids than the reporter of brokers 1, 2 counts apart.')
    command = shlex.split(warning.text.partition("such as: ")[2])
    assert command[-5:] == ["alter", "--user", "it's", "--add-config", "producer_byte_rate=1048576"]


def test_what_others_or_a_power_loss_have_done_is_told_of_each_table(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    root = settings.tables.root
    add_columns(f"{root}/decisions")
    add_to_log(f"{root}/usage", ["clustering", "domainMetadata"])
    cut = ("batches", "dead_letters")
    for name in cut:
        add_columns(f"{root}/{name}")
        Path(root, name, "_delta_log", f"{1:020}.json").write_bytes(b"")
    told = [(one.severity, one.text) for one in found(settings, "tables")]
    wrong = [text for severity, text in told if severity == "error"]
    assert [text.partition("Fix: ")[0].removeprefix(f"{root}/") for text in wrong] == [
        "usage cannot be written: others have given it table features that kquota's library does not have "
        "(clustering, domainMetadata). ",
        *(f"{name} cannot be read: its commit {1:020}.json is empty, as after a power loss. " for name in cut),
    ]
    assert ("ok", "decisions: columns of others, without effect: team, seen, contact (null in new rows)") in told


@pytest.mark.parametrize("is_uri", [False, True])
def test_a_checkpoint_on_this_disk_is_compared_with_the_tables(tmp_path: Path, is_uri: bool) -> None:
    folder = tmp_path / "checkpoint"
    checkpoint = folder.as_uri() if is_uri else str(folder)
    none = f"none at {checkpoint}: the job begins where its tables end"
    assert of_checkpoint(tmp_path, checkpoint) == Diagnosis("ok", "checkpoint", none)
    write_checkpoint(folder, planned=3, committed=3)
    finding = of_checkpoint(tmp_path, checkpoint)
    assert finding.severity == "error"
    assert f"checkpoint {checkpoint} does not fit the tables" in finding.text


def test_a_store_is_tried_and_a_checkpoint_there_is_compared(store: ObjectStore, tmp_path: Path) -> None:
    root, checkpoint = store.address("doctor/tables"), store.address("doctor/checkpoint")
    create_missing(root)
    write_checkpoint(store.folder / BUCKET / "doctor" / "checkpoint", planned=3, committed=3)
    stream = StreamSettings(checkpoint=checkpoint)
    settings = Settings(store=store.settings, tables=TablesSettings(root=root), stream=stream, run_dir=tmp_path)
    findings = found(settings, "store", "disk", "tables", "checkpoint")
    told = [finding.text for finding in findings if finding.severity == "ok"]
    works = "lists, writes, reads, deletes, and refuses to overwrite (conditional put)"
    assert told[:2] == [f"{root}: {works}", f"{checkpoint}: {works}"]
    assert len(told) == 2 + len(TABLES)
    (wrong,) = (finding for finding in findings if finding.severity != "ok")
    assert f"checkpoint {checkpoint} does not fit the tables" in wrong.text


class HurriedJob:
    """A job that stores two batches while a checkpoint is compared; their rows in `batches` come later than usage.

    It was killed when its first batch was stored, which is planned in its checkpoint and not committed. Its tables have
    a batch of an earlier query. It goes on right before a read with this number.
    """

    def __init__(self, folder: Path, hurries_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._checkpoint = folder / "checkpoint"
        tables, stream = TablesSettings(root=str(folder / "tables")), StreamSettings(checkpoint=str(self._checkpoint))
        self.settings = Settings(tables=tables, stream=stream, run_dir=folder)
        self.reads, self._hurries_at = 0, hurries_at
        self._usage, batches = (job_writer(self.settings.tables.root, name) for name in ("usage", "batches"))
        earlier = self._store("earlier", 7)
        batches.append(earlier.to_row("c"), earlier.versions, earlier.to_metadata())
        write_checkpoint(self._checkpoint, planned=0, committed=-1)
        self._store("q", 0)
        monkeypatch.setattr(CheckpointFiles, "names", self._noted(CheckpointFiles.names))
        for name in ("recorded_version", "commit_metadata"):
            monkeypatch.setattr(DeltaRsWriter, name, self._noted(getattr(DeltaRsWriter, name)))

    def _noted(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            self.reads += 1
            if self.reads == self._hurries_at:
                (self._checkpoint / "commits" / "0").write_text("v1\n{}")
                (self._checkpoint / "offsets" / "1").write_text("v1\n{}\n{}")
                self._store("q", 1)
                (self._checkpoint / "commits" / "1").write_text("v1\n{}")
            return read(*arguments)

        return noted

    def _store(self, query_id: str, batch_id: int) -> BatchFacts:
        at_ms = batch_id + (100 if query_id == "q" else 1)
        facts = BatchFacts(Evaluation(query_id, batch_id, at_ms, 1), at_ms, "", "", "{}", 1, 0, 0, 0, 0)
        rows = usage(usage_row(1), **asdict(facts.evaluation))
        self._usage.append(rows, facts.versions, facts.to_metadata())
        return facts


def test_a_checkpoint_fits_whenever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: Callable[..., None]
) -> None:
    only("_checkpoint")
    monkeypatch.setattr("pipeline.job.diagnosis.TABLES", {})
    hurries_at = reads = 0
    while hurries_at <= reads:
        with monkeypatch.context() as patched:
            job = HurriedJob(tmp_path / str(hurries_at), hurries_at, patched)
            (finding,) = found(job.settings, "checkpoint")
        assert (finding.severity, "fits the tables" in finding.text) == ("ok", True), (hurries_at, finding.text)
        hurries_at, reads = hurries_at + 1, job.reads
    assert reads >= 6


def test_a_fix_deletes_nothing_while_the_job_lives(tmp_path: Path, only: Callable[..., None]) -> None:
    only("_checkpoint")
    write_checkpoint(tmp_path / "checkpoint", planned=3, committed=3)
    settings = Settings(run_dir=tmp_path)
    place = tmp_path, settings.job, str(tmp_path / "tables")

    def fix() -> str:
        finding = of_checkpoint(tmp_path, str(tmp_path / "checkpoint"))
        assert finding.severity == "error"
        assert "does not fit the tables: it belongs to a query that has not written them. " in finding.text
        return finding.text.partition("written them. ")[2]

    assert "delete this one" in fix()
    instead = "see whether the settings are those of this job; if they are, stop it and ask again: "
    with job_lock(*place):
        assert fix().startswith(f"But job 'kquota' runs as process {os.getpid()}. Fix: {instead}")
    Heartbeat(*place).beat(wall_ms() - 1_000)
    assert re.match(rf"But job 'kquota' worked \d s ago\. Fix: {instead}", fix())
    Heartbeat(*place).beat(wall_ms() - stalled_after_ms(settings) - 1)
    assert "delete this one" in fix()


@pytest.mark.parametrize(
    ("stored", "marker", "told"),
    [
        ("first", "", "ok: what is published comes out of these tables"),
        ("first", "own", "ok: what is published comes out of these tables"),
        ("first", "other", "error: a job of the same name, 'kquota', publishes out of other tables: "),
        ("before", "", "error: topic 'quota.throttle.v1' was deleted and made anew, or this is another cluster: "),
    ],
)
def test_a_throttle_topic_of_other_tables_or_made_anew_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: Callable[..., None], stored: str, marker: str, told: str
) -> None:
    only("_topics")
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    settings = settings_of(tmp_path, kafka=kafka)
    ids = dict.fromkeys((kafka.usage_topic, kafka.throttle_topic, kafka.marker_topic), "first")
    facts = SimpleNamespace(ids_of_topics={**ids, kafka.throttle_topic: stored})
    own_id = DeltaRsWriter(table_uri(settings.tables.root, "throttle_events"), "kquota").table_id
    mark = Marker(7, own_id if marker == "own" else marker)
    monkeypatch.setattr("pipeline.job.diagnosis.ClusterAccess.admin", lambda *_: nullcontext())
    monkeypatch.setattr("pipeline.job.diagnosis.BatchFacts.from_row", lambda _: facts)
    monkeypatch.setattr("pipeline.job.diagnosis.newest_batch_under", lambda _: {"processed_at_ms": 0})
    monkeypatch.setattr("pipeline.job.diagnosis.topic_ids", lambda *_: ids)
    monkeypatch.setattr("pipeline.job.diagnosis.KafkaThrottleTopic.committed", lambda _: mark)
    (finding,) = found(settings, "topics", "throttle_topics")
    assert f"{finding.severity}: {finding.text}".startswith(told)
