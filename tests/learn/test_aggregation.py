"""Laws of the aggregation operators (W. Wu 2021, Eqs. 2.45-2.47)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.aggregation import EqualWeights, KeepGlobal, KeepLocal, Renormalised, Rescaled
from atoll.algorithms import FedAvg, FedSGD
from atoll.core.algebra.aggregate import Mean, Part, Parts, Sum
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation.reducer import Plain
from atoll.core.requests.cohort import Community
from atoll.core.requests.results import Combined
from atoll.core.requests.task import Batch, Task
from atoll.engines.inline import Inline
from atoll.learn import RoundInfo, Training
from atoll.learn.aggregation.base import Aggregation
from atoll.selection import Schedule, SizeProportional
from tests.support.learn_toys import flat, islands

SIZES = [5, 9, 14, 22]
FULL = [Renormalised(), Rescaled(), Rescaled(models=True), KeepGlobal(), KeepLocal()]


def train(aggregation, *, sizes=SIZES, rounds=4, schedule=None, algorithm=None, **parts):
    job = Training(
        model=atoll.models.linear(4, 3),
        algorithm=algorithm or FedAvg(lr=0.1, batch_size=4),
        selection=schedule or atoll.Everyone(),
        aggregation=aggregation,
        rounds=rounds,
        **parts,
    )
    return atoll.simulate(job, islands(sizes), engine="inline")


@pytest.mark.parametrize("aggregation", FULL, ids=repr)
def test_full_participation_makes_all_operators_equal(aggregation):
    expected = flat(train(Renormalised()).params)
    np.testing.assert_allclose(flat(train(aggregation).params), expected, rtol=1e-10, atol=1e-12)


def test_equal_weights_is_fedavg_on_equal_sizes():
    equal, mean = (train(a, sizes=[8, 8, 8]) for a in (EqualWeights(), Renormalised()))
    np.testing.assert_allclose(flat(equal.params), flat(mean.params), rtol=1e-12)


def one_round(aggregation, invited):
    """(w0 = 0, the clients' local models, the new model) of one round."""
    after = flat(train(aggregation, rounds=1, schedule=Schedule([invited])).params)
    models = [flat(train(Renormalised(), rounds=1, schedule=Schedule([[k]])).params) for k in range(len(SIZES))]
    return np.array(models), after


@pytest.mark.parametrize("invited", [[0], [1, 3], [0, 1, 2]], ids=str)
def test_each_operator_follows_its_equation(invited):
    share = np.array(SIZES) / sum(SIZES)
    models, keep_global = one_round(KeepGlobal(), invited)
    np.testing.assert_allclose(keep_global, (share[invited, None] * models[invited]).sum(0), rtol=1e-10, atol=1e-13)
    _, rescaled = one_round(Rescaled(models=True), invited)
    weights = share[invited] * len(SIZES) / len(invited)
    np.testing.assert_allclose(rescaled, (weights[:, None] * models[invited]).sum(0), rtol=1e-10, atol=1e-13)
    _, equal = one_round(EqualWeights(), invited)
    np.testing.assert_allclose(equal, models[invited].mean(0), rtol=1e-10, atol=1e-13)
    _, renormalised = one_round(Renormalised(), invited)
    own = share[invited] / share[invited].sum()
    np.testing.assert_allclose(renormalised, (own[:, None] * models[invited]).sum(0), rtol=1e-10, atol=1e-13)


def combined(values, weights, senders):
    update = sum(w * v for v, w in zip(values, weights, strict=True)) / sum(weights)
    return Combined(
        {"update": update}, len(values), {"update": sum(weights)}, senders, senders, kinds={"update": "mean"}
    )


def test_rescaled_weights_are_right_on_average():
    """Over all cohorts of 2 out of 4: the mean update is that of the population, and the weights sum to 1."""
    sizes, updates = np.array(SIZES, float), np.random.default_rng(0).normal(size=(4, 3))
    w = np.array([5.0, -2.0, 1.0])
    for models in (False, True):
        news, sums = [], []
        for cohort in itertools.combinations(range(4), 2):
            rows = list(cohort)
            info = RoundInfo(1, 2, 2, 4, float(sizes.sum()))
            found, _ = Rescaled(models).combine(combined(updates[rows], sizes[rows], None), w, None, info)
            news.append(w + found["update"])
            sums.append((sizes[rows] / sizes.sum() * 2).sum())
        np.testing.assert_allclose(np.mean(sums), 1.0)
        expected = w + (sizes[:, None] / sizes.sum() * updates).sum(0)
        np.testing.assert_allclose(np.mean(news, axis=0), expected, rtol=1e-12)


@pytest.mark.parametrize("aggregation", [Renormalised(), Rescaled(), KeepGlobal()], ids=repr)
def test_clients_that_agree_with_the_server_change_nothing(aggregation):
    w = np.array([1.0, 2.0])
    found, _ = aggregation.combine(combined([np.zeros(2)] * 2, [3.0, 4.0], None), w, None, RoundInfo(1, 2, 2, 9, 100.0))
    np.testing.assert_array_equal(found["update"], [0.0, 0.0])


def test_only_means_are_rescaled():
    got = Combined(
        {"update": 2.0, "votes": 5.0},
        2,
        {"update": 4.0, "votes": 2.0},
        None,
        None,
        kinds={"update": "mean", "votes": "sum"},
    )
    found, _ = KeepGlobal().combine(got, 0.0, None, RoundInfo(1, 2, 2, 4, 16.0))
    assert found == {"update": 0.5, "votes": 5.0}


def test_keep_local_is_the_full_sum_over_the_cache():
    """Updating the mean by what changed equals summing the whole cache again, after every round."""
    plan = [[0, 1], [2], [1, 3], [0], [2, 3, 1]]
    sizes = np.array(SIZES, float)
    start = np.random.default_rng(1).normal(size=5)
    keep = KeepLocal()
    memory, w, cache = keep.init(start), start, np.tile(start, (4, 1))
    for number, cohort in enumerate(plan, 1):
        updates = np.random.default_rng(number).normal(size=(len(cohort), 5))
        cache[cohort] = w + updates
        parts = [Part(u, sizes[k], k) for u, k in zip(updates, cohort, strict=True)]
        got = Combined({"update": parts}, len(cohort), {}, None, None, kinds={"update": "parts"})
        found, memory = keep.combine(got, w, memory, RoundInfo(number, len(cohort), len(cohort), 4, float(sizes.sum())))
        w = w + found["update"]
        np.testing.assert_allclose(w, (sizes[:, None] * cache).sum(0) / sizes.sum(), rtol=1e-12, atol=1e-13)
    assert len(memory["models"]) == 4


def test_keep_local_remembers_across_rounds_of_a_training():
    """Clients 0 and 1 train in turn: after round 2, both their newest models are in the mean."""
    share = np.array([10, 30]) / 40
    first = train(KeepLocal(), sizes=[10, 30], rounds=1, schedule=Schedule([[0], [1]]))
    both = train(KeepLocal(), sizes=[10, 30], rounds=2, schedule=Schedule([[0], [1]]))
    local_0 = flat(first.params) / share[0]  # w(0) = 0
    local_1 = (flat(both.params) - flat(first.params)) / share[1]
    again = train(Renormalised(), sizes=[10, 30], rounds=1, schedule=Schedule([[0]]))
    np.testing.assert_allclose(local_0, flat(again.params), rtol=1e-10, atol=1e-12)
    assert np.linalg.norm(local_1) > 0.01


class Vectorised(Inline):
    """Inline, with the blocks of a task's ``many``."""

    vectorised: ClassVar[bool] = True


def test_parts_of_blocks_that_come_out_of_order_keep_their_senders():
    def many(cohort, message):
        for block in ([3, 1], [0, 2]):
            yield Batch(np.array(block), {"p": Parts(cohort.positions[block] * 10.0, examples=np.ones(2))})

    work = Task("t:t", lambda island, message: None, many=many)

    async def program(fed):
        return await fed.sum(fed.parties, work)

    got = atoll.simulate(program, Community([None] * 4), engine=Vectorised(), tasks=[work])
    assert [(p.sender, p.value) for p in got["p"]] == [(0, 0.0), (1, 10.0), (2, 20.0), (3, 30.0)]
    assert got.kinds == {"p": "parts"}


def test_a_part_that_is_not_finite_is_rejected_in_blocks_too():
    def many(cohort, message):
        yield Batch(np.arange(3), {"p": Parts(np.array([1.0, np.nan, 3.0]), examples=np.ones(3))})

    work = Task("t:t", lambda island, message: None, many=many)

    async def program(fed):
        return await fed.sum(fed.parties, work)

    got = atoll.simulate(program, Community([None] * 3), engine=Vectorised(), tasks=[work])
    assert [p.value for p in got["p"]] == [1.0, 3.0]
    assert got.rejected == {"client-1": "p is not finite"}


@pytest.mark.parametrize("engine", ["batched", "processes"])
@pytest.mark.parametrize("aggregation", [KeepLocal(), KeepGlobal(), EqualWeights()], ids=repr)
def test_operators_give_the_same_on_every_engine(aggregation, engine):
    job = Training(
        model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1), selection=atoll.Uniform(3), aggregation=aggregation, rounds=3
    )  # fmt: skip
    inline, other = (atoll.simulate(job, islands(SIZES), engine=e, seed=5) for e in ("inline", engine))
    np.testing.assert_allclose(flat(other.params), flat(inline.params), rtol=1e-10, atol=1e-13)


def test_the_population_is_asked_when_its_sizes_are_not_known():
    data = islands(SIZES)
    unknown = Community([data.shard(i) for i in range(len(SIZES))])
    job = Training(
        model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1), selection=Schedule([[1]]), aggregation=KeepGlobal(), rounds=2
    )  # fmt: skip
    asked, known = (atoll.simulate(job, population, engine="inline") for population in (unknown, data))
    np.testing.assert_allclose(flat(asked.params), flat(known.params), rtol=1e-12)


def test_resumed_keep_local_is_identical(tmp_path):
    def job(rounds):
        return Training(
            model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1), selection=atoll.Uniform(2), aggregation=KeepLocal(), rounds=rounds
        )  # fmt: skip

    data = islands(SIZES)
    whole = atoll.simulate(job(6), data, engine="inline")
    atoll.simulate(job(3), data, engine="inline", folder=tmp_path / "run")
    resumed = atoll.simulate(job(6), data, engine="inline", folder=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(flat(resumed.params), flat(whole.params))


@dataclass(frozen=True)
class Sealed(Plain):
    """A reducer that reveals sums only."""

    secure: ClassVar[bool] = True


def test_a_secure_reducer_refuses_single_replies():
    with pytest.raises(CompositionError, match=r"KeepLocal sees single replies, and Sealed reveals sums only"):
        Training(model=atoll.models.linear(4, 3), aggregation=KeepLocal(), reducer=Sealed())
    with pytest.raises(
        CompositionError, match=r"Sealed takes one reply of each client, and SizeProportional may draw a client twice"
    ):
        Training(model=atoll.models.linear(4, 3), selection=SizeProportional(3), reducer=Sealed())
    Training(model=atoll.models.linear(4, 3), selection=SizeProportional(3, replace=False), reducer=Sealed())


def test_operators_that_need_a_model_update_refuse_gradients():
    with pytest.raises(CompositionError, match=r"FedSGD does not reply with the mean update of a model"):
        train(KeepLocal(), algorithm=FedSGD(lr=0.1))
    with pytest.raises(CompositionError, match=r"FedSGD does not reply with an update of the model"):
        train(Rescaled(models=True), algorithm=FedSGD(lr=0.1))
    full, kept = (train(a, algorithm=FedSGD(lr=0.1)) for a in (Renormalised(), KeepGlobal()))
    np.testing.assert_allclose(flat(full.params), flat(kept.params), rtol=1e-10)


def test_a_population_of_unknown_size_is_named():
    with pytest.raises(ConfigError, match=r"the population has None examples"):
        KeepGlobal().combine(combined([np.zeros(2)], [1.0], None), np.zeros(2), None, RoundInfo(1, 1, 1, 9))


def test_wrappers_leave_other_replies_alone():
    class Two(FedAvg):
        def finish(self, local, broadcast, client, work):
            reply, state = super().finish(local, broadcast, client, work)
            return {**reply, "count": Sum(np.ones(1)), "drift": Mean(np.ones(1), examples=work.examples)}, state

    params = {"w": np.zeros(2)}
    from atoll.learn.wrapped import dry_reply

    single = dry_reply(KeepLocal().algorithm(Two(lr=0.1)), params)
    assert [type(a).__name__ for a in single.values()] == ["Parts", "Sum", "Mean"]
    equal = dry_reply(EqualWeights().algorithm(Two(lr=0.1)), params)
    assert {k: a.weight for k, a in equal.items()} == {"update": 1.0, "count": 1.0, "drift": 1.0}
    base = Two(lr=0.1, epochs=3, batch_size=7)
    wrapped = KeepLocal().algorithm(base)
    assert (wrapped.lr, wrapped.epochs, wrapped.batch_size, wrapped.phases) == (0.1, 3, 7, base.phases)


def test_the_base_operator_is_the_plain_mean():
    assert Aggregation().combine(combined([np.ones(2)], [2.0], None), None, "kept", None)[1] == "kept"


@pytest.mark.parametrize("operator", [KeepGlobal(), KeepLocal(), Rescaled()], ids=repr)
def test_algorithms_that_count_clients_alike_are_refused_where_the_population_is_weighed(operator):
    from atoll.algorithms import FedDyn, Mime, Scaffold

    params = {"w": np.zeros(3)}
    for algorithm in (FedDyn(), Scaffold()):
        with pytest.raises(CompositionError, match="does not weight its mean 'update' by examples"):
            operator.check(algorithm, params)
    for algorithm in (atoll.FedAvg(), Mime(), Scaffold(by_examples=True)):
        operator.check(algorithm, params)
