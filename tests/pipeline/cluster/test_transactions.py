"""Transactions with a mark, on a real broker behind a network that brings a request late.

A client that lost its connection sends a request again, and the broker may get both. Producer and epoch are the same
in the next transaction, so the late one counts there:

    EndTxn of N            ends transaction N + 1 before its mark: a kill between the two repeats its records
    TxnOffsetCommit of N   puts the mark of N into transaction N + 1: the next writer repeats its records
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread, Timer
from types import SimpleNamespace
from typing import Any, Final

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


class Network:
    """Between clients and a broker: it takes one request off its way, and the broker gets it when `let_go` is called.

    Args:
        port: What the broker advertises.
        target: Where it listens, both on 127.0.0.1.
        number: The kind of the request; the connection on which it came is cut.
    """

    def __init__(self, port: int, target: int, number: int) -> None:
        self._target, self._number = target, number
        self._is_wanted = False
        self._held: tuple[socket.socket, bytes, Thread] | None = None
        self._port = port
        self._threads: list[Thread] = []
        self.come_back()

    def take_next(self) -> None:
        """Take the next one."""
        self._is_wanted = True

    def let_go(self) -> None:
        """Give the one that was taken to the broker, and wait for its answer, which is dropped."""
        assert self._held is not None, "no such request came"
        (broker, frame, answers), self._held = self._held, None
        broker.sendall(struct.pack(">i", len(frame)) + frame)
        answers.join(PATIENCE_SECONDS)
        assert not answers.is_alive()

    def come_back(self) -> None:
        """Take connections, at first and after `close`."""
        self._sockets = [socket.create_server(("127.0.0.1", self._port))]
        self._start(self._accept)

    def close(self) -> None:
        """End all connections, and refuse new ones."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self, work: Callable[..., None], *arguments: Any) -> Thread:
        self._threads.append(Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def _accept(self) -> None:
        with suppress(OSError):  # the server was closed
            while True:
                client, _ = self._sockets[0].accept()
                broker = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += (client, broker)
                self._start(self._relay, client, broker, self._start(self._relay, broker, client))

    def _relay(self, source: socket.socket, sink: socket.socket, answers: Thread | None = None) -> None:
        """Pass on requests, whose answers another thread passes on, or answers; to a client that was cut none."""
        with suppress(OSError), source.makefile("rb") as frames:
            while head := frames.read(4):
                frame = frames.read(struct.unpack(">i", head)[0])
                if answers is not None and self._is_wanted and frame[:2] == struct.pack(">h", self._number):
                    self._is_wanted, self._held = False, (sink, frame, answers)
                    source.shutdown(socket.SHUT_RDWR)
                    return
                sink.sendall(head + frame)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


TIMEOUT_MS = 60_000
_AWAY_SECONDS: Final = 1.0
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

    def __init__(self, broker: EmbeddedBroker, advertised: int, network: Network, late_at: str, killed_at: str):
        self._network, self._late_at, self._killed_at = network, late_at, killed_at
        self._servers = broker.bootstrap_servers
        self._access = ClusterAccess(f"127.0.0.1:{advertised}", {"security.protocol": "SASL_PLAINTEXT"} | ACCOUNT)
        self._topic = f"late.{time.time_ns()}"
        self._is_next = False
        self.commits_a_round = 2 if killed_at == "transaction.committed" else 1
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
        self._network.take_next()
        self.commit(writer, number)

    def commit(self, writer: MarkedTransactions, number: int) -> None:
        """A transaction of one record, and the mark after it."""

        def send(producer: Any) -> list[Any]:
            sent = producer.send(self._topic, str(number).encode(), key=str(number).encode())
            sent.get(PATIENCE_SECONDS)
            self.reach("records sent")
            return [sent]

        writer.commit(send, Mark(number + 1))

    def commit_at_once(self, writer: MarkedTransactions, number: int) -> None:
        """A transaction of one record, for which nothing has to be waited once all are sent."""

        def send(producer: Any) -> list[Any]:
            sent = producer.send(self._topic, str(number).encode(), key=str(number).encode())

            def get(timeout: float) -> Any:
                assert sent.is_done
                return sent.get(timeout)

            return [SimpleNamespace(get=get)]

        writer.commit(send, Mark(number + 1))

    @contextmanager
    def away_for_a_moment(self) -> Iterator[None]:
        """The broker is away when the block begins, and comes back meanwhile."""
        self._network.close()
        comes_back = Timer(_AWAY_SECONDS, self._network.come_back)
        comes_back.start()
        try:
            yield
        finally:
            comes_back.join()

    def writer(self) -> MarkedTransactions:
        """Another one, not opened yet."""
        return MarkedTransactions(self._topic, f"{self._topic}.marker", self._topic, self._access, TIMEOUT_MS)

    def reach(self, moment: str) -> None:
        """A moment of a transaction."""
        if self._is_next and moment == self._late_at:
            self._network.let_go()
        if self._is_next and moment == self._killed_at:
            raise Killed

    def numbers(self) -> list[int]:
        """The numbers on the topic, in order."""
        last = self.writer()
        last.open()  # ends what the one that was killed has left open, for which readers wait
        last.close()
        return sorted(int(record.value) for record in read_topic(self._servers, self._topic))


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
    network = Network(advertised, int(broker.address("SASL_PLAINTEXT").partition(":")[2]), number)
    made = Setting(broker, advertised, network, late_at, killed_at)
    monkeypatch.setattr("pipeline.cluster.transactions.failpoint", made.reach)
    yield made
    network.close()


@pytest.mark.broker
def test_a_request_that_comes_late_repeats_no_record(setting: Setting) -> None:
    for _ in range(2):
        setting.round()
    assert setting.numbers() == list(range(2 * setting.commits_a_round))


@pytest.mark.broker
@pytest.mark.parametrize("setting", [pytest.param((END_TXN, "", ""), id="away")], indirect=True)
def test_a_transaction_goes_on_after_its_coordinator_refused_the_connection(setting: Setting) -> None:
    writer = setting.writer()
    writer.open()
    setting.commit(writer, 0)
    with setting.away_for_a_moment():
        setting.commit(writer, 1)
    assert setting.numbers() == [0, 1]
    writer.close()


@pytest.mark.broker
@pytest.mark.parametrize("setting", [pytest.param((END_TXN, "", ""), id="lingers")], indirect=True)
def test_no_message_lingers_after_the_last_one_is_sent(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cluster.transactions._LINGER_MS", TIMEOUT_MS // 2)
    writer = setting.writer()
    writer.open()
    setting.commit_at_once(writer, 0)
    writer.close()
    assert setting.numbers() == [0]


@pytest.mark.broker
def test_a_new_producer_leaves_the_topic_to_a_writer_that_has_moved_the_mark(setting: Setting) -> None:
    first, second = setting.writer(), setting.writer()
    first.open()
    setting.commit_twice_asked(first, 0)
    assert second.open() == Mark(1)
    setting.commit(second, 1)
    with pytest.raises(TransactionFenced):
        setting.commit(first, 1)
    assert second.open() == Mark(2)
    assert setting.numbers() == [0, 1]
    for writer in (first, second):
        writer.close()
