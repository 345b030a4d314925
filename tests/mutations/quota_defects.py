"""Defects of the decisions: rates, buckets, resolution, throttle times, snapshots, names, levels of brokers."""

from typing import Final

from tests.mutations.planting import Defect

_KAFKA: Final = "tests/conformance/test_replay.py::test_the_engine_answers_all_recorded_sessions_as_kafka_did"
_RATES: Final = f"tests/quota/test_rates.py tests/quota/test_engine.py {_KAFKA}"
_ENGINE: Final = "tests/quota/test_engine.py"
_RESOLUTION: Final = "tests/quota/test_engine.py"
_SNAPSHOT: Final = "tests/quota/test_snapshot.py"
_SLICING: Final = "tests/quota/test_throttle_time.py"
_PURGATORY: Final = "tests/pipeline/throttle/test_purgatory.py"
_UNITS: Final = "tests/quota/test_units.py"

DEFECTS: Final = (
    Defect(
        "a forgiven sensor keeps what its bucket owes",
        "SensorTable.forgive",
        ("of_type.buckets.fill(ids)", "pass"),
        f"{_ENGINE}::test_a_forgiven_sensor_is_as_new_and_others_owe_what_they_owed",
    ),
    Defect(
        "a forgiven sensor keeps its windows",
        "SensorTable.forgive",
        ("of_type.windows.empty(ids)", "pass"),
        f"{_ENGINE}::test_a_forgiven_sensor_is_as_new_and_others_owe_what_they_owed",
    ),
    Defect(
        "a client counts as held by a quota in shadow mode",
        "_held_until_ms",
        ("np.where(is_enforced, latest_ms, 0)", "latest_ms"),
        "tests/quota/test_current_rates.py",
    ),
    Defect(
        "what a client uses of its sensor is summed over windows that the rate has dropped",
        "ClientUsage.rates",
        ("np.clip(oldest, 0, self.by_window.shape[2] - 1)", "np.zeros_like(oldest)"),
        "tests/quota/test_current_rates.py",
    ),
    Defect(
        "where there are too many sensors those nearest to their bound are left out",
        "_bounded_rows",
        ('np.argsort(-share[first], kind="stable")', 'np.argsort(share[first], kind="stable")'),
        "tests/quota/test_current_rates.py",
    ),
    Defect(
        "a reader gives up when a file of the rates was replaced",
        "read_rates",
        ("if not exc.is_file_missing:", "if True:"),
        "tests/pipeline/job/test_rates.py",
    ),
    Defect(
        "rates take all the time there is",
        "RatesTable.step",
        ("_RESTS * took_seconds", "0 * took_seconds"),
        "tests/pipeline/job/test_rates.py",
    ),
    Defect(
        "the rate of a young sensor is taken over the time it has been in use, not over N − 1 windows",
        "SampleWindows.observed",
        ("short = (self._n - 1) * self._w", "short = 0"),
        _RATES,
    ),
    Defect(
        "a window counts for one sample window too long",
        "SampleWindows.observed",
        ("after = np.where(is_oldest, within, _UNTOUCHED)", "after = np.where(is_oldest, _UNTOUCHED, _UNTOUCHED)"),
        _RATES,
    ),
    Defect(
        "a client exactly at its bound is over quota",
        "SampleWindows.violated",
        ("observed > bound[suspects]", "observed >= bound[suspects]"),
        f"{_ENGINE}::test_many_sensors_at_once_equal_few_at_a_time",
    ),
    Defect(
        "a violation in the last part of a sample window is missed",
        "SampleWindows.violated",
        ("+ now_ms % self._w, 1)", "+ self._w, 1)"),
        _RATES,
    ),
    Defect(
        "after a gap that is longer than the ring old usage counts on",
        "SampleWindows.advance",
        (
            "first = max(self._newest + 1, newest - self._n)",
            "first = newest if newest - self._newest > self._n else self._newest + 1",
        ),
        _RATES,
    ),
    Defect(
        "a sum of usage that is too large becomes negative, and its offender is none",
        "SampleWindows.add",
        ("of_window[of_window < 0] = LARGEST_SUM", "pass"),
        f"{_ENGINE}::test_sums_stop_at_the_largest_number_and_an_offender_stays_one",
    ),
    Defect(
        "sums are exact only as far as a double is",
        "_EXACT_IN_FLOAT",
        ("1 << 53", "1 << 62"),
        f"{_ENGINE}::test_sums_are_exact_where_a_float_is_not",
    ),
    Defect(
        "times of the two kinds of threads become negative when their sum is too large",
        "_both",
        ("np.where(both < 0, LARGEST_SUM, both) if len(both) and both.min() < 0 else both", "both"),
        f"{_ENGINE}::test_times_of_both_kinds_of_threads_stop_at_the_largest_number_and_are_owed",
    ),
    Defect(
        "a hold of a broker that has just begun counts as a whole",
        "ClientUsage.held_by_brokers",
        ("np.minimum(holds[_END].to_numpy(), now_ms)", "holds[_END].to_numpy()"),
        "tests/quota/test_current_rates.py::test_brokers_held_a_client_for_a_part_of_the_last_minute",
    ),
    Defect(
        "a hold of a broker that goes on is forgotten a minute after it began",
        "RecentUsage.add",
        ("pc.field(_END) > evaluated_at_ms", "pc.field(_START) > evaluated_at_ms"),
        "tests/quota/test_current_rates.py::test_brokers_held_a_client_for_a_part_of_the_last_minute",
    ),
    Defect(
        "holds of connections that brokers hold at the same time are added up",
        "quota.current_rates:_holds_of",
        ("pc.divide(held_ms, requests)", "held_ms"),
        "tests/quota/test_current_rates.py::test_connections_that_brokers_hold_at_the_same_time_count_for_a_minute",
    ),
    Defect(
        "a type without requests touches its sensor",
        "quota.usage:_measure",
        ("present = column.is_valid().to_numpy(zero_copy_only=False)", "pass"),
        f"{_ENGINE}::test_engine_equals_the_scalar_model",
    ),
    Defect(
        "a sensor with late usage alone gets a first decision by its rate",
        "QuotaEngine._record_all",
        ("if not piece.is_late:", "if True:"),
        f"{_ENGINE}::test_a_sensor_whose_usage_is_all_late_gets_no_decision_by_its_rate",
    ),
    Defect(
        "usage that is behind throttles at a debt of a burst and a window, not above it",
        "QuotaEngine._owing",
        ("> (self.num_samples + 1) * self.sample_window_ms", ">= (self.num_samples + 1) * self.sample_window_ms"),
        f"{_ENGINE}::test_late_usage_throttles_if_its_bucket_owes_more_than_a_burst_and_a_window",
    ),
    Defect(
        "a debt is counted as if nothing was used since the bucket was charged",
        "QuotaEngine._owing",
        (
            "tokens = buckets.tokens_left(ids, bounds[ids])",
            "tokens = buckets.tokens_at(ids, bounds[ids], self._evaluated_at_ms)",
        ),
        f"{_ENGINE}::test_late_usage_throttles_if_its_bucket_owes_more_than_a_burst_and_a_window",
    ),
    Defect(
        "a batch may be evaluated before the one before it",
        "QuotaEngine._check_instant",
        "lambda original, *_: None",
        f"{_ENGINE}::test_time_does_not_go_back",
    ),
    Defect(
        "clients without usage in a batch are decided with it",
        "QuotaEngine._violations",
        ("rows = rows[present[rows]]", "pass"),
        _ENGINE,
    ),
    Defect(
        "an entity whose sensor was dropped goes on with another one's",
        "EntityDirectory.follow_sensors",
        ("np.where(kept, np.cumsum(kept) - 1, UNRESOLVED)", "np.arange(len(kept))"),
        f"{_ENGINE}::test_sensors_that_expire_start_anew_and_the_others_stay",
    ),
    Defect(
        "throttle times are rounded down, not as Java rounds",
        "java_round",
        ("x - floor >= 0.5", "x - floor >= 2"),
        _SLICING,
    ),
    Defect(
        "a throttle time is computed in another order than Kafka's",
        "throttle_time_ms",
        ("(observed - bound) / bound * window_ms", "(observed - bound) * window_ms / bound"),
        "tests/quota/test_throttle_time.py",
    ),
    Defect(
        "request time is capped at the whole window, not at one sample window",
        "ThrottleCaps",
        ('request_percentage: Cap = "sample_window"', 'request_percentage: Cap = "window"'),
        _SLICING,
    ),
    Defect(
        "what a client owes is X alone, its debt is forgotten",
        "owed_time_ms",
        (
            "np.maximum(throttle_time_ms(observed, finite, window_ms), debt_time_ms(tokens, finite))",
            "throttle_time_ms(observed, finite, window_ms)",
        ),
        _RATES,
    ),
    Defect(
        "debts are forgotten after one burst, not after ten",
        "MAX_DEBT_BURSTS",
        ("10.0", "1.0"),
        _RATES,
    ),
    Defect(
        "usage of a gap lifts a debt that was larger",
        "TokenBuckets.charge",
        ("np.minimum(tokens, burst * -most_bursts)", "burst * -most_bursts"),
        _RATES,
    ),
    Defect(
        "late usage refills the bucket to now first",
        "record_piece",
        (
            "sensors.buckets.charge(charged, charge, bound, refill_to_ms, most_bursts)",
            "sensors.buckets.charge(charged, charge, bound, 1 << 60 if piece.is_late else refill_to_ms, most_bursts)",
        ),
        f"{_ENGINE}::test_late_usage_refills_its_bucket_to_the_end_of_each_of_its_windows",
    ),
    Defect(
        "a debt is forgotten when its quota has no bound for a while",
        "TokenBuckets.below_burst",
        ("np.isinf(bound) | ", ""),
        _RATES,
    ),
    Defect(
        "a bucket is refilled twice when time goes back",
        "TokenBuckets.charge",
        ("self._refilled_at_ms[sensors] += since_ms", "self._refilled_at_ms[sensors] = refill_to_ms"),
        _RATES,
    ),
    Defect(
        "shadow quotas are enforced",
        "Resolution._see",
        ("if side is Side.ENFORCED:", "if side is None:"),
        _RESOLUTION,
    ),
    Defect(
        "a quota of the default client-id holds for clients without a client-id, too",
        "Resolution.resolve",
        ("(kinds != LevelKind.USER) & client_id_named", "kinds != LevelKind.USER"),
        _RESOLUTION,
    ),
    Defect(
        "a type without any quota records usage",
        "recorded_keys",
        "lambda original, snapshot: frozenset(product(Side, range(len(QUOTA_TYPES))))",
        _ENGINE,
    ),
    Defect(
        "an exempt row does not take its client out of wider quotas",
        "quota.resolution:_bounds_of",
        ("return (np.inf,) * len(QUOTA_TYPES)", "return (_HIDDEN,) * len(QUOTA_TYPES)"),
        _RESOLUTION,
    ),
    Defect(
        "of several rows of a client the least specific one holds",
        "Resolution._quota_of_tags",
        ("tagged & (quota == NO_QUOTA)", "tagged & (seen[level] != NO_QUOTA)"),
        _RESOLUTION,
    ),
    Defect(
        "clients without a quota share no sensor where only users have quotas",
        "_tag_kinds",
        ("kinds or LevelKind.CLIENT", "LevelKind.CLIENT"),
        _RESOLUTION,
    ),
    Defect(
        "a throttle of a user holds one of its clients only",
        "Asked.targets",
        ("null_where(self.holds_user, client_id)", "client_id"),
        _PURGATORY,
    ),
    Defect(
        "the holds of a user are known by the key of its client without a client-id",
        "target_keys",
        ("np.where(holds_user, quota_types + 1, 0)", "np.zeros(len(quota_types), np.int64)"),
        f"{_PURGATORY}::test_a_user_is_held_for_each_quota_type_on_its_own",
    ),
    Defect(
        "the client-ids that a default user's rows except are held with users without rows of their own",
        "ClientsApart.__init__",
        ("of_user[user] if user in own else of_user[user] | of_default", "of_user[user]"),
        f"{_ENGINE}::test_a_throttle_of_a_user_holds_exactly_the_clients_that_resolve_to_its_sensor",
    ),
    Defect(
        "decisions lack the row of the sensor that asks for the hold",
        "Decisions.stored",
        "lambda original, self: (lambda rows: rows.filter(rows['client_id'].is_valid()))(original(self))",
        f"{_PURGATORY}::test_a_user_is_held_for_each_quota_type_on_its_own",
    ),
    Defect(
        "decisions have every client of a sensor, however many they are",
        "quota.decisions:MOST_CLIENTS",
        ("= 100", "= 10_000"),
        f"{_PURGATORY}::test_of_a_sensor_the_hundred_clients_that_used_most_are_kept_and_the_others_counted",
    ),
    Defect(
        "of equal throttle times the producer's applies, not the request's",
        "TIE_ORDER",
        ("(2, 0, 1)", "(0, 1, 2)"),
        _ENGINE,
    ),
    Defect(
        "a bound may be infinite",
        "quota:_bound",
        ("math.isfinite(bound) and bound > 0", "bound > 0"),
        _SNAPSHOT,
    ),
    Defect(
        "of two rows of one entity the second one is passed over in silence",
        "QuotaSnapshot.from_rows",
        ('problems.append(f"row {number}: {entity} is in row {first} too")', "pass"),
        _SNAPSHOT,
    ),
    Defect(
        "a table in shadow mode ends exemptions",
        "_read_row",
        ('if mode == "enforce":', 'if mode != "shadow":'),
        _SNAPSHOT,
    ),
    Defect(
        "a lower bound shortens a throttle",
        "Slicing.at_edit",
        (" & ~bound_fell", ""),
        _SLICING,
    ),
    Defect(
        "a throttle that nearly ended begins again for a moment",
        "TIMES_SOON",
        ("= 2", "= 1"),
        _SLICING,
    ),
    Defect(
        "a client that ignores its throttle gets a record with every batch",
        "Slicing.is_published",
        (" & (longer_ms >= -(-slice_ms // _EXTENSION_PART))", ""),
        _SLICING,
    ),
    Defect(
        "a slice may be shorter than three looks ahead",
        "Slicing.slices_ms",
        ("np.maximum(cap_ms, 3 * self.lead_ms)", "cap_ms"),
        "tests/pipeline/throttle/test_lifecycle.py",
    ),
    Defect(
        "names that differ in trailing zero bytes are taken for one",
        "NameColumn._hash",
        ("(length.astype(np.uint64) * factor for", "(length.astype(np.uint64) * np.uint64(0) * factor for"),
        "tests/quota/test_names.py",
    ),
    Defect(
        "a rate just above its bound is shown as equal to it",
        "against_bound",
        ("range(1, 20)", "range(1, 2)"),
        f"{_UNITS} tests/pipeline/replay/test_story.py",
    ),
    Defect(
        "a bound below one request of a client is not warned of",
        "_largest_requests",
        "lambda original, usage: {}",
        "tests/quota/test_effective.py",
    ),
)
