"""The garbage collector is as it was before a pause."""

import gc
from collections.abc import Iterator

import pytest

from pipeline import process as garbage_collector


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_it_is_paused_inside_and_goes_on_after_a_failure() -> None:
    gc.enable()
    seen = []
    with pytest.raises(ZeroDivisionError), garbage_collector.paused():
        seen.append(gc.isenabled() or 1 / 0)
    assert seen == []
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with garbage_collector.paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_a_pause_inside_of_another_one_does_not_end_it() -> None:
    gc.enable()
    with garbage_collector.paused():
        with garbage_collector.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
