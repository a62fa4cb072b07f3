"""DivFL: sketches of updates, and the clients that stand for all by them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.aggregation import EqualWeights, Renormalised
from atoll.algorithms import FedAvg, FedNova
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.party import Roster
from atoll.learn import Training
from atoll.learn.learner import LearnerSettings, adapt
from atoll.learn.local.reports import sketch, sketches
from atoll.learn.selection.submodular import FacilityLocation, closeness, distances
from atoll.pacing import FedBuff
from atoll.selection import DivFL, Seen
from tests.support.learn_toys import flat, islands
from tests.support.selection_toys import candidates

SIZES = [5, 6, 7, 8, 9, 10]


def tree(seed, shapes=((3, 4), (7,))):
    rng = np.random.default_rng(seed)
    return {f"leaf{i}": rng.normal(size=shape) for i, shape in enumerate(shapes)}


def dot(x, y):
    return sum(float((x[name] * y[name]).sum()) for name in x)


# Sketches


@given(st.integers(0, 99), st.floats(-3, 3), st.integers(1, 40))
def test_a_sketch_is_linear_and_a_blocks_are_those_of_each(seed, factor, size):
    x, y = tree(seed), tree(seed + 100)
    both = {name: x[name] + factor * y[name] for name in x}
    np.testing.assert_allclose(sketch(both, size), sketch(x, size) + factor * sketch(y, size), atol=1e-9)
    block = {name: np.stack([x[name], y[name]]) for name in x}
    np.testing.assert_array_equal(sketches(block, size), np.stack([sketch(x, size), sketch(y, size)]))


def test_inner_products_are_kept_on_average_with_the_variance_that_is_known():
    """Over 2,000 keys: the mean within five standard errors, and the variance below ``2 |x|^2 |y|^2 / size``."""
    x, y, size = tree(0), tree(1), 16
    found = np.array([sketch(x, size, key) @ sketch(y, size, key) for key in range(2000)])
    assert abs(found.mean() - dot(x, y)) < 5 * found.std() / np.sqrt(len(found))
    assert found.var() < 2 * dot(x, x) * dot(y, y) / size


# The rule


def heard(rule, vectors, who=None, examples=None):
    n = len(vectors)
    where = np.arange(n) if who is None else np.asarray(who)
    there = Roster(n).all()[where]
    rows = np.ones(len(where)) if examples is None else np.asarray(examples, dtype=float)
    told = {"sketch": [np.asarray(vectors[i], dtype=float) for i in where.tolist()]}
    seen = Seen(1, there, there, np.zeros(len(where)), told, examples=rows)
    return rule.accept(seen, rule.init(Roster(n).all()))


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_near_the_best_of_all_sets(seed):
    """At least 1 - 1/e of the optimum, by enumeration of all sets of 3 of 8; with everyone in the pool."""
    vectors = np.random.default_rng(seed).normal(size=(8, 4))
    rule = DivFL(3, size=4, pool=1.0)
    found = rule.invite(candidates(8), 3, heard(rule, vectors))
    value = FacilityLocation(closeness(distances(vectors))).value
    best = max(value(some) for some in itertools.combinations(range(8), 3))
    assert (1 - 1 / np.e) * best <= value(found) <= best + 1e-9


def test_one_of_each_kind():
    rule, centres = DivFL(4, size=5, pool=1.0), np.random.default_rng(0).normal(size=(4, 5))
    state = heard(rule, [centres[i % 4] for i in range(12)])
    assert sorted(rule.invite(candidates(12), 4, state) % 4) == [0, 1, 2, 3]


def test_who_has_not_replied_comes_first_and_who_is_not_there_not_at_all():
    rule = DivFL(4, size=3, pool=1.0)
    vectors = np.random.default_rng(0).normal(size=(8, 3))
    state = heard(rule, vectors, who=[0, 1, 2, 3, 4, 6], examples=[1, 1, 1, 1, 0, 1])
    found = rule.invite(candidates(8), 4, state).tolist()
    assert sorted(found[:3]) == [4, 5, 7]  # number 4 has no rows, so that its sketch says nothing
    assert found[3] in (0, 1, 2, 3, 6)
    away = candidates(8)
    some = type(away)(Roster(8).all()[np.array([1, 2, 6])], 1, Rng.of(0))
    assert sorted(rule.invite(some, 4, state).tolist()) == [0, 1, 2]


MODELS = {"linear": atoll.models.linear(4, 3), "module": atoll.models.mlp(4, 3, hidden=(5,))}


@pytest.mark.parametrize("name", list(MODELS))
def test_the_same_on_engines_and_everyone_is_heard_first(name):
    job = Training(model=MODELS[name], algorithm=FedAvg(lr=0.1), selection=DivFL(2, size=8), rounds=5)
    told = job.replace(evaluation=atoll.Evaluation(participants=True))
    one = atoll.simulate(told, islands(SIZES), engine="inline")
    other = atoll.simulate(told, islands(SIZES), engine="batched")
    np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-4, atol=1e-6)
    assert (one.metrics.participation(6).replied >= 1).all()
    plain = atoll.simulate(job.replace(selection=atoll.Uniform(2)), islands(SIZES), engine="inline")
    more = np.array(one.metrics.column("bytes_up")) - np.array(plain.metrics.column("bytes_up"))
    assert (more > 2 * 8 * 8).all()
    assert (more < 2 * 8 * 8 + 600).all()  # two sketches of eight numbers and their headers


# Refusals


def test_what_has_no_update_or_no_size_is_refused():
    data = islands(SIZES)
    learner = adapt(atoll.models.linear(4, 3), LearnerSettings(algorithm=FedAvg()), data)
    with pytest.raises(ConfigError, match="size=None of report 'sketch'"):
        learner.check_reports({"sketch": {}})
    with pytest.raises(ConfigError, match="size=0"):
        DivFL(2, size=0)
    with pytest.raises(ConfigError, match=r"pool=1\.5"):
        DivFL(2, pool=1.5)
    with pytest.raises(ConfigError, match="a survey does not train"):
        learner.report.run(None, {"params": None, "reports": {"sketch": {"size": 4}}})
    with pytest.raises(CompositionError, match="clients' reports about one model"):
        Training(model=atoll.models.linear(4, 3), selection=DivFL(2), pacing=FedBuff(buffer=2)).learner(data)


def test_what_is_no_model_with_updates_cannot_be_sketched():
    model = atoll.models.CustomLearner(init=lambda rng: {"w": np.zeros(1)}, train=lambda p, data, rng: p)
    with pytest.raises(
        CompositionError, match=r"cannot report 'sketch'.*use atoll\.models\.linear or a PyTorch module"
    ):
        Training(model=model, selection=DivFL(2)).learner(islands(SIZES))


@pytest.mark.parametrize("aggregation", [Renormalised(), EqualWeights()])
def test_replies_without_an_update_are_refused_beforehand_by_the_name_of_their_algorithm(aggregation):
    job = Training(model=atoll.models.linear(4, 3), algorithm=FedNova(), selection=DivFL(2), aggregation=aggregation)
    with pytest.raises(
        CompositionError,
        match="DivFL compares clients' updates, and FedNova does not reply with the mean update of a model",
    ):
        job.learner(islands(SIZES))
