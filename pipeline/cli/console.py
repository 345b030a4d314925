"""What the job prints while it runs: throttles and every micro-batch, as log lines on stderr."""

import logging
from typing import Final

import pyarrow as pa

from pipeline.stream.micro_batch import BatchReport
from pipeline.throttle.explain import line_with_command
from pipeline.throttle.shapes import records_of

log = logging.getLogger("pipeline.job")

MOST_LINES: Final = 200
"""So many records that were written together get a line each. The lines of 10^5 would take longer than the records."""


def log_throttles(written: pa.Table, quota_version: int) -> None:
    """Write one log line for each published record; of more than `MOST_LINES` the first ones, and how many follow."""
    if not log.isEnabledFor(logging.INFO):
        return
    for record in records_of(written.slice(0, MOST_LINES)):
        log.info(line_with_command(record, quota_version))
    if written.num_rows > MOST_LINES:
        log.info("and %d more throttle records at the same time: see throttle_events", written.num_rows - MOST_LINES)


def log_batch(report: BatchReport) -> None:
    """Write one log line for a micro-batch, as key=value facts."""
    log.info(status_line(report))


def status_line(report: BatchReport) -> str:
    """The facts of a micro-batch. `age_ms` is the age of its newest event at the time its records became readable."""
    facts = report.facts
    return (
        f"batch_id={facts.evaluation.batch_id} events={facts.good_count} late={facts.late_count} "
        f"clamped={facts.clamped_count} ignored={facts.ignored_count} dead_letters={facts.dead_count} "
        f"violations={report.violations} published={report.published} held={report.held} "
        f"collect_ms={report.collect_ms} append_ms={report.append_ms} "
        f"decide_ms={report.decide_ms} publish_ms={report.publish_ms} "
        f"age_ms={report.age_ms} quotas=v{facts.evaluation.quota_version}"
    )
