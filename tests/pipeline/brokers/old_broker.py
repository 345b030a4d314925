"""A broker that does not say that it knows some requests, as an older one: a proxy before a real one.

Kafka has no setting for that. The proxy passes everything on, and in the answer to ApiVersions it gives the requests a
number that nobody knows.
"""

import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Final

_API_VERSIONS: Final = 18
_NOBODY_KNOWS: Final = 9_999


@contextmanager
def without_requests(port: int, target: int, missing: Sequence[tuple[int, int, int]]) -> Iterator[None]:
    """Listen on a port and pass on to the broker at another one, both on 127.0.0.1, until the end of the block.

    Args:
        port: What the broker advertises.
        target: Where it listens.
        missing: Number, lowest and highest version of each request that it shall not know, as the broker has them.
    """
    with socket.create_server(("127.0.0.1", port)) as server:
        connections: list[socket.socket] = []
        threads: list[Thread] = []

        def accept() -> None:
            with suppress(OSError):  # the server was closed
                while True:
                    client, _ = server.accept()
                    broker = socket.create_connection(("127.0.0.1", target))
                    connections.extend((client, broker))
                    asked: set[bytes] = set()
                    for work in (_requests(client, broker, asked), _answers(broker, client, asked, missing)):
                        threads.append(Thread(target=work, daemon=True))
                        threads[-1].start()

        accepting = Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield
        finally:
            for one in (server, *connections):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            for thread in (accepting, *threads):
                thread.join()


def _requests(client: socket.socket, broker: socket.socket, asked: set[bytes]) -> Callable[[], None]:
    def pass_on(frame: bytes) -> bytes:
        if struct.unpack(">h", frame[:2]) == (_API_VERSIONS,):
            asked.add(frame[4:8])  # by which number the answer will be known
        return frame

    return lambda: _relay(client, broker, pass_on)


def _answers(
    broker: socket.socket, client: socket.socket, asked: set[bytes], missing: Sequence[tuple[int, int, int]]
) -> Callable[[], None]:
    def pass_on(frame: bytes) -> bytes:
        if frame[:4] in asked:
            for number, lowest, highest in missing:
                entry = struct.pack(">hhh", number, lowest, highest)
                assert frame.count(entry) == 1
                frame = frame.replace(entry, struct.pack(">hhh", _NOBODY_KNOWS + number, lowest, highest))
        return frame

    return lambda: _relay(broker, client, pass_on)


def _relay(source: socket.socket, sink: socket.socket, pass_on: Callable[[bytes], bytes]) -> None:
    with suppress(OSError), source.makefile("rb") as frames:
        while head := frames.read(4):
            frame = frames.read(struct.unpack(">i", head)[0])
            sink.sendall(head + pass_on(frame))
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
