"""Meters: every byte on every link."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.core import message as M
from atoll.core.meter import Meter

rows = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=5, unique=True), st.integers(0, 1000)), max_size=8)


def at(positions):
    return np.array(positions, dtype=np.int64)


@given(rows, rows)
def test_totals_and_links_agree(down, up):
    meter = Meter()
    for positions, size in down:
        meter.down("server", at(positions), size)
    for positions, size in up:
        meter.up("server", at(positions), at([size + p for p in positions]))
    assert meter.bytes_down == sum(size * len(p) for p, size in down) == sum(meter.links("server", "down").values())
    assert meter.bytes_up == sum(meter.links("server", "up").values())
    assert meter.messages_down == sum(len(p) for p, _ in down)
    for position, total in meter.links("server", "up").items():
        assert total == sum(size + position for p, size in up if position in p)
    again = Meter.load(M.decode(M.encode(meter.save())))
    assert M.equal(again.save(), meter.save())
    assert again.totals() == meter.totals()


def test_hubs_are_apart_and_meters_add_up():
    one, other = Meter(), Meter()
    one.down("server", at([0, 1]), 10)
    one.between(5)
    other.down("edge", at([1, 2]), at([3, 4]))
    other.up("edge", at([2]), at([7]))
    one.absorb(other)
    assert one.links("server") == {0: 10, 1: 10}
    assert one.links("edge") == {1: 3, 2: 4}
    assert one.links("edge", "up") == {2: 7}
    assert one.totals() == {
        "bytes_down": 27, "bytes_up": 7, "bytes_between": 5, "messages_down": 4, "messages_up": 1,
    }  # fmt: skip


def test_many_rounds_stay_small():
    meter = Meter()
    for _ in range(5000):
        meter.down("server", at([3, 1]), 2)
    assert len(meter._columns["server", "down"]) <= 1025
    assert meter.links() == {1: 10_000, 3: 10_000}
