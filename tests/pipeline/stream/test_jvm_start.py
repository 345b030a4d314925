"""What Spark's JVM writes to standard error arrives as it is, but for the lines that each of its starts writes."""

import os
from threading import Thread

import pytest

from pipeline.stream.session import pass_on

NOISES = (
    b"WARNING: Using incubator modules: jdk.incubator.vector\n",
    b"WARNING: package sun.security.action not in java.base\n",
)


def passed_on(*chunks: bytes) -> bytes:
    """What arrives of what is written in these pieces, each of which is read before the next one is written."""
    source, written = os.pipe()
    arrived, target = os.pipe()
    copying = Thread(target=pass_on, args=(source, target))
    copying.start()
    for chunk in chunks:
        os.write(written, chunk)
    os.close(written)
    copying.join()
    os.close(target)
    with open(arrived, "rb") as stream:
        return stream.read()


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("length", [100, 20, 1])
def test_a_line_of_every_start_is_left_out_however_it_is_cut(noise: bytes, length: int) -> None:
    chunks = [noise[place : place + length] for place in range(0, len(noise), length)]
    assert passed_on(b"before\n", *chunks, b"after\n") == b"before\nafter\n"


@pytest.mark.parametrize(
    "text", [b"", b"no end of line", b"WARNING: Using", b"WARNING: something else\n", b"\xff\x00\nOutOfMemoryError\n"]
)
def test_everything_else_arrives_also_at_a_sudden_end(text: bytes) -> None:
    assert passed_on(text) == text
    assert passed_on(*(text[place : place + 1] for place in range(len(text)))) == text
