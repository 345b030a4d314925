"""A master that does not answer is said at once and waited for; the session is made when it answers."""

import logging
import socket
from collections.abc import Iterator
from threading import Event

import pytest

from pipeline.demo.process import free_ports
from pipeline.errors import MasterUnreachable, PipelineError
from pipeline.stream import executors as waiting
from pipeline.stream.executors import when_master_answers
from tests.log_messages import messages_of


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("master", ["", "local[2]", "yarn", "k8s://https://there:6443", "spark://no-port"])
def test_where_there_is_no_standalone_address_the_session_is_made_at_once(master: str) -> None:
    assert when_master_answers(master, lambda: "session", Event()) == "session"


def test_one_of_several_masters_is_enough(listener: socket.socket) -> None:
    (closed,) = free_ports(1)
    master = f"spark://127.0.0.1:{closed},{address(listener)}"
    assert when_master_answers(master, lambda: "session", Event()) == "session"


def test_a_silent_master_is_told_with_address_cause_and_remedy_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(waiting, "_RETRY_SECONDS", (0.01, 0.02))
    started: list[socket.socket] = []

    class Starting(Event):
        """Somebody starts the master while it is waited for."""

        def wait(self, timeout: float | None = None) -> bool:
            if timeout == 0.02:
                started.append(socket.create_server(("127.0.0.1", port)))
            return False

    with caplog.at_level(logging.WARNING):
        made = when_master_answers(f"spark://127.0.0.1:{port}", lambda: "session", Starting())
    started[0].close()
    assert made == "session"
    first, second = messages_of(caplog, "pipeline.stream.executors")
    assert first.startswith(f"no Spark master answers at spark://127.0.0.1:{port}: 127.0.0.1:{port}: ")
    assert "refused. Fix: start it, or name" in first
    assert first.endswith("next try in 0.01 s")
    assert second.endswith("next try in 0.02 s")


def test_nobody_waits_if_not_asked_to() -> None:
    (port,) = free_ports(1)
    with pytest.raises(MasterUnreachable) as refusal:
        when_master_answers(f"spark://127.0.0.1:{port}", lambda: "session", Event(), waits=False)
    assert refusal.value.exit_code == 6


def test_a_wait_that_is_given_up_makes_no_session() -> None:
    (port,) = free_ports(1)
    given_up = Event()
    given_up.set()
    with pytest.raises(PipelineError):
        when_master_answers(f"spark://127.0.0.1:{port}", lambda: pytest.fail("a session"), given_up)
