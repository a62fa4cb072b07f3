"""Partial work: a message that asks for another number of local epochs than the algorithm's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import (
    DANE,
    VRLSGD,
    FedAvg,
    FedProx,
    FedSGD,
    FirstOrderResidual,
    LocalSVRG,
    Mime,
    ObjectivePerturbation,
    OutputPerturbation,
)
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.core.requests.task import Work
from atoll.learn.algorithm import Phased, Stragglers
from atoll.learn.learner import LearnerSettings, adapt
from atoll.learn.local.update import (
    PartialWork,
    asked_epochs,
    batch_rows,
    count_many,
    count_steps,
    declare_workload,
    epochs_of_pass,
    local_contact,
    quota,
)
from tests.support.learn_toys import Told, islands, own_loop

TEN_IN_FOURS = {"epochs": 2, "batch_size": 4}  # 10 examples: 3 mini-batches an epoch


@pytest.mark.parametrize(
    ("algorithm", "phase", "work"),
    [
        (FedAvg(**TEN_IN_FOURS), "train", Work(10, 15, 5)),
        (FedAvg(steps=4, batch_size=4), "train", Work(10, 5, 5 / 3)),  # the algorithm counts steps
        (LocalSVRG(**TEN_IN_FOURS), "train", Work(20, 16, 6)),  # the anchor is one pass as ever
        (Mime(**TEN_IN_FOURS), "anchor", Work(10, 1, 1)),
        (Mime(**TEN_IN_FOURS), "train", Work(10, 15, 5)),
    ],
)
def test_declared_work_follows_the_message(algorithm, phase, work):
    def told(**message):
        return declare_workload(algorithm, np.array([10]), {"phase": phase, **message}).row(0)

    assert told(epochs=5) == work
    assert told(epochs=algorithm.steps or 2) == told()


@given(n=st.integers(0, 30), own=st.integers(1, 4), asked=st.integers(1, 6), batch=st.sampled_from([None, 1, 4, 50]))
def test_it_is_what_an_algorithm_with_that_number_does(n, own, asked, batch):
    algorithm, other = FedAvg(epochs=own, batch_size=batch), FedAvg(epochs=asked, batch_size=batch)
    keys = np.arange(5, 8, dtype=np.uint64)
    work = quota(algorithm, asked)
    assert count_steps(work, n) == count_steps(other, n)
    assert count_many(work, np.full(3, n), keys).tolist() == count_many(other, np.full(3, n), keys).tolist()
    ours, theirs = batch_rows(work, n, 7), batch_rows(other, n, 7)
    assert [rows.tolist() for rows in ours] == [rows.tolist() for rows in theirs]


def test_fewer_epochs_are_the_first_of_more():
    few, more = (batch_rows(PartialWork(FedAvg(**TEN_IN_FOURS), k), 10, 3) for k in (2, 5))
    assert [rows.tolist() for rows in more[: len(few)]] == [rows.tolist() for rows in few]
    assert len(more) == 15


def test_steps_are_counted_in_steps():
    work = quota(FedAvg(steps=4, batch_size=4), 7)
    assert (work.steps, count_steps(work, 10), len(batch_rows(work, 10, 1))) == (7, 7, 7)


def test_stragglers_do_a_part_of_what_is_asked():
    late = FedAvg(epochs=2, batch_size=None, stragglers=Stragglers(1.0))
    keys = np.arange(2000, dtype=np.uint64)
    done = count_many(quota(late, 5), np.full(2000, 10), keys)
    assert set(done.tolist()) == {1, 2, 3, 4}
    assert [count_steps(quota(late, 5), 10, int(k)) for k in keys[:50]] == done[:50].tolist()
    assert set(count_many(quota(late, 1), np.full(9, 10), keys[:9]).tolist()) == {1}  # less cannot be done
    some = FedAvg(epochs=2, batch_size=None, stragglers=Stragglers(0.5))
    who = count_many(some, np.full(2000, 10), keys) < 2
    assert (who == (count_many(quota(some, 5), np.full(2000, 10), keys) < 5)).all()  # whoever is asked for what


@pytest.mark.parametrize("asked", [0, -1, 1.5, "2", True])
def test_a_number_that_is_none_is_refused(asked):
    with pytest.raises(ConfigError, match="epochs="):
        asked_epochs(FedAvg(), {"epochs": asked})


@pytest.mark.parametrize(
    "algorithm",
    [
        FedSGD(),
        DANE(mu=0.1),
        VRLSGD(steps=4),
        atoll.algorithms.Upcycled(base=FedSGD(), coefficient=0.1),
        ObjectivePerturbation(base=FedProx(), alpha=1.0),
    ],
    ids=["one gradient", "second order", "fixed steps", "wrapped", "exact minimisers"],
)
def test_an_algorithm_that_rests_on_its_own_work_refuses_others(algorithm):
    own = algorithm.steps or algorithm.epochs
    assert asked_epochs(algorithm, {"epochs": own}) is None
    with pytest.raises(CompositionError, match="requires its own"):
        asked_epochs(algorithm, {"epochs": own + 1})


def test_a_mechanism_that_does_not_rest_on_it_allows_it():
    private = OutputPerturbation(base=FedAvg(epochs=2), tau=1.0, sigma=1.0)
    assert asked_epochs(private, {"epochs": 3}) == 3


def test_only_passes_of_the_algorithms_own_kind_follow():
    plan = FirstOrderResidual(base=FedAvg(epochs=2))
    assert [epochs_of_pass(plan, part, 5) for part in facet(plan, Phased).passes("train")] == [5, None]
    svrg = LocalSVRG()
    assert [epochs_of_pass(svrg, part, 5) for part in facet(svrg, Phased).passes("train")] == [None, 5]


@pytest.mark.parametrize("algorithm", [FedAvg, LocalSVRG, Mime, FedProx])
def test_a_contact_gives_what_an_algorithm_with_that_number_gives(algorithm):
    data = islands([10])
    model = adapt(atoll.models.linear(4, 3), LearnerSettings(algorithm=algorithm(**TEN_IN_FOURS)), data)
    x, y = np.asarray(data.shard(0).x), np.asarray(data.shard(0).y)

    def contact(plan, epochs=None):
        state = plan.init(model.init(None))
        sent, kept = plan.broadcast(state, plan.phases[-1]), None
        return local_contact(plan, plan.phases[-1], model.loss_gradient, sent, kept, x, y, 9, epochs=epochs)

    ours, theirs = contact(algorithm(**TEN_IN_FOURS), 5), contact(algorithm(epochs=5, batch_size=4))
    for name, aggregate in theirs[0].items():
        for leaf, value in aggregate.value.items():
            assert np.array_equal(ours[0][name].value[leaf], value)
    assert ours[2] == theirs[2]
    assert ours[2] != contact(algorithm(**TEN_IN_FOURS))[2]


def test_a_loop_of_the_users_own_is_called_as_often_as_its_epochs_go_into_what_is_asked():
    learner, message = own_loop(epochs=2)
    shard = islands([10]).shard(0)

    def calls(asked):
        return learner.train(Told(shard), {**message, **({} if asked is None else {"epochs": asked})})["update"].value

    assert [float(calls(k)["calls"][0]) for k in (None, 2, 4, 6)] == [1, 1, 2, 3]
    assert calls(None)["drawn"] == calls(2)["drawn"]
    assert calls(4)["drawn"] != 2 * calls(2)["drawn"]  # every call has random numbers of its own
    with pytest.raises(CompositionError, match="epochs=3, but this model runs its own training, 2 at a time"):
        calls(3)
    assert learner.train.declared(shard, {**message, "epochs": 6}) == Work(10, 6, 6)
    assert learner.train.declared(shard, message) == Work(10, 2, 2)


def test_an_estimator_with_partial_fit_takes_so_many_passes():
    linear = pytest.importorskip("sklearn.linear_model")
    data = islands([12])

    def reply(own, asked):
        made = linear.SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1)
        learner = adapt(made, LearnerSettings(algorithm=FedAvg(epochs=own)), data)
        message = {"broadcast": {"params": learner.init(None), "lr": 0.1}, "phase": "train"}
        island = Told(data.shard(0))
        return learner.train(island, {**message, "epochs": asked})["update"].value["coef"], island.state["memory"]

    (ours, ours_kept), (theirs, theirs_kept) = reply(2, 5), reply(5, 5)
    assert np.array_equal(ours, theirs)
    assert ours_kept == theirs_kept
    assert not np.array_equal(ours, reply(2, 2)[0])


def test_an_estimator_that_fits_from_scratch_is_refused_a_part_of_it():
    linear = pytest.importorskip("sklearn.linear_model")
    data = islands([12])
    learner = adapt(linear.Ridge(), LearnerSettings(algorithm=FedAvg(epochs=2)), as_regression(data))
    message = {"broadcast": {"params": learner.init(None), "lr": 0.1}, "phase": "train", "epochs": 1}
    with pytest.raises(CompositionError, match="runs its own training"):
        learner.train(Told(as_regression(data).shard(0)), message)


def as_regression(data):
    from atoll.data import Dataset, Islands

    shard = data.shard(0)
    return Islands.from_datasets([Dataset({"x": shard.x, "y": np.asarray(shard.y, float)}, task="regression")])
