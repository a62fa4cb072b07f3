"""Synchronous rounds in virtual time: deadline, over-selection, quorum, crashes; cancelled work never runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.learn import Training
from atoll.models import CustomLearner
from atoll.pacing import Synchronous
from atoll.selection import Everyone, Schedule
from tests.support.learn_toys import Fixed, flat, islands

NEVER = math.inf
SIZES = [5, 6, 7, 8]


class Watched:
    """A population that knows whose rows were looked at."""

    def __init__(self, data):
        self._data = data
        self.names, self.test, self.task, self.classes = data.names, None, data.task, data.classes
        self.touched = []

    def __len__(self):
        return len(self._data)

    def shard(self, i):
        self.touched.append(i)
        return self._data.shard(i)


def train(seconds, *, rounds=2, watch=None, selection=None, notice=0.0, **pacing):
    def grow(params, data, rng):
        return {"w": params["w"] + len(data)}

    model = CustomLearner(init=lambda rng: {"w": np.zeros(1)}, train=grow)
    job = Training(
        model=model,
        algorithm=FedAvg(),
        selection=selection or Everyone(),
        pacing=Synchronous(**pacing),
        rounds=rounds,
    )
    data = watch if watch is not None else islands(SIZES)
    return atoll.simulate(job, data, engine="inline", devices=Fixed(seconds, notice))


def test_a_round_lasts_as_long_as_its_slowest_client():
    rows = train([1.0, 4.0, 2.0, 3.0]).metrics
    assert [(row["t_start"], row["t_end"]) for row in rows] == [(0.0, 4.0), (4.0, 8.0)]
    assert rows.average_round_length == 4.0
    assert rows.column("replied") == [4, 4]


def test_a_deadline_leaves_the_slow_behind():
    watch = Watched(islands(SIZES))
    rows = train([1.0, 9.0, 2.0, 30.0], watch=watch, deadline=5.0).metrics
    assert [row["t_end"] for row in rows] == [5.0, 10.0]
    assert rows.column("replied") == [2, 2]
    assert rows.column("silent") == [2, 2]
    assert set(watch.touched) == {0, 2}, "cancelled work ran"


def test_dropped_work_is_done_and_counts_for_nothing():
    watch = Watched(islands(SIZES))
    dropped = train([1.0, 9.0, 2.0, 30.0], watch=watch, deadline=5.0, late="drop")
    assert set(watch.touched) == {0, 1, 2, 3}
    cancelled = train([1.0, 9.0, 2.0, 30.0], deadline=5.0)
    assert flat(dropped.params) == flat(cancelled.params)
    assert dropped.metrics.column("replied") == [2, 2]


def test_a_deadline_that_everyone_meets_does_not_lengthen_the_round():
    assert train([1.0, 2.0, 1.0, 1.0], deadline=60.0).metrics[-1]["t_end"] == 4.0


def test_over_selection_takes_the_first_and_closes():
    """Two wanted of four invited: the round closes with the second, and its update is that of the two fastest."""
    watch = Watched(islands(SIZES))
    result = train([4.0, 1.0, 3.0, 2.0], watch=watch, rounds=1, over_select=2.0, selection=atoll.Uniform(2))
    row = result.metrics[0]
    assert (row["selected"], row["replied"], row["t_end"]) == (4, 2, 2.0)
    assert set(watch.touched) == {1, 3}
    assert flat(result.params) == pytest.approx((6 * 6 + 8 * 8) / 14)


def test_ties_are_broken_by_position():
    watch = Watched(islands(SIZES))
    train([1.0] * 4, watch=watch, rounds=1, over_select=2.0, selection=atoll.Uniform(2))
    assert set(watch.touched) == {0, 1}


def test_crashed_clients_are_silent():
    watch = Watched(islands(SIZES))
    rows = train([1.0, NEVER, 2.0, 3.0], watch=watch, deadline=5.0).metrics
    assert rows.column("silent") == [1, 1]
    assert [row["t_end"] for row in rows] == [5.0, 10.0], "the server cannot know that a crashed client will not answer"
    assert 1 not in watch.touched


def test_without_a_deadline_a_loss_is_known_when_the_link_notices_it():
    rows = train([1.0, NEVER, 2.0, 3.0], notice=7.0).metrics
    assert [row["t_end"] for row in rows] == [7.0, 14.0]


def test_too_few_replies_stop_the_training_and_name_the_round():
    with pytest.raises(
        QuorumError, match=r"1 of 4 parties answered within 5 s, fewer than the quorum of 3 \(in round 1"
    ):
        train([1.0, 9.0, 9.0, NEVER], deadline=5.0, quorum=3)
    with pytest.raises(QuorumError, match=r"0 of 4 parties answered within 5 s, fewer than the quorum of 1"):
        train([9.0] * 4, deadline=5.0)


def test_too_few_replies_may_skip_the_round():
    """Rounds 1 and 3 ask the slow client alone; the model moves in round 2 only."""
    plan = Schedule([[1], [0]])
    result = train([1.0, 9.0, 1.0, 1.0], rounds=3, selection=plan, deadline=5.0, on_failure="skip")
    rows = result.metrics
    assert rows.column("replied") == [0, 1, 0]
    assert [("failed" in row) for row in rows] == [True, False, True]
    assert rows[-1]["t_end"] == 5.0 + 1.0 + 5.0
    assert flat(result.params) == 5.0


def test_a_quorum_above_the_cohort_is_refused_before_anyone_is_contacted():
    with pytest.raises(CompositionError, match=r"quorum=5 replies, but .* has rounds of 4 clients"):
        train([1.0] * 4, quorum=5)


@pytest.mark.parametrize(("quorum", "passes"), [(0.5, True), (0.51, False), (2, True), (3, False)])
def test_a_quorum_is_a_number_or_a_fraction_rounded_up(quorum, passes):
    seconds = [1.0, 1.0, NEVER, NEVER]
    if passes:
        assert train(seconds, rounds=1, deadline=5.0, quorum=quorum).metrics[0]["replied"] == 2
        return
    with pytest.raises(QuorumError, match="2 of 4 parties answered within 5 s, fewer than the quorum of 3"):
        train(seconds, rounds=1, deadline=5.0, quorum=quorum)


@given(st.integers(1, 1000), st.floats(1.0, 3.0))
def test_invitations_are_rounded_up(cohort, factor):
    invited = Synchronous(over_select=factor).invited(cohort)
    assert cohort <= invited
    assert factor * cohort - 1e-6 <= invited < factor * cohort + 1


def test_terms():
    assert Synchronous().terms(10) == {"deadline": None, "quorum": 1, "accept": None, "late": "cancel"}
    assert Synchronous(over_select=1.3, quorum=0.25).terms(10)["accept"] == 10
    assert Synchronous(quorum=0.25).terms(10)["quorum"] == 3
    assert Synchronous(quorum=99).terms(10)["quorum"] == 10


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"over_select": 0.9}, "over_select=0.9"),
        ({"quorum": 1.5}, "quorum=1.5 is not a fraction"),
        ({"quorum": -1}, "quorum=-1"),
        ({"deadline": 0.0}, "deadline=0.0 seconds"),
        ({"late": "arrive"}, "late='arrive': a synchronous round takes no reply after it has closed"),
        ({"on_failure": "retry"}, "on_failure='retry'"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(ConfigError, match=text):
        Synchronous(**settings)
