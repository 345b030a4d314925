"""A proxy before a real broker: as an older one that does not know some requests, or as a network that delays one.

Kafka has no settings for that. The broker advertises the port of the proxy, which passes everything on but for that.
"""

import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Event, Thread
from typing import Final, NamedTuple

from tests.waiting import PATIENCE_SECONDS

_API_VERSIONS: Final = 18
_NOBODY_KNOWS: Final = 9_999

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


def without_requests(port: int, target: int, missing: Sequence[tuple[int, int, int]]) -> AbstractContextManager[None]:
    """A `proxy` that gives some requests another number in the answer to ApiVersions, which nobody knows.

    Args:
        missing: Number, lowest and highest version of each such request, as the broker has them.
    """

    def watch(_connection: Connection) -> tuple[PassOn, PassOn]:
        asked: set[bytes] = set()

        def request(frame: bytes) -> bytes:
            if struct.unpack(">h", frame[:2]) == (_API_VERSIONS,):
                asked.add(frame[4:8])  # by which number the answer will be known
            return frame

        def answer(frame: bytes) -> bytes:
            if frame[:4] in asked:
                for number, lowest, highest in missing:
                    entry = struct.pack(">hhh", number, lowest, highest)
                    assert frame.count(entry) == 1
                    frame = frame.replace(entry, struct.pack(">hhh", _NOBODY_KNOWS + number, lowest, highest))
            return frame

        return request, answer

    return proxy(port, target, watch)


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
