"""Many channels share what may be on its way, and none of them waits for ever."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.runtime.line.frames import END, Kind
from atoll.runtime.line.incoming import Inbox
from atoll.runtime.line.outgoing import Outbox
from atoll.runtime.line.settings import LineFlight

MIB = 1 << 20
WINDOW = 8 * MIB
ZEROS = memoryview(bytes(MIB))
SIZES = st.lists(st.one_of(st.integers(0, MIB), st.just(MIB), st.integers(0, 3000)), max_size=25)


@settings(max_examples=60)
@given(
    st.lists(SIZES, min_size=1, max_size=5),
    st.integers(1, 12 * MIB),
    st.integers(1, 12 * MIB),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
)
def test_whoever_tells_only_what_is_worth_telling_is_sent_everything(
    contents: list[list[int]], total: int, wanted: int, quick: int, eager: int, passed_on: bool
) -> None:
    flight, intake = LineFlight(total), LineFlight(wanted)
    ways = [(Outbox(1, WINDOW, flight), Inbox(1, WINDOW, intake), list(sizes)) for sizes in contents]
    moving = True
    while moving:
        moving = False
        for out, into, sizes in ways:
            put = 0
            while put < quick and sizes and out.room(sizes[0]):
                out.put(Kind.DATA, 0, ZEROS[: sizes.pop(0)], settled=True)
                put, moving = put + 1, True
            asking = bool(sizes) and not out.room(sizes[0]) and out.must_ask()
            while out.cursor < out.next:
                into.take_frame(out.take())
            if asking:
                into.note_question()
                if into.worth_telling():
                    out.forget_consumed(into.tell(), into.share)
                    moving = True
            if into.settle() and into.worth_telling():
                out.forget_consumed(into.tell(), into.share)
                moving = True
            for _ in range(min(eager, len(into))):
                into.settle()
                (into.lend if passed_on else into.pop)()
                moving = True
                if into.worth_telling():  # as a channel does, after each
                    out.forget_consumed(into.tell(), into.share)
    assert not any(sizes for _, _, sizes in ways)


def test_a_share_is_an_equal_one_and_a_block_always_fits() -> None:
    flight = LineFlight(12 * MIB)
    ways = [Outbox(1, WINDOW, flight) for _ in range(6)]
    for out in ways:
        out.forget_consumed(0, WINDOW)

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
        out.forget_consumed(1)
    assert not ways[1].room(MIB // 4)  # more than a sixth is on its way still
    del ways[1:], out
    gc.collect()
    assert flight.share(ways[0]) == 12 * MIB


def busiest(givers: int, blocks: int) -> tuple[int, int]:
    """Bytes that takers who share 24 MiB have before them at most: of messages of so many blocks that all begin at once; of all, and of one."""
    intake = LineFlight(24 * MIB)
    ways = [
        (Outbox(1, WINDOW, LineFlight()), Inbox(1, WINDOW, intake), [END] + (blocks - 1) * [0]) for _ in range(givers)
    ]
    most = one = 0
    while any(left for *_, left in ways):
        for out, into, left in ways:
            while left and out.room(MIB):
                out.put(Kind.DATA, left.pop(), ZEROS, settled=True)
            while out.cursor < out.next:
                into.take_frame(out.take())
            most, one = max(most, sum(taker.held for _, taker, _ in ways)), max(one, into.held)
        for out, into, _ in ways:
            into.pop()
            if into.worth_telling():
                out.forget_consumed(into.tell(), into.share)
    return most // MIB, one // MIB


@pytest.mark.parametrize(("room", "words"), [(1, 20), (2, 10), (3, 10), (5, 10)])
def test_a_taker_speaks_after_every_second_block_unless_its_giver_has_room_for_one_alone(room: int, words: int) -> None:
    out, into = Outbox(1, WINDOW, LineFlight(room * MIB + 4096 * room)), Inbox(1, WINDOW, LineFlight())
    left, told = [END] + 19 * [0], 0
    while left or len(into):
        while left and out.room(MIB):
            out.put(Kind.DATA, left.pop(), ZEROS, settled=True)
        while out.cursor < out.next:
            into.take_frame(out.take())
        into.pop()
        if into.worth_telling():
            told += 1
            out.forget_consumed(into.tell(), into.share)
    assert told == words
    assert out.held == 0


def test_a_giver_whose_room_was_taken_by_others_asks_and_is_told() -> None:
    flight = LineFlight(4 * MIB)
    out, others = Outbox(1, WINDOW, flight), [Outbox(1, WINDOW, flight) for _ in range(3)]
    into = Inbox(1, WINDOW, LineFlight())
    out.put(Kind.DATA, 0, ZEROS, settled=True)  # with room for more: nobody has to hear of it
    for other in others:
        other.put(Kind.DATA, 0, ZEROS, settled=True)
    into.take_frame(out.take())
    into.pop()
    assert not out.room(MIB)
    assert not into.worth_telling()
    assert out.must_ask()
    assert not out.must_ask()  # once is enough
    into.note_question()
    assert into.worth_telling()
    out.forget_consumed(into.tell(), into.share)
    assert out.room(MIB)
    assert not into.worth_telling()


def test_many_givers_have_no_more_on_their_way_than_few() -> None:
    assert busiest(1, 40) == (7, 7)  # whole blocks in a window of 8 MiB
    assert busiest(10, 20) == (20, 2)  # where windows alone would take 70
    assert busiest(20, 20) == (40, 2)  # two each before they have heard, then one


def test_a_giver_that_had_all_the_room_asks_anew_before_its_next_message() -> None:
    out = Outbox(1, WINDOW, LineFlight())
    for count in (1, 2):
        assert out.room(2 * MIB)
        assert not out.room(5 * MIB // 2)
        out.put(Kind.DATA, 0, ZEROS, settled=True)
        out.take()
        out.forget_consumed(2 * count - 1, WINDOW)
        assert out.room(6 * MIB)  # nothing is on its way, and the message goes on
        out.put(Kind.DATA, END, b"", settled=True)
        out.take()
        out.forget_consumed(2 * count, WINDOW)


def test_a_flight_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="flight is 0 bytes"):
        LineFlight(0)
