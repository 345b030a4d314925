"""Defects of the gate: leases, waiting, memory, the topic that is followed, the side-car."""

from typing import Final

from tests.mutations.planting import Defect

_STATE: Final = "tests/pipeline/gate/test_throttle_state.py"
_ROOM: Final = "tests/pipeline/gate/test_waiting_room.py"
_READER: Final = "tests/pipeline/gate/test_follower.py"
_HTTP: Final = "tests/pipeline/gate/test_http.py"

DEFECTS: Final = (
    Defect(
        "a gate on a machine whose clock is behind holds its clients for longer than was published",
        "lease_end_ms",
        (
            "min(record.throttled_until_ms - now.wall_ms, record.throttle_time_ms)",
            "(record.throttled_until_ms - now.wall_ms)",
        ),
        _STATE,
    ),
    Defect(
        "a gate ignores the records of a job that counts them anew",
        "ThrottleState.apply",
        (
            "        others = ",
            "        newest = max((one.record.publish_seq for one in self._by_key.get(key, {}).values()), default=-1)\n"
            "        if record.publish_seq < newest:\n            return None\n        others = ",
        ),
        _STATE,
    ),
    Defect(
        "a release of one cluster lets go who is held by another",
        "ThrottleState.apply",
        ("(record.cluster, target.quota_type)", '("", target.quota_type)'),
        _STATE,
    ),
    Defect(
        "on a named broker the whole cluster's throttle does not count",
        "watch_keys_of",
        ("(*on_cluster, (broker_id,", "((broker_id,"),
        _STATE,
    ),
    Defect(
        "a user's throttle for one quota type takes the place of its throttle for another",
        "ThrottleState.apply",
        ("(record.cluster, target.quota_type)", "(record.cluster, None)"),
        _STATE,
    ),
    Defect(
        "a user's throttle holds the client-ids that it excepts",
        "schemas:holds",
        (' and client_id not in (row["except_client_ids"] or ())', ""),
        _STATE,
    ),
    Defect(
        "the release of a user wakes no caller of its client-ids",
        "WaitingCaller.__init__",
        ("self.keys = watch_keys_of(client)", "self.keys = watch_keys_of(client)[::2]"),
        _ROOM,
    ),
    Defect(
        "callers of a topic that is gone wait for the end of its throttles",
        "WaitingRoom.apply",
        ("self._state.forget() if is_new_topic else ()", "()"),
        _ROOM,
    ),
    Defect(
        "a caller whose throttle ends while it comes in stays on its keys",
        "WaitingRoom.enter",
        ("if caller.is_completed:", "if False:"),
        _ROOM,
    ),
    Defect(
        "bytes that become free wake nobody who waits for them",
        "WaitingRoom.leave",
        ("each.safe_try_complete()", "pass"),
        _ROOM,
    ),
    Defect(
        "a client whose own throttle is over waits for another client's bytes",
        "WaitingRoom.find_memory",
        ("self._memory.serve_own(caller.client)", "pass"),
        _ROOM,
    ),
    Defect(
        "bytes are charged until a caller wakes, not until its work is done",
        "WaitingCaller.on_complete",
        "lambda original, this: (original(this), this._room._memory.give_back(this))",
        _ROOM,
    ),
    Defect(
        "a caller that is woken while its end moves leaves a timer behind",
        "WaitingCaller._restart_timer",
        ("            if self.is_completed:", "            if False:"),
        _ROOM,
    ),
    Defect(
        "a renewal that comes before a caller wakes does not make it wait on",
        "WaitingCaller.run",
        "lambda original, this: this.force_complete()",
        _ROOM,
    ),
    Defect(
        "a topic that was made anew is read on from the old place",
        "ThrottleTopicReader.poll",
        ("if records and records[0].offset < self._next.get(partition, 0):", "if False:"),
        _READER,
    ),
    Defect(
        "a longer topic with another id is taken for the old one",
        "ThrottleTopicReader.add_partitions",
        ("if self._topic_id not in {None, topic_id}:", "if False:"),
        _READER,
    ),
    Defect(
        "of the first reading a client's record with the highest number counts, not its last",
        "KafkaFollower._gather",
        ("last.partition == one.partition or ", ""),
        _READER,
    ),
    Defect(
        "the tail shows records partition by partition",
        "ThrottleTail.step",
        ("found.sort(key=lambda one: (one.record.cluster, one.record.publish_seq))", "pass"),
        _READER,
    ),
    Defect(
        "Retry-After is rounded down, so a client comes back too early",
        "pipeline.gate:build_app",
        ("-(-throttled.remaining_ms // 1000)", "throttled.remaining_ms // 1000"),
        _HTTP,
    ),
    Defect(
        "the gate answers who has no token",
        "pipeline.gate:build_app",
        ("Middleware(Guard, token=token)", "Middleware(Guard, token=None)"),
        _HTTP,
    ),
    Defect(
        "in a child of fork() a throttled caller waits for ever",
        "Gate.restart",
        ("self._waiting_room.restart()", "pass"),
        "tests/pipeline/gate/test_gate.py::test_callers_in_a_child_wait_and_pass_whatever_a_thread_of_its_parent_held",
    ),
)
