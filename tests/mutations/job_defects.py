"""Defects of the job as a process: locks, restarts, upkeep, diagnosis, settings, logs."""

from typing import Final

from tests.mutations.planting import Defect

_LOCK: Final = "tests/pipeline/job/test_status.py"
_RESTARTS: Final = "tests/pipeline/job/test_job.py"
_UPKEEP: Final = "tests/pipeline/job/test_job_run.py"
_DOCTOR: Final = "tests/pipeline/job/test_diagnosis.py"
_SETTINGS: Final = "tests/pipeline/settings/test_model.py"
_VARIABLES: Final = "tests/pipeline/settings/test_model.py"
_LOG: Final = "tests/pipeline/test_log.py"

DEFECTS: Final = (
    Defect(
        "a second driver with another run folder takes the tables of the first",
        "job_lock_file",
        ('local_file(tables_root, ".kquota-job.lock") or ', ""),
        _LOCK,
    ),
    Defect(
        "a cluster that is away ends the job",
        "Job._run_with_restarts",
        (
            "failures = 0 if outage else 1 if was_healthy else failures + 1",
            "failures = 1 if was_healthy else failures + 1",
        ),
        _RESTARTS,
    ),
    Defect(
        "a clock that was set back stops the query until it shows the old time again",
        "Job._watch",
        ("if set_back_ms > _LONGEST_PAUSE_MS:", "if False:"),
        f"{_RESTARTS}::test_a_clock_that_is_set_back_by_more_than_three_seconds_ends_the_run",
    ),
    Defect(
        "an ended run of the query stays in memory",
        "Job._run_with_restarts",
        (
            "            del failure\n            gc.collect()\n            if self._stopping",
            "            if self._stopping",
        ),
        f"{_RESTARTS}::test_a_restart_keeps_nothing_of_the_run_before",
    ),
    Defect(
        "a job that was down deletes what its next start needs",
        "Upkeep._retention_end_ms",
        ("wall_ms if newest_ms is None else min(wall_ms, newest_ms)", "wall_ms"),
        _UPKEEP,
    ),
    Defect(
        "a clock that is ahead deletes usage early",
        "Upkeep._retention_end_ms",
        ("min(wall_ms, newest_ms)", "newest_ms"),
        _UPKEEP,
    ),
    Defect(
        "usage goes before it is rolled up",
        "Upkeep._kept_from_ms",
        ("min(kept_from_ms, max(unread_ms, waits_from_ms))", "kept_from_ms"),
        _UPKEEP,
    ),
    Defect(
        "a table whose upkeep fails keeps the others from theirs",
        "log_failures",
        ("except (PipelineError, DeltaError, OSError, ValueError) as exc:", "except ZeroDivisionError as exc:"),
        _UPKEEP,
    ),
    Defect(
        "a job that waited a while ago counts as idle, though it hangs",
        "FRESH_MS",
        ("3_000", "30_000"),
        _LOCK,
    ),
    Defect(
        "a heart beats no more when the clock was set back",
        "Heartbeat.is_due",
        ("not 0 <= now_ms - self._last_ms < BEAT_EVERY_MS", "now_ms - self._last_ms >= BEAT_EVERY_MS"),
        _LOCK,
    ),
    Defect(
        "a job on another machine is down, though it writes batches",
        "status_of",
        ("was_seen=is_local(root)", "was_seen=True"),
        _LOCK,
    ),
    Defect(
        "the doctor compares a checkpoint with rows that come later, and finds a killed job's unfit",
        "_checkpoint",
        ("for table in (usage, batches))", "for table in (batches,))"),
        f"{_DOCTOR}::test_the_checkpoint_of_a_job_that_was_killed_fits_its_tables",
    ),
    Defect(
        "time that is ahead of the wall clock is not seen",
        "pipeline.job.status:ahead_ms",
        "lambda original, *_: 0",
        f"{_DOCTOR} {_LOCK}",
    ),
    Defect(
        "a setting with a mistyped name is passed over",
        "unknown_variables",
        "lambda original, names: {}",
        _VARIABLES,
    ),
    Defect(
        "a value that was given to an unknown key is printed, though it may be a password",
        "pipeline.settings:_mistakes",
        ("if is_unknown:\n            # Its value", "if False:\n            # Its value"),
        f"{_VARIABLES} {_SETTINGS}",
    ),
    Defect(
        "values of spark.conf, which may be secrets, are printed",
        "_HOLDS_SECRETS",
        ('"spark.conf", ', ""),
        _SETTINGS,
    ),
    Defect(
        "tables in a folder that Delta takes for another one are accepted",
        "refuse_unfit_root",
        ("if found is not None:", "if False:"),
        _SETTINGS,
    ),
    Defect(
        "a command reaches an object store without the settings of the store",
        "Source.settings",
        ("reach_with(settings.store, settings.tables.root, settings.stream.checkpoint)", "pass"),
        "tests/pipeline/store/test_object_store.py",
    ),
    Defect(
        "a place in the code fills the log with its warnings",
        "CutShort.filter",
        ("return lines <= _LINES_PER_SPAN", "return True"),
        _LOG,
    ),
    Defect(
        "names with control characters go raw into lines and tables",
        "printable",
        "lambda original, text: text",
        "tests/pipeline/cli/test_output.py tests/pipeline/replay/test_story.py",
    ),
    Defect(
        "a command ends with the interpreter's exit code, not with its own",
        "_LastStep.__call__",
        ("os._exit(self.code)", "pass"),
        "tests/pipeline/test_process.py",
    ),
    Defect(
        "doctor does not say whose client-ids share a sum of the reporter",
        "_meters",
        ("for row in shared.to_pylist()[:_MOST_USERS]:", "for row in []:"),
        f"{_DOCTOR}::test_users_whose_client_ids_share_a_sum_are_named_with_a_bound_that_counts_them",
    ),
    Defect(
        "doctor does not say that many events are dated after their messages",
        "_clamped",
        ("if clamped > _CLAMPED_SHARE * events:", "if False:"),
        f"{_DOCTOR}::test_more_than_one_event_in_a_hundred_dated_after_its_message_is_told",
    ),
    Defect(
        "doctor does not compare the throttle topic with the tables",
        "_topics",
        "lambda original, settings: iter(())",
        f"{_DOCTOR}::test_a_throttle_topic_made_anew_or_published_out_of_other_tables_is_found",
    ),
)
