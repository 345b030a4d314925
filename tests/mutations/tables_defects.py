"""Defects of the tables: guarded appends, opening, quota edits, files, history, upkeep."""

from typing import Final

from tests.mutations.planting import Defect

_CONTRACT: Final = "tests/pipeline/tables/test_writer_contract.py"
_DELTA_RS: Final = "tests/pipeline/tables/test_delta_rs.py"
_OPENING: Final = "tests/pipeline/tables/test_opening.py"
_LAYOUT: Final = "tests/pipeline/tables/test_layout.py"
_SOURCE: Final = "tests/pipeline/tables/quotas/test_source.py"
_TABLE: Final = "tests/pipeline/tables/quotas/test_table.py"
_EDIT: Final = "tests/pipeline/tables/quotas/test_table.py"
_FILES: Final = "tests/pipeline/cli/test_quota_files.py"
_READING: Final = "tests/pipeline/tables/quotas/test_file_reading.py"
_HISTORY: Final = "tests/pipeline/cli/test_quota_history.py"
_LOG_FILES: Final = "tests/pipeline/tables/test_log_files.py"

DEFECTS: Final = (
    Defect(
        "a batch that is written again is stored twice",
        "is_written",
        ("if _has_reached(recorded(guard), versions[guard]):", "if False:"),
        _CONTRACT,
    ),
    Defect(
        "a driver that another one has followed writes on",
        "pipeline.tables.port:is_fenced",
        ("epoch + 1", "epoch + 2"),
        _CONTRACT,
    ),
    Defect(
        "two drivers may take one epoch",
        "refuse_taken_epoch",
        ("_has_reached(recorded_epoch, epoch)", "_has_reached(recorded_epoch, epoch + 1)"),
        _CONTRACT,
    ),
    Defect(
        "the newest instant is the largest of all time epochs",
        "StoredTable.newest_instant",
        "lambda original, *a: (one := original(*a)) and one._replace(time_epoch=0)",
        _CONTRACT,
    ),
    Defect(
        "an append ends the job when the log was cleaned below its handle",
        "DeltaRsWriter.append",
        ("if not is_trusted:", "if True:"),
        _DELTA_RS,
    ),
    Defect(
        "a handle is trusted for longer than the log keeps its entries",
        "_TRUSTED_SECONDS",
        ("30.0", "300.0"),
        _DELTA_RS,
    ),
    Defect(
        "a damaged log is taken for a missing table",
        "open_table",
        ("if version is not None and any(text in str(exc) for text in _NO_SUCH_VERSION):", "if True:"),
        _OPENING,
    ),
    Defect(
        "new quota tables have no constraints",
        "pipeline.tables.layout:_complete",
        ("table.alter.add_constraint(constraints, post_commithook_properties=NO_CLEANING)", "pass"),
        _LAYOUT,
    ),
    Defect(
        "an edit that could not be read at once takes effect only with the next one",
        "QuotaSource.poll",
        (
            "stored = self._table.read(version)\n            self._seen_version = version",
            "self._seen_version = version\n            stored = self._table.read(version)",
        ),
        _SOURCE,
    ),
    Defect(
        "a bad row of the quota table ends the job",
        "QuotaSource._valid",
        ("            return None", "            raise"),
        _SOURCE,
    ),
    Defect(
        "the mode of the table is not read: all of it enforces",
        "valid_snapshot",
        ("mode=mode", 'mode="enforce"'),
        _SOURCE,
    ),
    Defect(
        "an edit that changes nothing makes a version",
        "QuotaTable.commit",
        ("if edit.rows == edit.before.rows and not forgives:", "if False:"),
        _TABLE,
    ),
    Defect(
        "an edit forgets what was forgiven lately",
        "pipeline.tables.quotas.edit:still_forgiven",
        ("if until_ms > now_ms - _FORGIVEN_FOR_MS", "if False"),
        f"{_TABLE}::test_every_edit_keeps_what_was_forgiven_for_a_day",
    ),
    Defect(
        "a row that only forgives counts as a quota",
        "pipeline.tables.quotas.table:parted",
        ('if until_ms is None or quota != _without_quota(row["user"], row["client_id"]):', "if True:"),
        f"{_TABLE}::test_a_forgiven_debt_is_in_the_history_and_in_no_quota",
    ),
    Defect(
        "an edit for another version of the table is made all the same",
        "QuotaTable._changed",
        ("if if_version is not None and if_version != before.version:", "if False:"),
        _TABLE,
    ),
    Defect(
        "an edit takes no lock",
        "QuotaTable.lock",
        ('if "://" in self.uri:', "if True:"),
        _TABLE,
    ),
    Defect(
        "a row that is exempt goes with its last bound",
        "pipeline.tables.quotas.edit:_change",
        ('if row["mode"] != "exempt" and all(', "if all("),
        _TABLE,
    ),
    Defect(
        "a fraction that SQL has stored keeps everybody from editing",
        "validated",
        ('[] if row in stored[row["user"], row["client_id"]] else _bound_mistakes(row)', "_bound_mistakes(row)"),
        _EDIT,
    ),
    Defect(
        "a file that names no owner takes the owner away",
        "applied",
        (
            '{"mode": "enforce"}), **quota}',
            '{"mode": "enforce"}), "owner": None, "note": None, **quota}',
        ),
        _FILES,
    ),
    Defect(
        "apply removes nothing where it shall prune",
        "applied",
        ("if not prune or entity in wanted", "if True"),
        _FILES,
    ),
    Defect(
        "an empty file removes all quotas where apply shall prune",
        "_declaring",
        ("and not left and not allow_empty", "and False"),
        _FILES,
    ),
    Defect(
        "of a key that is given twice in a quota file the last one counts in silence",
        "_refuse_repeated",
        "lambda original, *_: None",
        _READING,
    ),
    Defect(
        "a rollback cannot take back what SQL has stored",
        "QuotaTable._changed",
        ("(*before.rows, *once_stored)", "before.rows"),
        _HISTORY,
    ),
    Defect(
        "trimming deletes the rows at the instant, too",
        "rows_before",
        ('(column, "<", before_ms)', '(column, "<=", before_ms)'),
        "tests/pipeline/tables/test_upkeep.py",
    ),
    Defect(
        "throttles that were released are taken up at a start",
        "last_throttles",
        ("[*runs, *where]", "[*where]"),
        "tests/pipeline/tables/test_queries.py",
    ),
    Defect(
        "a commit that a power loss has cut is read over",
        "_refuse_cut",
        "lambda original, *arguments, **named: None",
        _LOG_FILES,
    ),
    Defect(
        "an edit returns before the disk has it",
        "pipeline.tables.log_files:_sync",
        "lambda original, path: None",
        f"{_LOG_FILES}::test_an_edit_returns_when_the_disk_has_all_that_its_version_is_read_from",
    ),
)
