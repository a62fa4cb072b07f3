"""Many channels share what may be on its way, and none of them waits for ever."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.runtime.line.flight import Flight
from atoll.runtime.line.flow import Inbox, Outbox
from atoll.runtime.line.frames import Kind

MIB = 1 << 20
WINDOW = 8 * MIB
ZEROS = memoryview(bytes(MIB))
SIZES = st.lists(st.one_of(st.integers(0, MIB), st.just(MIB), st.integers(0, 3000)), max_size=25)


@settings(max_examples=60)
@given(st.lists(SIZES, min_size=1, max_size=5), st.integers(1, 12 * MIB), st.integers(1, 4))
def test_whoever_tells_only_what_is_worth_telling_is_sent_everything(
    contents: list[list[int]], total: int, eager: int
) -> None:
    flight = Flight(total)
    ways = [(Outbox(1, WINDOW, flight), Inbox(1, WINDOW), list(sizes)) for sizes in contents]
    moving = True
    while moving:
        moving = False
        for out, into, sizes in ways:
            while sizes and out.room(sizes[0]):
                out.put(Kind.DATA, 0, ZEROS[: sizes.pop(0)], settled=True)
                moving = True
            while out.cursor < out.next:
                into.arrived(out.take())
            for _ in range(min(eager, len(into))):
                into.pop()
                moving = True
                if into.worth_telling():  # as a channel does, after each
                    out.consumed(into.tell())
    assert not any(sizes for _, _, sizes in ways)


def test_a_share_is_an_equal_one_and_a_block_always_fits() -> None:
    flight = Flight(12 * MIB)
    ways = [Outbox(1, WINDOW, flight) for _ in range(6)]

    def filled(out: Outbox) -> int:
        while out.room(MIB // 4):
            out.put(Kind.DATA, 0, ZEROS[: MIB // 4], settled=True)
        return out.held

    assert [filled(out) // (MIB // 2) for out in ways] == [
        15,
        11,
        7,
        5,
        4,
        3,
    ]  # half MiB: the window, then 6, 4, 3, 2.4 and 2 MiB
    for out in ways[1:]:
        out.take()
        out.consumed(1)
    assert not ways[1].room(MIB // 4)  # more than a sixth is on its way still
    del ways[1:], out
    gc.collect()
    assert flight.share(ways[0]) == 12 * MIB


def test_a_flight_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="a flight of 0 bytes"):
        Flight(0)
