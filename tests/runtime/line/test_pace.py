"""Frames are cut shorter where the network is slow: what arrives is the same, within the same windows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.runtime.line.frames import END, SHORTEST, Frame, FramePace, Kind, parse
from atoll.runtime.line.incoming import Inbox
from atoll.runtime.line.outgoing import Outbox
from atoll.runtime.line.settings import LineFlight, Settings
from atoll.runtime.transport.base import BLOCK

WINDOW = 1 << 18
CONTENTS = st.lists(st.sampled_from([0, 1, SHORTEST - 1, SHORTEST, SHORTEST + 1, 50_000, 120_000]), max_size=12)
WRITES = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 3)), max_size=60)


def parted(frames: list[Frame]) -> list[bytes]:
    """Messages, each of one block where it was sent."""
    found, open_ = [], b""
    for frame in frames:
        open_ += bytes(frame.content)
        if frame.flags & END:
            found.append(open_)
            open_ = b""
    assert open_ == b""
    return found


@settings(max_examples=40)
@given(CONTENTS, WRITES, st.booleans())
def test_what_is_cut_arrives_as_it_was_whatever_is_lost_in_between(
    sizes: list[int], writes: list[tuple[int, bool, int]], again: bool
) -> None:
    out, into = Outbox(1, WINDOW, LineFlight(), again=again), Inbox(1, WINDOW, LineFlight())
    wanted = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    waiting, got, steps = list(wanted), [], iter(writes)
    while waiting or out.cursor < out.next or len(into):
        while waiting and out.room(len(waiting[0])):
            content = waiting.pop(0)
            out.put(Kind.DATA, END, bytearray(content) if len(content) % 2 else content)
        shorter, lost, taken = next(steps, (0, False, 3))
        if lost and again:  # the connection ends, and with it what the other end had not seen
            out.forget_consumed(into.tell())
            out.rewind(into.received)
        if out.cursor < out.next:
            frame = out.take(SHORTEST << shorter)
            assert len(frame.content) <= SHORTEST << shorter
            arrived = parse(b"".join(frame.parts))
            assert arrived.seq == frame.seq
            if taken or not again:
                into.take_frame(arrived)
            else:
                out.rewind(into.received)
        got += [into.pop() for _ in range(min(taken, len(into)))]
        assert into.held <= WINDOW
        if into.worth_telling() or not len(into):
            out.forget_consumed(into.tell())
    assert parted(got) == wanted
    assert out.held == 0


def test_where_no_connection_follows_nothing_that_was_written_is_kept() -> None:
    content = bytearray(3 * SHORTEST)
    out = Outbox(1, WINDOW, LineFlight(), again=False)
    out.put(Kind.DATA, END, memoryview(content), settled=True)
    held = out.held
    out.take(2 * SHORTEST)
    with pytest.raises(BufferError, match="Existing exports"):
        content.clear()  # the last part has not been written yet
    out.take(2 * SHORTEST)
    content.clear()
    assert out.held == held  # it counts until the other end has consumed it
    out.forget_consumed(2)
    assert out.held == 0


def test_frames_grow_where_they_are_taken_at_once_and_shrink_where_they_are_not() -> None:
    pace, lengths = FramePace(60.0), []
    pace.took(pace.most, 0.01)
    assert pace.most == 1 << 16  # nobody has said yet that it arrives
    pace.proven = True
    for _ in range(6):
        lengths.append(pace.most)
        pace.took(pace.most, 0.01)
    assert lengths == [1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, BLOCK]
    for _ in range(8):
        lengths.append(pace.most)
        pace.took(100, 4.5)
    assert lengths[6:] == [1 << 20, 1 << 19, 1 << 18, 1 << 17, 1 << 16, 1 << 15, SHORTEST, SHORTEST]
    pace.took(100, 0.0)  # a short frame says nothing
    pace.took(SHORTEST, 2.0)  # neither
    assert pace.most == SHORTEST
    assert FramePace(None).most == BLOCK  # inside a machine


def test_on_a_slow_link_a_frame_arrives_well_within_the_time_in_which_something_must() -> None:
    """A link of 2,500 bytes a second that takes 300 kB at once: how long the other end waits for each frame."""
    pace, rate, room, silence = FramePace(60.0), 2500.0, 300_000.0, 60.0
    clock, buffered, sent, ends = 0.0, 0.0, 0, [0.0]
    for _ in range(500):
        size = pace.most
        took = max(0.0, (buffered + size - room) / rate)
        clock += took
        buffered = buffered - took * rate + size
        sent += size
        pace.took(size, took)
        pace.proven = sent - buffered > Settings().window / 3  # what a taker says at the latest
        ends.append(clock + buffered / rate)
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    assert max(gaps) < silence / 2
    assert max(gaps[20:]) < silence / 6
