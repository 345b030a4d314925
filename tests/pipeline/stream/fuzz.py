"""Random messages that nobody should send: each must be read exactly as the model reads it.

Two corpora: `comparable` messages, which plain Python reads as the reader must, and messages `beyond` that, which
Python reads differently or not at all. Both are compared with `usage_model`, which shares nothing with the reader: dead
letters with their bytes, counts and sums; then the same after event times are limited to the driver's clock. Names are
around the largest length, event times from 0 to 2^62, brokers' clocks up to a day wrong.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from pipeline.stream.usage_columns import limit_event_times
from tests.pipeline.stream.messages import APPENDED_AT_MS, DAY_MS, LARGEST, RULES, event, read, usage
from tests.pipeline.stream.usage_model import expected_of, judged

_LIMIT_MS: Final = APPENDED_AT_MS + 2_000
"""The latest event time that the driver believes; some brokers' clocks are a day ahead of it."""
_ALL_LETTERS: Final = replace(RULES, letters_per_message=10**9)
Rows = dict[tuple[Any, ...], dict[str, Any]]


def faults_of(values: Sequence[bytes | None], appended_ms: Sequence[int]) -> list[str]:
    """Read messages; each difference from the model in a line, before and after the limit of event times."""
    batch = read(*values, appended_at_ms=appended_ms, rules=_ALL_LETTERS)
    by_model = judged(values)
    expected = expected_of(by_model, appended_ms, RULES.max_event_age_ms)
    letters = [(row["offset"], row["element_index"], row["value"]) for row in batch.dead_letters.to_pylist()]
    faults = [f"dead letter: {one!r}" for one in sorted(set(letters) ^ set(expected.dead), key=str)]
    got = (batch.good_count, batch.clamped_count, batch.ignored_count, batch.dead_count)
    wanted = (expected.good_count, expected.clamped_count, expected.ignored_count, len(expected.dead))
    faults += [f"good, clamped, ignored, dead must be {wanted}; got {got}"] * (got != wanted)
    faults += _unequal(usage(batch), expected.usage)
    limited, _ = limit_event_times(batch, _LIMIT_MS, RULES.sample_window_ms)
    in_time = expected_of(by_model, appended_ms, RULES.max_event_age_ms, _LIMIT_MS)
    if not batch.clamped_count <= limited.clamped_count <= in_time.clamped_count:
        faults.append(f"{limited.clamped_count} are clamped, of {in_time.clamped_count}")
    # The driver does not know the single events: of a window that holds the limit it may count fewer as clamped.
    rows = usage(limited), in_time.usage
    for row in (row for of_side in rows for row in of_side.values()):
        del row["clamped_count"]
    return [fault[:500] for fault in faults + _unequal(*rows)]


def _unequal(got: Rows, wanted: Rows) -> list[str]:
    differ = [key for key in got.keys() | wanted.keys() if got.get(key) != wanted.get(key)]
    return [f"{key} must be {wanted.get(key)}; got {got.get(key)}" for key in differ]


_NAME_FIELDS: Final = ("user", "client_id", "broker_id")
_FIELDS: Final = (
    *("event_time_ms", *_NAME_FIELDS, "produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns"),
    *("request_count", "throttle_exempt", "broker_throttle_ms"),
)
# Text rather than values: json.dumps cannot write most of them.
_NUMBERS: Final = (
    *("0", "-0", "1", str(LARGEST), str(LARGEST + 1), "-1", str(2**63 - 1), str(2**63), str(-(2**63)), "9" * 30),
    *("-" + "9" * 30, "1.0", "0.5", "1e3", "1E400", "-1e400", "1e-400", "01", "+1", "1.", ".5", "1e", "0x10", "--1"),
)
_WORDS: Final = ("null", "true", "false", "NaN", "Infinity", "-Infinity", "nul", "[]", "{}", '""', "[1]", '{"a":1}', "")
_LONG_NAMES: Final = (
    *("x" * 32_766, "x" * 32_767, "x" * 32_768, "é" * 16_383, "é" * 16_384, "用" * 10_922, "用" * 10_923),
    *("😀" * 8_191, "😀" * 8_192, "\\u0061" * 32_767, "\\u00e9" * 16_384, "y" * 600_000),
)
_LARGEST_TIME_BITS: Final = 62
_NO_NAMES: Final = ("null", "NaN", "nul", "7", "")
_NAMES: Final = (
    *("alice", "用户", "😀", "", "a\\u0000b", "\\ud83d\\ude00", "e\u0301", "\u202egnu", "x" * 300, "]}", '\\"', "\\q"),
)
_EXTRA: Final = ('"unknown":[{}]', '"user":"twice"', '"produced_bytes":1', '"":0', '"x":{"user":"inner"}', "")
_SEPARATORS: Final = (",", ",", ",", ",", " , ", ",,", ";", "")
_ASCII: Final = bytes(range(1, 128))
_AROUND: Final = (*[b""] * 60, b" ", b"\n", b"\t\r\n ", b"\x0b", b"\x00", b"x", b"}", b"]", b",")


def comparable(draw: Random) -> bytes | None:
    """A message that the stream must read as Python's json and the model read it."""
    if draw.random() < 0.01:
        return None
    value = _document(draw).encode()
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


def _clock_error_ms(draw: Random) -> int:
    kind = draw.random()
    if kind < 0.5:
        return 0
    if kind < 0.7:
        return draw.randint(-3_000, 3_000)
    if kind < 0.85:
        return draw.choice((-DAY_MS, DAY_MS)) + draw.randint(-20_000, 20_000)
    return draw.randint(-DAY_MS, DAY_MS)


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
    if name in _NAME_FIELDS and kind > 0.997:
        return f'"{draw.choice(_LONG_NAMES)}"'
    if name in _NAME_FIELDS:
        return f'"{draw.choice(_NAMES)}"' if kind < 0.95 else draw.choice(_NO_NAMES)
    if name == "throttle_exempt" and kind < 0.9:
        return "true" if kind < 0.5 else "false"
    if kind < 0.75:
        return _time(draw) if name == "event_time_ms" else str(draw.randrange(1000))
    return draw.choice(_NUMBERS) if kind < 0.95 else draw.choice(_WORDS)


def _time(draw: Random) -> str:
    kind = draw.random()
    if kind < 0.5:
        return str(1_700_000_000_000 + draw.randrange(20_000))
    if kind < 0.7:
        return str(APPENDED_AT_MS - draw.choice((0, DAY_MS)) + draw.randint(-1, 1))
    if kind < 0.85:
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


_ESCAPES: Final = ("\\ud800", "\\udfff", "\\ud800\\ud800", "\\udc00\\ud800", "\\ud83d")
_NO_UTF8: Final = (b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xe2\x82", b"\xef\xbf\xbd")


def _half_a_character(draw: Random) -> bytes:
    raw = draw.choice((*(escape.encode() for escape in _ESCAPES), *_NO_UTF8))
    return json.dumps(event(user="NAME")).encode().replace(b"NAME", raw)


def _marked_encoding(draw: Random) -> bytes:
    return _document(draw).encode(draw.choice(("utf-8-sig", "utf-16", "utf-32", "utf-16-le")), errors="surrogatepass")


def _deep(draw: Random) -> bytes:
    depth = draw.choice((10, 97, 98, 99, 100, 101, 990, 996, 997, 998, 999, 1000, 1001, 10_000))
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


_BEYOND: Final[tuple[Callable[[Random], bytes], ...]] = (
    *(_any_bytes, _half_a_character, _half_a_character, _marked_encoding, _long_number, _deep),
    *[_bytes_flipped] * 5,
)
