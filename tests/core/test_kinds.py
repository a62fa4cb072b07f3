"""Settings from Python: what is no number, no word or no part is refused by name before anything is compared with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from atoll.aggregation import Valued
from atoll.core.errors import ConfigError
from atoll.core.validation import Checked, numbers, pairs
from atoll.learn.metrics import Calibration, HumanTime
from atoll.learn.pacing.slack import LateCount
from atoll.learn.pacing.staleness import HingeStaleness
from atoll.learn.round.evaluation import Evaluation
from atoll.pacing import SAFA, FedAsync, HybridFL, PaceSteering, Synchronous, Tiered
from atoll.privacy import Budget
from atoll.rounds.loop import MaxTime, Patience
from atoll.selection import AFL, CFCFM, DivFL, FedCS, FedProf, Oort, PowerOfChoice, TiFL, Uniform
from atoll.stages import DGC, QSGD, Clip, CountSketch, LowRank, MinMaxAffine, RandomK, Shift, Threshold, TopK
from atoll.topology import (
    CFL,
    ClusteredGossip,
    Cooperative,
    DefKT,
    EdgeList,
    ErdosRenyi,
    Gossip,
    Hierarchical,
    Membership,
    RandomWalk,
    Ring,
)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Uniform("10"), "count='10'.*in Uniform.*use a whole number or a number"),
        (lambda: Uniform(None), "count=None"),
        (lambda: CFCFM([1, 2]), "count=.1, 2."),
        (lambda: AFL(3, alpha1="x"), "alpha1='x'"),
        (lambda: DivFL(3, pool="all"), "pool='all'"),
        (lambda: FedCS(3, deadline="1 h"), "deadline='1 h'"),
        (lambda: FedProf(3, alpha="x"), "alpha='x'.*use a number, or a list of numbers"),
        (lambda: Oort(3, decay=math.nan), "decay=nan"),
        (lambda: PowerOfChoice({}), "count="),
        (lambda: TiFL(3, credits="many"), "credits='many'"),
        (lambda: CFL(pulling="x"), "pulling='x'"),
        (lambda: ClusteredGossip(every=2.5), "every=2.5.*use a whole number"),
        (lambda: Cooperative(mixing=None), "mixing=None"),
        (lambda: DefKT(pairs="2"), "pairs='2'"),
        (lambda: EdgeList([0, 1]), "links=.0, 1..*give pairs"),
        (lambda: ErdosRenyi("x"), "probability='x'"),
        (lambda: Gossip(gamma="x"), "gamma='x'"),
        (lambda: Hierarchical(every="x"), "every='x'"),
        (lambda: Membership(joins=0.5), "joins=0.5.*give pairs"),
        (lambda: RandomWalk(tokens=1.5), "tokens=1.5"),
        (lambda: Ring("2"), "neighbours='2'"),
        (lambda: FedAsync(alpha="x"), "alpha='x'"),
        (lambda: HingeStaleness(a=None), "a=None"),
        (lambda: HybridFL(deadline="soon"), "deadline='soon'.*use a number or None"),
        (lambda: LateCount(initial="x"), "initial='x'"),
        (lambda: PaceSteering(day=0.5), "day=0.5"),
        (lambda: PaceSteering(day=["x"]), "day=.'x'."),
        (lambda: SAFA(lag_tolerance="5"), "lag_tolerance='5'"),
        (lambda: Synchronous(quorum="most"), "quorum='most'"),
        (lambda: Synchronous(over_select=True), "over_select=True"),
        (lambda: Tiered(deadline=[1]), "deadline=.1."),
        (lambda: Valued(orders="x"), "orders='x'"),
        (lambda: Evaluation(every="2"), "every='2'"),
        (lambda: Evaluation(metrics=3), "metrics=3"),
        (lambda: MaxTime("1 h"), "seconds='1 h'"),
        (lambda: Patience("test/loss", evaluations=2.5), "evaluations=2.5"),
        (lambda: HumanTime(down="x"), "down='x'"),
        (lambda: Calibration(bins="x"), "bins='x'"),
        (lambda: Budget(epsilon="3"), "epsilon='3'"),
        (lambda: Budget(epsilon=3.0, clients=[1.0]), "clients=.1.0..*party's name"),
        (lambda: Clip("x"), "bound='x'"),
        (lambda: CountSketch(columns="x"), "columns='x'"),
        (lambda: DGC(0.1, momentum="x"), "momentum='x'"),
        (lambda: LowRank("x"), "rank='x'"),
        (lambda: MinMaxAffine("8"), "bits_each='8'"),
        (lambda: QSGD("x"), "='x'"),
        (lambda: RandomK("x"), "fraction='x'"),
        (lambda: Shift(RandomK(0.5), a="x"), "a='x'"),
        (lambda: Threshold(None), "bound=None"),
        (lambda: TopK("x"), "fraction='x'"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_kinds_are_looked_at_before_a_class_looks_itself_and_in_what_comes_of_it():
    @dataclass(frozen=True)
    class Part(Checked):
        count: int = 1
        shares: Sequence[float] = ()

        def __post_init__(self):
            if self.count < 1:
                raise ConfigError(f"count={self.count} is small")

    @dataclass(frozen=True)
    class Further(Part):
        rate: float = 0.5

    assert Further(count=np.int64(3), rate=1).count == 3
    for make in (Part, Further):
        with pytest.raises(ConfigError, match=f"count='x' .in {make.__name__}"):
            make(count="x")
        with pytest.raises(ConfigError, match="count=0 is small"):
            make(count=0)
    with pytest.raises(ConfigError, match=r"rate='x' .in Further.*use a number"):
        replace(Further(), rate="x")


def test_a_million_settings_are_not_shown():
    with pytest.raises(ConfigError, match=r"links=\[0, 1, 2") as found:
        EdgeList(list(range(1_000_000)))
    assert len(str(found.value)) < 400


def test_numbers_and_pairs():
    assert numbers("here", "x", (1, 2.5)).tolist() == [1.0, 2.5]
    assert pairs("here", "x", [[0, 1], (np.int64(2), 3)]) == ((0, 1), (2, 3))
    with pytest.raises(ConfigError, match=r"x=\[1, \[2\]\] .in here"):
        numbers("here", "x", [1, [2]])
    with pytest.raises(ConfigError, match=r"x=\[\(0.5, 1\)\] .in here"):
        pairs("here", "x", [(0.5, 1)])
