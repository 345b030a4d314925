"""Waits for the master of a standalone Spark cluster, `spark://host:port`, before and while a session is made there.

Spark itself tries for a minute, writes stack traces, and then leaves a stopped context behind.
"""

import logging
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, repeat
from threading import Event
from typing import Final, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from pipeline.errors import first_line
from pipeline.stream.errors import MasterUnreachable, SparkGivenUp

log = logging.getLogger(__name__)

Made = TypeVar("Made")

_STANDALONE: Final = re.compile(r"spark://(.+)")
_PLACE: Final = re.compile(r"\[?(?P<host>.+?)\]?:(?P<port>\d+)")
_RETRY_SECONDS: Final = (1, 2, 4, 8, 16, 30)
_CONNECT_SECONDS: Final = 3.0
_STOPPED: Final = "stopped SparkContext"


def when_master_answers(master: str, make: Callable[[], Made], given_up: Event, waits: bool = True) -> Made:
    """Make a session as soon as the master answers; tried again without end, with a line in the log for each try.

    Args:
        master: As in the settings. Where it is not `spark://…`, the session is made at once.
        make: Makes the session.
        given_up: Ends the waiting.
        waits: Whether to wait; if not, the first failure is raised.

    Raises:
        MasterUnreachable: The master does not answer, and nobody is to wait.
        SparkGivenUp: `given_up` is set.
    """
    places = _places(master)
    for rest_seconds in chain(_RETRY_SECONDS, repeat(_RETRY_SECONDS[-1])):
        try:
            if places:
                _refuse_silent(master, places)
            return _made(master, make) if places else make()
        except MasterUnreachable as exc:
            if not waits:
                raise
            log.warning("%s; next try in %g s", exc, rest_seconds)
        if given_up.wait(rest_seconds):
            break
    raise SparkGivenUp


def _places(master: str) -> list[tuple[str, int]]:
    """Host and port of each master, as there may be spare ones; none if Spark has to judge the address itself."""
    found = _STANDALONE.fullmatch(master)
    matches = [_PLACE.fullmatch(place) for place in found[1].split(",")] if found else []
    return [(match["host"], int(match["port"])) for match in matches if match]


def _refuse_silent(master: str, places: Sequence[tuple[str, int]]) -> None:
    causes = []
    for host, port in places:
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as exc:
            causes.append(f"{host}:{port}: {first_line(exc)}")
        else:
            return
    raise MasterUnreachable(master, "; ".join(causes))


def _made(master: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except (Py4JJavaError, PySparkException) as exc:
        if _STOPPED not in str(exc):
            raise
        context = SparkContext._active_spark_context
        with suppress(Py4JError, OSError):
            if context is not None:
                context.stop()
        raise MasterUnreachable(master, "something listens there, and took no application within a minute") from exc
