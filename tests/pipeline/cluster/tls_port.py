"""Ports that speak TLS: with a certificate of the test's choice and nothing after the handshake, or very slowly."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final

from tests.pipeline.cluster.certificates import Identity

# The head of a record of 16 kB, with a ServerHello in it.
_BEGIN_OF_AN_ANSWER: Final = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03"


@contextmanager
def tls_port(identity: Identity) -> Iterator[str]:
    """Its `127.0.0.1:port`; it answers until the end of the block."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.keystore)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=_answer, args=(listening, context))
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer(listening: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # the end of the block
            return
        connection.settimeout(5)
        with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)


@contextmanager
def slow_tls_port() -> Iterator[str]:
    """Its `127.0.0.1:port`; it answers the first handshake with a byte every 20 ms, for a minute at most."""
    ended = Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=_drip, args=(listening, ended))
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


def _drip(listening: socket.socket, ended: Event) -> None:
    connection, _ = listening.accept()
    with suppress(OSError), connection:
        for byte in _BEGIN_OF_AN_ANSWER.ljust(3_000, b"\x00"):
            connection.sendall(bytes([byte]))
            if ended.wait(0.02):
                return
