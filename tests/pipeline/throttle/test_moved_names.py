"""The gate's names from before it had a room of its own: they work for one release and say where they went."""

import importlib
import subprocess
import sys

import pytest

MOVED = [
    ("pipeline.throttle.gate", "Gate", "pipeline.gate.gate", "Gate"),
    ("pipeline.throttle.gate", "Throttled", "pipeline.gate.gate", "Throttled"),
    ("pipeline.throttle.gate", "GateStats", "pipeline.gate.gate", "GateStats"),
    ("pipeline.throttle.passage", "Passage", "pipeline.gate.passage", "Passage"),
    ("pipeline.throttle.waiting_room", "Room", "pipeline.gate.limits", "GateLimits"),
    ("pipeline.throttle.waiting_room", "Occupancy", "pipeline.gate.occupancy", "Occupancy"),
    ("pipeline.throttle.waiting_room", "WaitingRoom", "pipeline.gate.waiting_room", "WaitingRoom"),
    ("pipeline.throttle.follower", "KafkaFollower", "pipeline.gate.follower", "KafkaFollower"),
    ("pipeline.throttle.view", "ThrottleView", "pipeline.gate.view", "ThrottleView"),
    ("pipeline.throttle.state", "ThrottleState", "pipeline.gate.throttle_state", "ThrottleState"),
    ("pipeline.throttle.errors", "GateDepleted", "pipeline.gate.errors", "GateDepleted"),
    ("pipeline.throttle.errors", "GateTimeout", "pipeline.gate.errors", "GateTimeout"),
    ("pipeline.throttle.errors", "RequestSizeRefused", "pipeline.gate.errors", "RequestSizeRefused"),
]


@pytest.mark.parametrize(("old_module", "old_name", "new_module", "new_name"), MOVED)
def test_an_old_name_is_the_new_one_and_warns_where_it_is_used(
    old_module: str, old_name: str, new_module: str, new_name: str
) -> None:
    module = importlib.import_module(old_module)
    with pytest.warns(DeprecationWarning, match=f"{old_module}.{old_name} is now {new_module}.{new_name};") as warned:
        found = getattr(module, old_name)
    assert found is getattr(importlib.import_module(new_module), new_name)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("old_module", sorted({old_module for old_module, *_ in MOVED}))
def test_a_name_that_never_was_is_no_attribute(old_module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{old_module}' has no attribute 'Nothing'"):
        _ = importlib.import_module(old_module).Nothing


def test_the_drivers_room_loads_nothing_of_the_gate() -> None:
    modules = sorted({old_module for old_module, *_ in MOVED})
    program = f"import sys, {', '.join(modules)}; print(*[name for name in sys.modules if 'pipeline.gate' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=60)
    assert done.stdout.split() == []


def test_the_old_imports_of_a_program_still_run() -> None:
    program = (
        "from pipeline.throttle.errors import GateDepleted, GateTimeout, RequestSizeRefused\n"
        "from pipeline.throttle.gate import Gate\n"
        "from pipeline.throttle.waiting_room import Room\n"
        "gate = Gate.connect('127.0.0.1:1', Room(pool_bytes=64_000_000))\n"
        "with gate.acquire('alice', 'etl') as passage:\n"
        "    assert not passage.was_throttled\n"
        "gate.close(0.05)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program], capture_output=True, check=True, text=True, timeout=60
    )
    assert "pipeline.throttle.waiting_room.Room is now pipeline.gate.limits.GateLimits" in done.stderr
