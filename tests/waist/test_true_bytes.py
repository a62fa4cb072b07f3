"""The meters say what messages weigh: masked sums with dropouts on every engine, and what the scales say of meters that forget something."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Mailboxes, Request
from atoll.core.time.meter import Meter
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import Timetable, live
from tests.support.scales import assert_true_bytes
from tests.support.worlds import WORLDS, on_every_engine
from tests.waist.test_masked_sum import secure_sums
from tests.waist.test_set_intersection import intersection

LOST = {":share/": ["client-5"], ":masked/": ["client-4"], ":reveal/": ["client-0"]}


def people():
    return Community([np.array([10**k, -k, 3]) for k in range(6)])


@pytest.mark.parametrize(("engine", "lost"), on_every_engine((LOST,), ({},)))
def test_the_bytes_of_masked_sums(engine, lost):
    cost = Timetable(lost=lost)
    life = live(World(people(), WORLDS[engine](2), cost=cost), secure_sums)
    assert_true_bytes(life, secure_sums, people(), cost)


PAIR = Community({"left": {"ids": [1, 2, 3]}, "right": {"ids": [2, 3, 4]}})


@pytest.mark.parametrize(
    ("forgotten", "program", "data", "match"),
    [
        (mock.patch.object(Mailboxes, "nbytes", return_value=0), intersection, PAIR, "down"),
        (mock.patch.object(Request, "argument_bytes", 0), secure_sums, people(), "down"),
        (mock.patch.object(Meter, "count_relayed"), intersection, PAIR, "relayed"),
        (mock.patch.object(Meter, "up"), secure_sums, people(), "up"),
    ],
    ids=["letters", "arguments", "relayed", "replies"],
)
def test_a_meter_that_forgets_is_found_out(forgotten, program, data, match):
    honest = live(World(data, Inline()), program)
    assert_true_bytes(honest, program, data)
    with forgotten:
        life = live(World(data, Inline()), program)
    with pytest.raises(AssertionError, match=match):
        assert_true_bytes(life, program, data)
