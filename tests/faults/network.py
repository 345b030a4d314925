"""Network namespaces of a test's own: hosts on one switch, which can be cut off. Linux, root, `ip`.

The switch has a namespace too, so nothing of this reaches the machine's own network, and two checkouts may have the
same addresses. The names of the namespaces contain the process id.
"""

import atexit
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Self

_IP: Final = "ip"
_NAMED: Final = Path("/run/netns")
_PREFIX: Final = "kquota-"
_SUBNET: Final = "10.77.0"
_CLONE_NEWNET: Final = 0x40000000
_SLOW: Final = {
    "150 ms later, 1 % lost": "netem delay 150ms 50ms loss 1%",
    "256 kbit/s": "tbf rate 256kbit burst 4kb latency 3s",
}
"""How a link is made slow, the better way first; a kernel may have none of them."""


class Network:
    """Hosts with one address each, for one block.

    Args:
        hosts: Their names, at most 15 letters.

    Raises:
        OSError: There is no `ip`, or it may not make namespaces; the message says so.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._addresses = {host: f"{_SUBNET}.{number}" for number, host in enumerate(hosts, 1)}
        self._switch = self._name("switch")

    def __enter__(self) -> Self:
        if not shutil.which(_IP):
            msg = "needs the command ip (iproute2)"
            raise OSError(msg)
        _remove_left()
        atexit.register(self._remove)
        try:
            _run(_IP, "netns", "add", self._switch)
            _run(_IP, "-n", self._switch, "link", "add", "name", "bridge", "type", "bridge")
            _run(_IP, "-n", self._switch, "link", "set", "dev", "bridge", "up")
            for host, address in self._addresses.items():
                self._add(host, address)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        atexit.unregister(self._remove)

    def address(self, host: str) -> str:
        return self._addresses[host]

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """What this thread starts and connects in the block is on this host: processes, threads, sockets."""
        with Path("/proc/thread-self/ns/net").open("rb") as before, (_NAMED / self._name(host)).open("rb") as there:
            _enter(there)
            try:
                yield
            finally:
                _enter(before)

    @contextmanager
    def cut(self, host: str) -> Iterator[None]:
        """Nothing reaches the host or leaves it. Connections stay open: neither end learns of it."""
        _run(_IP, "-n", self._switch, "link", "set", "dev", host, "down")
        try:
            yield
        finally:
            _run(_IP, "-n", self._switch, "link", "set", "dev", host, "up")

    @contextmanager
    def mute(self, host: str, towards: str) -> Iterator[None]:
        """What one host sends to another one is lost; the other way works: requests are done, without an answer."""
        route = ("blackhole", self.address(towards))
        _run(_IP, "-n", self._name(host), "route", "add", *route)
        try:
            yield
        finally:
            _run(_IP, "-n", self._name(host), "route", "del", *route)

    @contextmanager
    def slow(self, host: str) -> Iterator[str]:
        """The host's link is slow, both ways; how is given, "" if this kernel has no way."""
        ends = (f"-n {self._switch} qdisc {{}} dev {host} root", f"-n {self._name(host)} qdisc {{}} dev eth0 root")

        def is_done(what: str, queue: str) -> bool:
            commands = [["tc", *end.format(what).split(), *queue.split()] for end in ends]
            return not any(subprocess.run(one, capture_output=True, check=False).returncode for one in commands)

        how = next((how for how, queue in _SLOW.items() if is_done("add", queue)), "")
        try:
            yield how
        finally:
            is_done("del", "")

    def _name(self, host: str) -> str:
        return f"{_PREFIX}{os.getpid()}-{host}"

    def _add(self, host: str, address: str) -> None:
        name = self._name(host)
        _run(_IP, "netns", "add", name)
        ends = ("name", host, "netns", self._switch, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run(_IP, "link", "add", *ends)
        _run(_IP, "-n", self._switch, "link", "set", "dev", host, "master", "bridge", "up")
        _run(_IP, "-n", name, "link", "set", "dev", "lo", "up")
        _run(_IP, "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _run(_IP, "-n", name, "link", "set", "dev", "eth0", "up")

    def _remove(self) -> None:
        for host in (*self._addresses, "switch"):
            subprocess.run([_IP, "netns", "del", self._name(host)], capture_output=True, check=False)


def _remove_left() -> None:
    """Remove the namespaces of processes that were killed."""
    for path in _NAMED.glob(f"{_PREFIX}[0-9]*-*") if _NAMED.is_dir() else ():
        if not Path(f"/proc/{path.name.split('-')[1]}").exists():
            subprocess.run([_IP, "netns", "del", path.name], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{' '.join(command)}: {done.stderr.strip()}"
        raise OSError(msg)


def _enter(namespace: IO[bytes]) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace.fileno(), _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
