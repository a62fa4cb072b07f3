"""Algorithms that need every client, and models that train by themselves: refused before anyone is contacted."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import atoll
from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError, QuorumError
from atoll.learn.algorithm import Phased
from atoll.learn.capabilities import LOCAL_STEPS
from atoll.learn.card import Card
from atoll.learn.wrapped import Wrapped
from tests.support.learn_toys import Fixed


@dataclass(frozen=True, kw_only=True)
class Together(atoll.FedAvg):
    """Needs everyone."""

    card: ClassVar[Card] = Card(everyone=True)


@dataclass(frozen=True, kw_only=True)
class Slower(atoll.FedAvg):
    """Has a direction of its own."""

    def direction(self, local, grad, broadcast):
        return T.scale(grad(local["params"]), 0.5), local


@dataclass(frozen=True, kw_only=True)
class Twice(atoll.FedAvg, Phased):
    """Has a pass more."""

    def passes(self, phase):
        return (atoll.FedSGD(), self)


@dataclass(frozen=True, kw_only=True)
class Through(Wrapped):
    """Changes nothing."""


@pytest.mark.parametrize("algorithm", [Together(), Through(base=Together())])
def test_one_that_needs_everyone_is_refused_with_some(algorithm):
    data = atoll.data.iid(atoll.data.digits(), parties=4)
    job = atoll.Training(model=atoll.models.linear(64, 10), algorithm=algorithm, selection=atoll.Uniform(3), rounds=1)
    with pytest.raises(CompositionError, match=r"needs every client in every round, and Uniform invites 3 of 4"):
        atoll.simulate(job, data, engine="inline")
    assert atoll.simulate(job.replace(selection=atoll.Everyone()), data, engine="inline").metrics[0]["replied"] == 4
    assert atoll.simulate(job.replace(selection=atoll.Uniform(4)), data, engine="inline").metrics[0]["replied"] == 4


@pytest.mark.parametrize("on_failure", ["stop", "skip"])
@pytest.mark.parametrize("quorum", [1, 1.0])
def test_it_stops_when_somebody_is_silent_whatever_the_quorum(on_failure, quorum):
    # It used to go on, to somewhere else: FastADMM divided three messages by four clients.
    data = atoll.data.iid(atoll.data.digits(), parties=4)
    pacing = atoll.pacing.Synchronous(quorum=quorum, on_failure=on_failure)
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=Together(), selection=atoll.Everyone(), pacing=pacing, rounds=2
    )
    with pytest.raises(QuorumError, match="round 1"):
        atoll.simulate(job, data, engine="inline", devices=Fixed([1.0, 1.0, float("inf"), 1.0]))


def test_a_direction_or_a_pass_of_its_own_is_no_plain_step():
    def has_plain_steps(algorithm):
        return all(need.capability is not LOCAL_STEPS for need in algorithm.needs)

    assert has_plain_steps(atoll.FedAvg())
    assert has_plain_steps(Through(base=atoll.FedAvg()))
    for algorithm in (Slower(), Twice(), atoll.FedSGD()):
        assert not has_plain_steps(algorithm)
        assert not has_plain_steps(Through(base=algorithm))
    job = atoll.Training(model=pytest.importorskip("sklearn.linear_model").LogisticRegression(), algorithm=Slower())
    with pytest.raises(
        CompositionError, match="Slower changes the local step, and LogisticRegression runs its own training"
    ):
        atoll.simulate(job, atoll.data.iid(atoll.data.digits(), parties=3), engine="inline")
