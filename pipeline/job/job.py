"""The composition root: builds every part of the job, starts them in order, stops them in reverse.

What outlives a failed query (lock, Spark session, checks) is `Job`; what is built again each time the query starts
(tables, engine, purgatory, publisher, the query itself) is `JobRun`, so an in-process restart goes the same way as a
start after kill −9.
"""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from threading import Event
from time import perf_counter
from typing import Final

from pipeline.clock import Moment, SystemClock
from pipeline.cluster.acls import acls_of
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error, refuse_unpermitted
from pipeline.cluster.topics import check_topics, refuse_unfit, resource_names, wanted_topics
from pipeline.errors import ClusterUnreachable, MasterUnreachable, PipelineError, QueryFailed, first_line
from pipeline.job.job_run import JobRun
from pipeline.job.metrics import Listeners
from pipeline.job.status import Heartbeat, job_lock
from pipeline.process import repeating
from pipeline.settings.model import Settings
from pipeline.stream.job_tables import DriverEpoch
from pipeline.stream.session import SparkStarter

log = logging.getLogger(__name__)

_RESTART_SECONDS = (0.5, 1, 2, 4, 8, 16, 30)
_RETRY_SECONDS = (1, 2, 4, 8, 16, 30)
_HEALTHY_AFTER_SECONDS = 60
_POLL_SECONDS = 0.2
_QUIET_SECONDS: Final = 4.0
# Spark waits for its next trigger by the wall clock: for so long it waits at most after the clock was set back.
_LONGEST_PAUSE_MS: Final = 3_000


class Job:
    """The streaming job, from its lock to its last commit.

    Args:
        waits: Whether a cluster that does not answer is waited for; if not, the job ends with `ClusterUnreachable`.
        takes_topic: Whether its first start takes the throttle topic, too, if a job of the same name with other tables
            has written it. Later starts do not: then that job may have taken it back.
    """

    def __init__(self, settings: Settings, listeners: Listeners, waits: bool = True, takes_topic: bool = False) -> None:
        self._settings = settings
        self._listeners = listeners
        self._waits = waits
        self._takes_topic = takes_topic
        self._access = ClusterAccess.from_settings(settings.kafka)
        self._epoch = DriverEpoch()
        self._clock = SystemClock()
        self._heartbeat = Heartbeat(settings.run_dir, settings.job, settings.tables.root)
        self._stopping = Event()
        self.ready = Event()

    def stop(self) -> None:
        """Ask the job to end; from any thread. `run` returns when the batch under way is done."""
        self._stopping.set()

    def run(self, starter: SparkStarter) -> None:
        """Start, work until `stop`, end cleanly. A failed query is started again, with back-off.

        * `starter`: A session that is on its way already.

        Raises:
            PipelineError: The job cannot start, the query has failed more than `restart_limit` times in a row, or the
                JVM of Spark has ended.
        """
        with job_lock(self._settings.run_dir, self._settings.job, self._settings.tables.root):
            with step("cluster and topics"):
                cluster = self._reached_cluster()
            if cluster is not None:
                self._run_with_restarts(cluster, starter)

    def _reached_cluster(self) -> str | None:
        """The cluster's name, as soon as it answers: tried again without end. None if asked to stop meanwhile."""
        for rest_seconds in chain(_RETRY_SECONDS, repeat(_RETRY_SECONDS[-1])):
            try:
                return self._checked_cluster()
            except ClusterUnreachable as exc:
                if not self._waits:
                    raise
                log.warning("%s; next try in %g s", exc, rest_seconds)
            if self._stopping.wait(rest_seconds):
                break
        return None

    def _checked_cluster(self) -> str:
        """Check the job's rights and topics; returns the name of the cluster that the job's rows carry."""
        access = self._access
        with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
            rights = acls_of("job", resource_names(self._settings))
            refuse_unpermitted(admin, rights, access.client_options(), access.bootstrap_servers)
            findings = check_topics(admin, wanted_topics(self._settings), access.bootstrap_servers)
            cluster = self._settings.cluster or str(admin.describe_cluster()["cluster_id"])
        for finding in findings:
            if finding.severity == "warning":
                log.warning("%s; %s", finding, finding.fix)
        refuse_unfit(findings)
        return cluster

    def _run_with_restarts(self, cluster: str, starter: SparkStarter) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = perf_counter()
            failure = self._run_once(cluster, starter)
            if failure is None or self._stopping.is_set():
                return
            jvm_ended = starter.jvm_ended()
            if jvm_ended is not None:
                raise jvm_ended
            if isinstance(failure, ClockSetBack):
                log.warning("%s. The query starts again", failure.message)
                del failure
                gc.collect()
                continue
            outage = self._outage(failure)
            was_healthy = perf_counter() - began > _HEALTHY_AFTER_SECONDS
            failures = 0 if outage else 1 if was_healthy else failures + 1
            if outage is not None and not self._waits:
                raise outage
            if not _may_be_tried_again(failure) or failures > self._settings.stream.restart_limit:
                is_ours = isinstance(failure, PipelineError)
                raise failure if is_ours else QueryFailed(f"{first_line(failure)}, at attempt {failures}")
            if outage is None:
                rest_seconds = _RESTART_SECONDS[min(failures, len(_RESTART_SECONDS)) - 1]
                log.error("%s. Starting again in %g s (%d in a row)", _reason(failure), rest_seconds, failures)
            else:
                rest_seconds = 0.0
                log.error("%s. Starting again when the cluster answers", _reason(failure))
            # The traceback holds all of the ended run: engine, tables and clients, in cycles that Python would leave
            # alone for hours.
            del failure
            gc.collect()
            if self._stopping.wait(rest_seconds) or (outage and self._reached_cluster() is None):
                return

    def _outage(self, failure: BaseException) -> ClusterUnreachable | None:
        """Why the cluster is away, if it is: by the failure, or because it does not answer now."""
        if isinstance(failure, ClusterUnreachable):
            return failure
        try:
            with self._access.admin() as admin, as_cluster_error(self._access.bootstrap_servers):
                admin.describe_cluster()
        except ClusterUnreachable as exc:
            return exc
        except PipelineError as exc:
            log.debug("the cluster answers with an error: %s", exc)
        return None

    def _run_once(self, cluster: str, starter: SparkStarter) -> BaseException | None:
        """One life of the query; returns what ended it, None if it was asked to stop."""
        run: JobRun | None = None
        self._heartbeat.forget()
        try:
            with step("tables and recovery"):
                run = JobRun(self._settings, cluster, self._epoch, self._clock, self._listeners)
                recovered = run.take_over(self._takes_topic)
                self._takes_topic = False
                spans, newest = run.sample_topic()
            with step("spark session"):
                spark = starter.session_unless(self._stopping)
            if spark is None:
                return None
            with step("streaming query"):
                run.start(spark, recovered, spans, newest)
            log.info("running; trigger %d ms", self._settings.stream.trigger_ms)
            self.ready.set()
            return self._watch(run)
        except Exception as exc:
            log.debug("the start failed", exc_info=True)
            return exc
        finally:
            if run is not None:
                run.close()

    def _watch(self, run: JobRun) -> BaseException | None:
        """Wait for what ends the run; None if it was asked to stop."""
        highest_ms = _ahead_ms(self._clock.now())
        while not self._stopping.wait(_POLL_SECONDS):
            failure = run.failure()
            if failure is not None:
                return failure
            now = self._clock.now()
            highest_ms = max(highest_ms, _ahead_ms(now))
            set_back_ms = highest_ms - _ahead_ms(now)
            if set_back_ms > _LONGEST_PAUSE_MS:
                return ClockSetBack(set_back_ms)
            if self._heartbeat.is_due(now.wall_ms) and run.is_waiting():
                self._heartbeat.beat(now.wall_ms)
        return None


class ClockSetBack(PipelineError):
    """The wall clock was set back while the query ran: Spark would begin no batch until it shows the old time again."""

    def __init__(self, by_ms: int) -> None:
        self.by_ms = by_ms
        super().__init__(
            f"the wall clock was set back by {by_ms / 1000:.1f} s, for which Spark would begin no batch",
            "nothing needs doing: the query is started again",
        )


def _may_be_tried_again(failure: BaseException) -> bool:
    """False if another driver has taken over, or if settings or data forbid it: waiting does not help there.

    False, too, if no Spark master answers: then there is no session to go on with.
    """
    is_refused = isinstance(failure, PipelineError) and failure.exit_code in {2, 4, 5}
    return not (is_refused or isinstance(failure, MasterUnreachable))


def _ahead_ms(now: Moment) -> int:
    return now.wall_ms - now.steady_ms


def _reason(failure: BaseException) -> str:
    return failure.reason if isinstance(failure, QueryFailed) else first_line(failure)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Log one line with the time a step of the start took, and one each four seconds until it is done."""
    began = perf_counter()
    with repeating("step", lambda: log.info("%s: %.0f s so far", name, perf_counter() - began), _QUIET_SECONDS):
        yield
    log.info("%s %.1f s", name, perf_counter() - began)
