"""Random messages that nobody should send, from a seed.

Two corpora: `comparable` messages, which plain Python reads as Spark must, and messages `beyond` that, which Python
reads differently or not at all.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

from tests.pipeline.stream.messages import APPENDED_AT_MS, DAY_MS, event

LARGEST_MESSAGE_BYTES: Final = 1_048_576
_LARGE_SHARE: Final = 0.0005
_LARGEST: Final = 2**40
_FIELDS: Final = (
    "event_time_ms",
    "user",
    "client_id",
    "produced_bytes",
    "fetched_bytes",
    "io_time_ns",
    "request_count",
)
# Text rather than values: json.dumps cannot write most of them.
_NUMBERS: Final = (
    *("0", "-0", "1", str(_LARGEST), str(_LARGEST + 1), "-1", str(2**63 - 1), str(2**63), str(-(2**63)), "9" * 30),
    *("-" + "9" * 30, "1.0", "0.5", "1e3", "1E400", "-1e400", "1e-400", "01", "+1", "1.", ".5", "1e", "0x10", "--1"),
)
_WORDS: Final = ("null", "true", "false", "NaN", "Infinity", "-Infinity", "nul", "[]", "{}", '""', "[1]", '{"a":1}', "")
_LONG_NAMES: Final = (
    *("x" * 32_766, "x" * 32_767, "x" * 32_768, "é" * 16_383, "é" * 16_384, "用" * 10_922, "用" * 10_923),
    *("😀" * 8_191, "😀" * 8_192, "\\u0061" * 32_767, "\\u00e9" * 16_384, "y" * 600_000),
)
_LARGEST_TIME_BITS: Final = 62
_ODD_VALUES: Final = (
    *("true", "[]", "{}", "-0", "-0.0", "0.0", "1.5", "1e10", "1E-5", "123456.75", "9999999.0", "10000000.0", "0.001"),
    *("0.00099", "1234567890.125", "-1.25e-7", "5e-324", "1.7976931348623157e308", "100.0", "[1.0, {}]", "12345678901"),
    *('{"a": 1, "a": [2]}', '["a b", null, false]', '{"é": "😀"}', '["\\ud83d\\ude00"]', '["\\ud83d", "\\ude00x"]'),
    *(
        '"\\u0001\\u001f\\u007f"',
        '"\\b\\f\\n\\r\\t\\/\\\\"',
        '{"\\u0000":"\\u00e9"}',
        '"\\ufeff"',
        '"\\ufffd"',
        '"\\u2028/"',
    ),
    *('["\\u0001\\u001f\\u007f", "\\b\\f\\n\\r\\t\\/\\\\"]', '"\\ud83d\\ude00"', '"\\udfff"'),
)
_NO_NAMES: Final = ("null", "NaN", "nul", "7", "")
_NAMES: Final = (
    "alice",
    "用户",
    "😀",
    "",
    "a\\u0000b",
    "\\ud83d\\ude00",
    "e\u0301",
    "\u202egnu",
    "x" * 300,
    "]}",
    '\\"',
    "\\q",
)
_EXTRA: Final = ('"unknown":[{}]', '"user":"twice"', '"produced_bytes":1', '"":0', '"x":{"user":"inner"}', "")
_SEPARATORS: Final = (",", ",", ",", ",", " , ", ",,", ";", "")
_ASCII: Final = bytes(range(1, 128))
_AROUND: Final = (*[b""] * 60, b" ", b"\n", b"\t\r\n ", b"\x0b", b"\x00", b"x", b"}", b"]", b",")


def comparable(draw: Random) -> bytes | None:
    """A message that the stream must read as Python's json and the model read it."""
    if draw.random() < 0.01:
        return None
    value = _document(draw).encode() if draw.random() > _LARGE_SHARE else _large(draw)
    if draw.random() < 0.15:
        # Bytes that are not UTF-8 are left out here; `beyond` has those.
        value = _bytes_changed(draw, value, _ASCII).decode(errors="ignore").encode()
    return draw.choice(_AROUND) + value + draw.choice(_AROUND)


def beyond(draw: Random) -> bytes:
    """A message that Python's json may read differently, or not at all."""
    return draw.choice(_BEYOND)(draw)


def messages(seed: int, count: int, kind: Callable[[Random], bytes | None]) -> list[bytes | None]:
    """A number of messages, always the same for the same seed."""
    draw = Random(seed)
    return [kind(draw) for _ in range(count)]


def append_times(seed: int, count: int) -> list[int]:
    """When each message was appended, by brokers whose clocks differ by up to a day, some by exactly a day."""
    draw = Random(seed)
    return [APPENDED_AT_MS + _clock_error_ms(draw) for _ in range(count)]


def large_messages(seed: int, size_bytes: int = LARGEST_MESSAGE_BYTES) -> list[bytes]:
    """A few messages of this size, each filled in a different way."""
    good = json.dumps(event())

    def filled(head: str, body: str, tail: str) -> bytes:
        times = (size_bytes - len(head) - len(tail)) // len(body)
        return (head + body * times + tail).encode()

    return [
        filled('{"unknown":"', "x", '",' + good[1:]),
        filled('{"user":"', "u", '"}'),
        filled("[" + good, "," + good, "]"),
        filled("[", "[", ""),
        filled('{"unknown":', '{"a":', ""),
        filled("[0", ",0", "]"),
        filled('{"event_time_ms":1', "0", "}"),
        filled("", " ", good),
        Random(seed).randbytes(size_bytes),
        b"\x00" * size_bytes,
    ]


def _clock_error_ms(draw: Random) -> int:
    kind = draw.random()
    if kind < 0.5:
        return 0
    if kind < 0.7:
        return draw.randint(-3_000, 3_000)
    if kind < 0.85:
        return draw.choice((-DAY_MS, DAY_MS)) + draw.randint(-20_000, 20_000)
    return draw.randint(-DAY_MS, DAY_MS)


def _large(draw: Random) -> bytes:
    """An array of up to the largest size of a message."""
    size_bytes, elements, length = draw.randrange(LARGEST_MESSAGE_BYTES), [], 2
    while True:
        elements.append(_element(draw))
        length += len(elements[-1].encode(errors="replace")) + 1
        if length > size_bytes:
            return f"[{','.join(elements[:-1])}]".encode()


def _document(draw: Random) -> str:
    if draw.random() < 0.5:
        return _element(draw)
    return "[" + "".join(_joined(draw, [_element(draw) for _ in range(draw.randrange(6))])) + "]"


def _element(draw: Random) -> str:
    kind = draw.random()
    if kind < 0.5:
        times = {"event_time_ms": int(_time(draw))} if draw.random() < 0.5 else {}
        return json.dumps(event(user=draw.choice(("a", "b", "c")), produced_bytes=draw.randrange(100), **times))
    if kind < 0.6:
        return draw.choice((*_WORDS, *_NUMBERS, '"text"'))
    fields = [(name, _value(draw, name)) for name in _FIELDS if draw.random() < 0.9]
    draw.shuffle(fields)
    texts = [f'"{name}":{value}' for name, value in fields]
    if draw.random() < 0.3:
        texts.insert(draw.randrange(len(texts) + 1), draw.choice(_EXTRA))
    return "{" + "".join(_joined(draw, texts)) + "}"


def _joined(draw: Random, texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if number:
            yield draw.choice(_SEPARATORS) if draw.random() < 0.05 else ","
        yield text


def _value(draw: Random, name: str) -> str:
    kind = draw.random()
    if name in {"user", "client_id"} and kind > 0.997:
        return f'"{draw.choice(_LONG_NAMES)}"'
    if name in {"user", "client_id"}:
        return f'"{draw.choice(_NAMES)}"' if kind < 0.95 else draw.choice(_NO_NAMES)
    if kind < 0.75:
        return _time(draw) if name == "event_time_ms" else str(draw.randrange(1000))
    return draw.choice(_NUMBERS) if kind < 0.95 else draw.choice(_WORDS)


def _time(draw: Random) -> str:
    kind = draw.random()
    if kind < 0.5:
        return str(1_700_000_000_000 + draw.randrange(20_000))
    if kind < 0.8:
        return str(APPENDED_AT_MS + draw.randint(-2 * DAY_MS, 2 * DAY_MS))
    return str(draw.getrandbits(draw.randint(1, _LARGEST_TIME_BITS)))


def _bytes_changed(draw: Random, value: bytes, alphabet: bytes) -> bytes:
    changed = bytearray(value)
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(len(changed) + 1)
        act = draw.randrange(3)
        if act == 0:
            changed[place:place] = bytes([draw.choice(alphabet)])
        elif act == 1:
            del changed[place : place + draw.randrange(1, 20)]
        else:
            changed[place : place + 1] = bytes([draw.choice(alphabet)])
    return bytes(changed)


def _any_bytes(draw: Random) -> bytes:
    return draw.randbytes(draw.randrange(200))


def _bytes_flipped(draw: Random) -> bytes:
    return _bytes_changed(draw, _document(draw).encode(), bytes(range(256)))


def _lone_surrogate(draw: Random) -> bytes:
    escape = draw.choice(("\\ud800", "\\udfff", "\\ud800\\ud800", "\\udc00\\ud800", "\\ud83d"))
    return json.dumps(event(user="NAME")).replace("NAME", escape).encode()


def _surrogate_bytes(draw: Random) -> bytes:
    raw = draw.choice((b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xe2\x82", b"\xef\xbf\xbd"))
    return json.dumps(event(user="NAME")).encode().replace(b"NAME", raw)


def _marked_encoding(draw: Random) -> bytes:
    text = _document(draw)
    return draw.choice(
        (
            b"\xef\xbb\xbf" + text.encode(),
            text.encode("utf-16", errors="surrogatepass"),
            text.encode("utf-32", errors="surrogatepass"),
            text.encode("utf-16-le", errors="surrogatepass"),
        )
    )


def _deep(draw: Random) -> bytes:
    depth = draw.choice((10, 490, 499, 500, 501, 990, 996, 997, 998, 999, 1000, 1001, 2000, 10_000))
    opening, closing = draw.choice((("[", "]"), ('{"a":', "}")))
    core: Any = draw.choice(("1", json.dumps(event()), ""))
    nested = opening * depth + core + closing * (depth if draw.random() < 0.7 else 0)
    return draw.choice(
        (nested, f"[{json.dumps(event())},{nested}]", f'{{"unknown":{nested},' + json.dumps(event())[1:])
    ).encode()


def _long_number(draw: Random) -> bytes:
    digits = "9" * draw.choice((31, 400, 999, 1000, 1001, 4300, 4301, 20_000))
    number = draw.choice((digits, f"-{digits}", f"1.{digits}", f"1e{digits}", f"1e-{digits}"))
    text = json.dumps(event(produced_bytes=7))
    return draw.choice((text.replace(": 7}", f": {number}}}"), f'[{text},{{"unknown":{number},{text[1:]}]')).encode()


def _odd_content(draw: Random) -> bytes:
    """Valid JSON that a writer of JSON may write again in another way: as a name, and in elements with a fault."""
    odd = draw.choice(_ODD_VALUES)
    name, text = draw.choice(("user", "client_id", "broker_id", "unknown")), json.dumps(event(user="a"))
    element = text[:-1] + f',"{name}":{odd}' + draw.choice(("}", "}", ',"produced_bytes":-1}', ',"user":"last"}'))
    return draw.choice((element, f"[{text},{element},{odd}]", f"[{odd}]", odd)).encode()


def _odd_bytes(draw: Random) -> bytes:
    """The same with bytes that are not UTF-8."""
    raw = draw.choice(
        (b"\xed\xa0\x80", b"\xed\xa0", b"\xf0\x9f\x98", b"\xe2\x82", b"\xc0\xaf", b"\xff", b"\xf8\x88\x80")
    )
    changed = bytearray(_odd_content(draw))
    place = draw.randrange(len(changed) + 1)
    changed[place:place] = raw
    return bytes(changed)


_BEYOND: Final = (
    _odd_content,
    _odd_bytes,
    _any_bytes,
    _bytes_flipped,
    _bytes_flipped,
    _bytes_flipped,
    _lone_surrogate,
    _surrogate_bytes,
    _marked_encoding,
    _long_number,
    _bytes_flipped,
    _bytes_flipped,
    lambda draw: _deep(draw) if draw.random() < 0.1 else _any_bytes(draw),
)
