"""Transactions with a mark, on a real broker behind a network that brings a request late.

A client that lost its connection sends a request again, and the broker may get both. Producer and epoch are the same
in the next transaction, so the late one counts there:

    EndTxn of N            ends transaction N + 1 before its mark: a kill between the two repeats its records
    TxnOffsetCommit of N   puts the mark of N into transaction N + 1: the next writer repeats its records
"""

import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, Final, NamedTuple

import pytest
from kafka import KafkaAdminClient

from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.cluster.transactions import Mark, MarkedTransactions
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.errors import TransactionFenced
from pipeline.jvm.jars import fetch
from pipeline.process import free_ports
from tests.topic_reading import read_topic
from tests.waiting import PATIENCE_SECONDS

TXN_OFFSET_COMMIT: Final = 28
END_TXN: Final = 26
PassOn = Callable[[bytes], bytes | None]
"""What the other side gets in place of a frame; None: nothing, and the client's connection is cut."""


class Connection(NamedTuple):
    """Between a client and the broker."""

    client: socket.socket
    broker: socket.socket


@contextmanager
def proxy(port: int, target: int, watch: Callable[[Connection], tuple[PassOn, PassOn]]) -> Iterator[None]:
    """Listen on a port and pass on to the broker at another one, both on 127.0.0.1, until the end of the block.

    Args:
        port: What the broker advertises.
        target: Where it listens.
        watch: Says of a new connection what its requests become, and its answers.
    """
    with socket.create_server(("127.0.0.1", port)) as server:
        sockets: list[socket.socket] = [server]
        threads: list[Thread] = []

        def accept() -> None:
            with suppress(OSError):  # the server was closed
                while True:
                    client, _ = server.accept()
                    made = Connection(client, socket.create_connection(("127.0.0.1", target)))
                    sockets.extend(made)
                    requests, answers = watch(made)
                    for ends in ((*made, requests), (*reversed(made), answers)):
                        threads.append(Thread(target=_relay, args=ends, daemon=True))
                        threads[-1].start()

        accepting = Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield
        finally:
            for one in sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            for thread in (accepting, *threads):
                thread.join()


def _relay(source: socket.socket, sink: socket.socket, pass_on: PassOn) -> None:
    with suppress(OSError), source.makefile("rb") as frames:
        while head := frames.read(4):
            frame = pass_on(frames.read(struct.unpack(">i", head)[0]))
            if frame is None:
                source.shutdown(socket.SHUT_RDWR)
                return
            sink.sendall(struct.pack(">i", len(frame)) + frame)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


class LateRequest:
    """Takes one request of a kind off its way and cuts its connection; the broker gets it when `let_go` is called."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._is_wanted = False
        self._held: tuple[socket.socket, bytes] | None = None
        self._answered = Event()

    def take_next(self) -> None:
        """Take the next one."""
        self._is_wanted = True

    def let_go(self) -> None:
        """Give the one that was taken to the broker, and wait for its answer, which nobody gets."""
        assert self._held is not None, "no such request came"
        (broker, frame), self._held = self._held, None
        self._answered.clear()
        broker.sendall(struct.pack(">i", len(frame)) + frame)
        assert self._answered.wait(PATIENCE_SECONDS)

    def watch(self, connection: Connection) -> tuple[PassOn, PassOn]:
        """What `proxy` asks for."""
        late: list[bytes] = []

        def request(frame: bytes) -> bytes | None:
            if not self._is_wanted or struct.unpack(">h", frame[:2]) != (self._number,):
                return frame
            self._is_wanted = False
            self._held = connection.broker, frame
            late.append(frame[4:8])
            return None

        def answer(frame: bytes) -> bytes:
            if frame[:4] in late:
                self._answered.set()
            return frame

        return request, answer


TIMEOUT_MS = 60_000
ACCOUNT = {"sasl.mechanism": "PLAIN", "sasl.username": "job", "sasl.password": "job-secret"}


class Killed(Exception):
    """The process of a writer is gone."""


@pytest.fixture(scope="module")
def far_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedBroker, int]]:
    """A broker that says on its SASL listener that it is reached at another port, and that port."""
    fetch()
    plain, sasl, advertised = free_ports(3)
    addresses = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{advertised}"
    options = BrokerOptions(settings={"advertised.listeners": addresses})
    ports = {"PLAINTEXT": plain, "SASL_PLAINTEXT": sasl}
    folder = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker(folder, {"job": ACCOUNT["sasl.password"]}, ports=ports, options=options) as broker:
        yield broker, advertised


class Setting:
    """Writers of one name, one after the other. Each begins at the mark, and is killed in its second transaction."""

    def __init__(self, broker: EmbeddedBroker, advertised: int, late: LateRequest, late_at: str, killed_at: str):
        self._late, self._late_at, self._killed_at = late, late_at, killed_at
        self._servers = broker.bootstrap_servers
        self._access = ClusterAccess(f"127.0.0.1:{advertised}", {"security.protocol": "SASL_PLAINTEXT"} | ACCOUNT)
        self._topic = f"late.{time.time_ns()}"
        self._is_next = False
        admin: Any = KafkaAdminClient(bootstrap_servers=self._servers)
        topics = topic_specs(1, 1_000, throttle_topic=self._topic, marker_topic=f"{self._topic}.marker")[1:]
        create_topics(admin, topics)
        admin.close()

    def round(self) -> None:
        """A transaction in which a request is sent twice, and the next one, in which its first copy arrives."""
        writer = self.writer()
        mark = writer.open()
        number = 0 if mark is None else mark.number
        self.commit_twice_asked(writer, number)
        self._is_next = True
        with pytest.raises(Killed):
            self.commit(writer, number + 1)
        self._is_next = False
        writer.close()

    def commit_twice_asked(self, writer: MarkedTransactions, number: int) -> None:
        """A transaction in which a request is sent twice."""
        self._late.take_next()
        self.commit(writer, number)

    def writer(self) -> MarkedTransactions:
        """Another one, not opened yet."""
        return MarkedTransactions(self._topic, f"{self._topic}.marker", self._topic, self._access, TIMEOUT_MS)

    def reach(self, moment: str) -> None:
        """A moment of a transaction."""
        if self._is_next and moment == self._late_at:
            self._late.let_go()
        if self._is_next and moment == self._killed_at:
            raise Killed

    def repeats(self) -> int:
        """How many records too many are on the topic, where each number must be."""
        last = self.writer()
        last.open()  # ends what the one that was killed has left open, for which readers wait
        last.close()
        counts = Counter(int(record.value) for record in read_topic(self._servers, self._topic))
        assert sorted(counts) == list(range(len(counts)))
        return counts.total() - len(counts)

    def commit(self, writer: MarkedTransactions, number: int) -> None:
        """A transaction of one record, and the mark after it."""

        def send(producer: Any) -> list[Any]:
            sent = producer.send(self._topic, str(number).encode(), key=str(number).encode())
            sent.get(PATIENCE_SECONDS)
            self.reach("records sent")
            return [sent]

        writer.commit(send, Mark(number + 1))


@pytest.fixture(
    params=[
        pytest.param((END_TXN, "records sent", "records sent"), id="end of a transaction"),
        pytest.param((TXN_OFFSET_COMMIT, "transaction.sent", "transaction.committed"), id="mark"),
    ]
)
def setting(
    far_broker: tuple[EmbeddedBroker, int], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Setting]:
    broker, advertised = far_broker
    number, late_at, killed_at = request.param
    late = LateRequest(number)
    made = Setting(broker, advertised, late, late_at, killed_at)
    monkeypatch.setattr("pipeline.cluster.transactions.failpoint", made.reach)
    with proxy(advertised, int(broker.address("SASL_PLAINTEXT").partition(":")[2]), late.watch):
        yield made


@pytest.mark.broker
@pytest.mark.parametrize("rounds", [3, pytest.param(200, marks=pytest.mark.long)])
def test_a_request_that_comes_late_repeats_no_record(setting: Setting, rounds: int) -> None:
    for _ in range(rounds):
        setting.round()
    assert setting.repeats() == 0


@pytest.mark.broker
def test_without_a_new_producer_it_is_seen_to_repeat_records(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MarkedTransactions, "_replace_producer", lambda _self: None)
    for _ in range(2):
        setting.round()
    assert setting.repeats() > 0


@pytest.mark.broker
def test_a_new_producer_does_not_take_the_topic_from_a_writer_that_has_moved_the_mark(setting: Setting) -> None:
    first, second = setting.writer(), setting.writer()
    first.open()
    setting.commit_twice_asked(first, 0)
    assert second.open() == Mark(1)
    setting.commit(second, 1)
    with pytest.raises(TransactionFenced):
        setting.commit(first, 1)
    assert second.open() == Mark(2)
    assert setting.repeats() == 0
    for writer in (first, second):
        writer.close()
