"""Defects of the life of a throttle: what is published, renewed, released, and exactly once."""

from typing import Final

from tests.mutations.planting import Defect

_PURGATORY: Final = "tests/pipeline/throttle/test_purgatory.py"
_PUBLISHER: Final = "tests/pipeline/throttle/test_publisher.py"
_DECIDER: Final = "tests/pipeline/throttle/test_decider.py"
_LINE: Final = "tests/pipeline/replay/test_story.py"
_CONTRACT: Final = "tests/pipeline/throttle/test_topic_contract.py"
_HAND: Final = "tests/faults/test_hand_job.py"

DEFECTS: Final = (
    Defect(
        "an extension gets a decision of its own",
        "ThrottlePurgatory._begun",
        ("ids[extends] = running.decision_ids[extends]", "pass"),
        _PURGATORY,
    ),
    Defect(
        "a throttle that is made longer is published as a new one",
        "ThrottlePurgatory._begun",
        ('"extended", begins)', "begins, begins)"),
        _PURGATORY,
    ),
    Defect(
        "how late a check was handed out is not told",
        "ThrottlePurgatory.tick",
        ("np.maximum(popped_ms - due.due_ms, 0)", "np.zeros_like(due.due_ms)"),
        _PURGATORY,
    ),
    Defect(
        "the end of a throttle moves with the machine's clock",
        "ThrottlePurgatory.pop_due",
        ("self._clock.now().steady_ms", "self._clock.now().wall_ms"),
        _PURGATORY,
    ),
    Defect(
        "a throttle that was made longer while its check waited is checked all the same",
        "DueHolds._cancel",
        ("self._popped.pop(hold, None)", "pass"),
        "tests/pipeline/throttle/test_ledger.py",
    ),
    Defect(
        "after a restart a throttle is checked before what is overdue",
        "ThrottlePurgatory._times",
        ("np.maximum(end_ms - self._slicing.lead_ms, now_ms)", "end_ms"),
        _PURGATORY,
    ),
    Defect(
        "a batch with older quotas holds a client that was forgiven meanwhile",
        "ThrottlePurgatory._still_valid",
        ("changed |= in_force.forgives(", "in_force.forgives("),
        f"{_HAND}::test_a_batch_with_older_quotas_holds_no_client_that_was_forgiven_meanwhile",
    ),
    Defect(
        "a forgiven client stays held until its throttle ends",
        "ThrottlePurgatory._check_after_edit",
        (
            "is_forgiven = in_force.forgives(throttles.forgiven_ms, throttles.kind)",
            "is_forgiven = np.zeros_like(is_moved)",
        ),
        f"{_HAND}::test_who_is_forgiven_is_released_at_once_and_begins_with_a_full_bucket",
    ),
    Defect(
        "a client that is forgiven for one type is let go for all",
        "ThrottlePurgatory._let_go",
        ("forgiven[np.arange(len(holds)), throttles.quota_type] = True", "forgiven[:] = True"),
        f"{_HAND}::test_a_client_that_is_forgiven_for_one_type_is_held_on_for_another",
    ),
    Defect(
        "a client that moves to a sensor that was forgiven long ago is let go",
        "InForce.forgives",
        ("(_KINDS[self.level] == kinds) & ", ""),
        f"{_HAND}::test_a_client_that_moves_to_a_sensor_that_was_forgiven_long_ago_is_not_forgiven",
    ),
    Defect(
        "verify takes each release of a sensor that was ever forgiven for forgiven",
        "pipeline.replay.verification:_is_forgiven",
        ("now_ms > max(before_ms, default=0)", "now_ms > 0"),
        "tests/pipeline/replay/test_verification.py::test_a_release_that_no_quotas_forgive_is_found",
    ),
    Defect(
        "a debt is forgiven with each batch",
        "Decider._forgive",
        ("self._decided = snapshot", "self._decided = self._decided or snapshot"),
        f"{_HAND}::test_who_is_forgiven_is_released_at_once_and_begins_with_a_full_bucket",
    ),
    Defect(
        "a start forgets what the newest batch forgave",
        "Decider.resume",
        ("self._forgive(snapshot)", "pass"),
        f"{_HAND}::test_who_is_forgiven_is_released_at_once_and_begins_with_a_full_bucket",
    ),
    Defect(
        "a start releases who began to owe after a debt was forgiven",
        "ThrottlePurgatory.take_over",
        (
            "np.zeros(len(ids), np.int64) if quotas_at is None else _forgiven_ms(running, quotas_at)",
            "np.zeros(len(ids), np.int64)",
        ),
        f"{_HAND}::test_a_start_releases_no_one_who_began_to_owe_after_a_debt_was_forgiven",
    ),
    Defect(
        "an edit that meets a batch in flight is never settled",
        "ThrottlePurgatory.quotas_changed",
        (" and snapshot.version <= self._settled_version", ""),
        f"{_PURGATORY}::test_an_edit_that_a_batch_has_put_in_force_lets_go_whom_it_touches_at_the_next_poll",
    ),
    Defect(
        "a check counts from a batch with older quotas, and goes on under them",
        "Decider.decide",
        ("self._engine.load_quotas(self._in_force)", "pass"),
        f"{_PURGATORY} tests/faults/test_hand_job.py"
        "::test_a_throttle_shortened_by_an_edit_ends_while_a_batch_with_older_quotas_is_under_way",
    ),
    Defect(
        "batches without usage hold a throttled client for ever",
        "Decider.decide",
        ("if begins_epoch or evaluation.evaluated_at_ms > self._last.evaluated_at_ms:", "if True:"),
        _DECIDER,
    ),
    Defect(
        "a check sees usage that may still be lost",
        "Decider.decide",
        ("wait_until_stored()", "pass"),
        _DECIDER,
    ),
    Defect(
        "an edit of the level alone touches no throttle",
        "InForce.differs",
        (" | ((level != NO_LEVEL) & (self.level != level))", ""),
        _PURGATORY,
    ),
    Defect(
        "an edit of the exceptions of a held user is not published",
        "ThrottlePurgatory._check_after_edit",
        ("is_renamed = excepted != in_force.excepted", "is_renamed = np.zeros(len(held), np.bool_)"),
        _PURGATORY,
    ),
    Defect(
        "a take-over publishes every hold of a user again",
        "ThrottlePurgatory.take_over",
        ("None if one is None else tuple(one)", "one"),
        f"{_PURGATORY}::test_a_take_over_publishes_nothing_about_holds_that_are_as_they_were",
    ),
    Defect(
        "after an append with an unknown outcome the publisher goes on",
        "Publisher.write",
        ("self._append_undecided = True", "self._append_undecided = False"),
        _PUBLISHER,
    ),
    Defect(
        "after a transaction that failed all transactions stay small",
        "Publisher._transact",
        ("min(2 * self._most_records, _MOST_RECORDS)", "self._most_records"),
        _PUBLISHER,
    ),
    Defect(
        "without a marker all stored records are published again",
        "Publisher._missing_from",
        ("marker = Marker(end.publish_seq + 1)", "marker = Marker(0)"),
        _PUBLISHER,
    ),
    Defect(
        "a job takes another job's topic for its own",
        "Publisher._missing_from",
        ('if end.job not in {"", self._job}:', "if False:"),
        _PUBLISHER,
    ),
    Defect(
        "a job numbers its records from 0 on a topic that holds higher numbers",
        "Publisher._missing_from",
        ("self._next_seq = max(self._next_seq, marker.next_seq)", "pass"),
        _PUBLISHER,
    ),
    Defect(
        "after a week without records all kept ones are published again",
        "Publisher._missing_from",
        ("since_ms = 0 if marker.next_seq else now.wall_ms - _RETENTION_MS", "since_ms = 0"),
        _PUBLISHER,
    ),
    Defect(
        "a pause longer than the transaction time-out is taken for a second driver",
        "Publisher._transact",
        ("if self._outbox.is_fenced():", "if True:"),
        _PUBLISHER,
    ),
    Defect(
        "a publisher goes on although another driver has the tables",
        "Publisher._transact",
        ("if self._outbox.is_fenced():", "if False:"),
        _PUBLISHER,
    ),
    Defect(
        "two drivers with tables of their own fence each other for ever",
        "Publisher._catch_up",
        ("if marker is not None and marker.next_seq > self._next_seq:", "if False:"),
        _PUBLISHER,
    ),
    Defect(
        "a record that the topic can never take is tried again for ever",
        "Publisher._publish",
        ("self._topic.publish(NO_ROWS, marker)", "pass"),
        _PUBLISHER,
    ),
    Defect(
        "the measured time to publish is its median, not its p99",
        "RenewLead.observe",
        ("len(ordered) * 99 // 100", "len(ordered) * 50 // 100"),
        "tests/pipeline/throttle/test_purgatory.py",
    ),
    Defect(
        "a name with a line break writes a log line of its own",
        "line_of",
        ("printable(who)", "who"),
        _LINE,
    ),
    Defect(
        "a release does not say what is still owed",
        "line_of",
        (' if owed_ms else ""', ' if False else ""'),
        _LINE,
    ),
    Defect(
        "the setting that carries no debt does not reach the engine",
        "new_engine",
        ("carry_debt=settings.carry_debt", "carry_debt=True"),
        "tests/pipeline/throttle/test_decider.py",
    ),
    Defect(
        "the end of the topic counts records of transactions that were aborted",
        "KafkaThrottleTopic.end",
        ('isolation_level="read_committed"', 'isolation_level="read_uncommitted"'),
        _CONTRACT,
        is_slow=True,
    ),
    Defect(
        "two jobs of one name publish out of different tables",
        "refuse_other_tables",
        ("if marker is not None and _is_of_other_tables(marker, own_id):", "if False:"),
        _PUBLISHER,
    ),
    Defect(
        "running throttles are missing on a throttle topic that was made anew",
        "ThrottlePurgatory.take_over",
        ("if publishes_running else", "if False else"),
        f"{_HAND}::test_on_a_new_throttle_topic_the_running_throttles_are_published_again",
    ),
)
