"""A port that speaks TLS with a certificate of the test's choice, and nothing after the handshake."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from tests.pipeline.cluster.certificates import Identity


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
