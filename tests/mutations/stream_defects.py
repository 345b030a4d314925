"""Defects of reading usage, of micro-batches, and of starts."""

from typing import Final

from tests.mutations.planting import Defect

_READER: Final = "tests/pipeline/stream/test_usage_reader.py"
_COLUMNS: Final = "tests/pipeline/stream/test_usage_columns.py"
_CHECKPOINT: Final = "tests/pipeline/stream/test_checkpoint.py"
_JOB: Final = "tests/faults/test_hand_job.py"

DEFECTS: Final = (
    Defect(
        "an element that is refused spoils the good ones of its array",
        "pipeline.stream:_elements",
        ("return _Message(events, letters, len(refused))", "return _Message([], letters, len(refused))"),
        _READER,
    ),
    Defect(
        "a message that is not UTF-8 ends the batch",
        "_read_with_causes",
        ('value.decode(errors="surrogateescape")', "value.decode()"),
        _READER,
    ),
    Defect(
        "NaN and Infinity are read as numbers",
        "_no_constant",
        "lambda original, name: 0.0",
        _READER,
    ),
    Defect(
        "an integer of thousands of digits ends the batch",
        "_scanned",
        (
            "        except ValueError:  # Python reads integers of at most 4300 digits\n            continue",
            "        except RecursionError:\n            continue",
        ),
        _READER,
    ),
    Defect(
        "a message of more levels than a reader can hold is read",
        "_parsed",
        ("and _levels(value) > MOST_LEVELS", "and False"),
        _READER,
    ),
    Defect(
        "what stands behind the JSON of a message is passed over",
        "_parsed",
        ("if _after_blanks(text, end) != len(text):", "if False:"),
        _READER,
    ),
    Defect(
        "true counts as the number 1",
        "_cause",
        ("UsageEvent.model_validate(members)", "UsageEvent.model_validate(members, strict=False)"),
        _READER,
    ),
    Defect(
        "half a character in a name is taken for a name",
        "_cause",
        (
            "except ValidationError as exc:",
            "except ValidationError as exc:\n        if 'unicode' in str(exc): return None",
        ),
        _READER,
    ),
    Defect(
        "a long name in other letters passes the quick step, which counts characters",
        "_decoded",
        (r'if len(value) > LARGEST_NAME_BYTES and (b"\\" in value or not value.isascii()):', "if False:"),
        _READER,
    ),
    Defect(
        "an event that is older than a day counts",
        "EventTimes.are_too_old",
        "lambda original, this, max_event_age_ms: this.sent_ms < 0",
        _READER,
    ),
    Defect(
        "an event that is dated after its record counts as of its date",
        "EventTimes.counted_ms",
        "lambda original, this: this.sent_ms",
        _READER,
    ),
    Defect(
        "the bytes of exempt requests do not count, either",
        "_exempt_apart",
        (
            "return {**charged,",
            'return {"produced_bytes": pc.if_else(is_exempt, nothing, events["produced_bytes"]), **charged,',
        ),
        _READER,
    ),
    Defect(
        "an event without a measure counts as a request of size 0",
        "_filled",
        (
            "column if default is None or not column.null_count else column.fill_null(default)",
            "column.fill_null(0 if default is None else default)",
        ),
        _READER,
    ),
    Defect(
        "a sum that is too large ends the batch",
        "merge_usage",
        ('pc.min_element_wise(grouped[f"{name}_sum"], float(LARGEST_SUM), skip_nulls=False)', 'grouped[f"{name}_sum"]'),
        f"{_COLUMNS} {_READER}",
    ),
    Defect(
        "a sum is 0 where no event had the measure",
        "merge_usage",
        ("float(LARGEST_SUM), skip_nulls=False)", "float(LARGEST_SUM), skip_nulls=False).fill_null(0)"),
        _COLUMNS,
    ),
    Defect(
        "events that are set back to the driver's clock stay in their later window",
        "_set_back",
        ('pc.min_element_wise(ahead["sample_start_ms"], limit_start_ms)', 'ahead["sample_start_ms"]'),
        _COLUMNS,
    ),
    Defect(
        "a warning about clocks is logged with every batch",
        "pipeline.stream.usage_columns:_WARNING_INTERVAL_MS",
        ("60_000", "0"),
        "tests/pipeline/stream/test_micro_batch.py",
    ),
    Defect(
        "a message of junk becomes as many dead letters as it has elements",
        "letters_of_elements",
        ("list(refused[:per_message])", "list(refused)"),
        _COLUMNS,
    ),
    Defect(
        "refused elements without a row are counted nowhere",
        "pipeline.stream.usage_columns:causes_of",
        ("more = dead_count - letters.num_rows", "more = 0"),
        _COLUMNS,
    ),
    Defect(
        "a checkpoint that is older than the tables is taken",
        "Checkpoint.check",
        ("elif batch_id > self.planned:", "elif False:"),
        _CHECKPOINT,
    ),
    Defect(
        "a checkpoint of another job is taken",
        "Checkpoint.check",
        ("if self.committed >= 0:", "if False:"),
        _CHECKPOINT,
    ),
    Defect(
        "usage that was deleted before it was read is passed over in silence",
        "gaps",
        ("elif offset < span.begin:", "elif False:"),
        _CHECKPOINT,
    ),
    Defect(
        "a usage topic that was made anew is read from a place that it does not have",
        "gaps",
        ("elif offset > span.end:", "elif False:"),
        _CHECKPOINT,
    ),
    Defect(
        "a new checkpoint leaves out partitions that were added meanwhile",
        "starting_offsets",
        ("for partition, span in spans.items()", "for partition, span in spans.items() if partition in stored"),
        _CHECKPOINT,
    ),
    Defect(
        "usage that has waited for a start alarms as a job that is too slow",
        "MicroBatch._publish",
        ("logging.INFO if waited else logging.WARNING", "logging.WARNING"),
        "tests/pipeline/stream/test_micro_batch.py",
    ),
    Defect(
        "without a snapshot a start knows the debts of the last windows only",
        "_usage_since",
        (
            "if snapshot is None:\n",
            "if snapshot is None:\n"
            '        return tables.usage.read(USAGE_COLUMNS, [("evaluated_at_ms", ">=", '
            "newest.evaluated_at_ms - rate_span_ms)])\n",
        ),
        f"{_JOB}::test_a_debt_that_no_snapshot_has_outlives_a_restart",
    ),
    Defect(
        "time goes back when usage and log are gone at a start",
        "rebuild",
        ("newest = _later(facts, _newest_of_rows(tables.batches))", "newest = facts"),
        f"{_JOB}::test_time_does_not_go_back_when_usage_and_the_log_of_the_tables_are_gone",
    ),
    Defect(
        "two batches of two queries at one instant change places at a restart",
        "rebuild",
        ("last_query_id = newest.evaluation.query_id", 'last_query_id = ""'),
        f"{_JOB}::test_a_new_query_at_the_instant_of_the_old_ones_last_batch_comes_after_it",
    ),
    Defect(
        "the engine keeps full buckets that a snapshot does not have",
        "SensorStateTable.write_if_due",
        ("if is_new:\n            decider.restore_buckets(buckets)", "if False:\n            pass"),
        f"{_JOB}::test_a_snapshot_makes_full_buckets_new_with_and_without_a_restart",
    ),
    Defect(
        "a snapshot that is stored already changes the buckets",
        "SensorStateTable.write_if_due",
        ("if is_new:", "if True:"),
        f"{_JOB}::test_two_starts_after_one_batch_know_the_same_buckets_though_a_quota_was_lowered",
    ),
    Defect(
        "numbers of records are given again when their rows have been trimmed",
        "Outbox.newest",
        ("return -1 if recorded is None else recorded,", "return -1,"),
        f"{_JOB}::test_numbers_of_records_are_not_given_again_when_their_rows_have_been_trimmed",
    ),
    Defect(
        "a driver that was taken over takes the tables back by a restart in its process",
        "DriverEpoch.raise_in",
        ("if self._raised is not None:", "if False:"),
        "tests/pipeline/tables/test_delta_rs.py",
    ),
    Defect(
        "with a first batch of unknown size the driver reads what it cannot hold",
        "OffsetRange.message_count",
        ("return None", "return 0"),
        "tests/pipeline/stream/test_checkpoint.py",
    ),
    Defect(
        "of a field that is written twice the first value counts",
        "_scan",
        (
            "parse_constant=_no_constant)",
            "parse_constant=_no_constant, object_pairs_hook=lambda pairs: dict(pairs[::-1]))",
        ),
        _READER,
    ),
    Defect(
        "what is missing of stored batches stays missing after a start",
        "MicroBatch.complete_stored",
        "lambda original, this: None",
        f"{_JOB}::test_a_job_killed_at_every_failpoint_in_turn",
    ),
    Defect(
        "a checkpoint at a file:// address is not looked at",
        "CheckpointFiles.__init__",
        ('if scheme == "file" else', "if False else"),
        "tests/pipeline/job/test_diagnosis.py",
    ),
    Defect(
        "decisions on usage of before an outage are published",
        "MicroBatch._is_old",
        "lambda original, this, age_ms: False",
        "tests/pipeline/stream/test_micro_batch.py",
    ),
    Defect(
        "usage of one broker that is behind counts as usage of a gap",
        "gap_of",
        ("0 if before is None else before.processed_at_ms", "0"),
        "tests/pipeline/stream/test_micro_batch.py",
    ),
    Defect(
        "a gap ends with its first batch",
        "gap_of",
        ("known = None if before is None else before.gap", "known = None"),
        "tests/pipeline/stream/test_micro_batch.py",
    ),
)
