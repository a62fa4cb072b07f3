"""Laws of FedAvg and FedSGD (McMahan et al. 2017)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg, FedSGD, SufficientStatistics
from atoll.core.errors import ConfigError
from atoll.data import Dataset, Islands
from atoll.learn import Training
from atoll.learn.algorithm import Algorithm, LocalWork, RoundInfo
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.update import batch_rows, count_steps, local_update
from atoll.selection import Everyone, Schedule
from tests.support.learn_toys import flat, islands, rows

SIZES = [5, 12, 20]


def train(algorithm, data=None, rounds=5, seed=0, **parts):
    job = Training(
        **{
            "model": atoll.models.linear(4, 3),
            "selection": Everyone(),
            "algorithm": algorithm,
            "rounds": rounds,
            **parts,
        }
    )
    return atoll.simulate(job, data if data is not None else islands(SIZES), engine="inline", seed=seed)


def learner(data):
    return atoll.models.linear(4, 3).learner(LearnerSettings(algorithm=Algorithm()), data)


def test_fedsgd_is_fedavg_with_one_full_batch_step():
    a = train(FedSGD(lr=0.3))
    b = train(FedAvg(lr=0.3, batch_size=None, epochs=1))
    np.testing.assert_allclose(flat(a.params), flat(b.params), rtol=1e-11, atol=1e-13)


def test_fedsgd_is_gradient_descent_on_the_pooled_rows():
    data = islands(SIZES)
    pooled, model, w = data.pooled(), learner(data), {"weight": np.zeros((4, 3)), "bias": np.zeros(3)}
    for _ in range(5):
        _, g = model.loss_gradient(w, pooled.x, pooled.y)
        w = {k: w[k] - 0.3 * g[k] for k in w}
    np.testing.assert_allclose(flat(train(FedSGD(lr=0.3)).params), flat(w), rtol=1e-11, atol=1e-13)


def test_one_client_is_centralised_sgd():
    """Two rounds of two epochs: mini-batches in the order of the client's stream in each round."""
    data = islands([17])
    plan = FedAvg(lr=0.1, epochs=2, batch_size=5)
    model, w, shard = learner(data), {"weight": np.zeros((4, 3)), "bias": np.zeros(3)}, data.shard(0)
    from atoll.core.algebra.rng import Rng

    for number in (1, 2):
        key = Rng.of(4).child("main", "atoll.learn.linear:train", f"@{number}/train").child(data.names[0]).key
        for batch in batch_rows(plan, 17, key):
            _, g = model.loss_gradient(w, shard.x[batch], shard.y[batch])
            w = {k: w[k] - 0.1 * g[k] for k in w}
    np.testing.assert_allclose(flat(train(plan, data, rounds=2, seed=4).params), flat(w), rtol=1e-11, atol=1e-13)


def test_the_order_of_a_cohort_does_not_matter_beyond_rounding():
    one, other = (train(FedAvg(lr=0.1), selection=Schedule([order])) for order in ([0, 1, 2], [2, 0, 1]))
    np.testing.assert_allclose(flat(one.params), flat(other.params), rtol=1e-10, atol=1e-13)


def test_equal_sizes_give_the_plain_mean_of_the_clients_models():
    data = islands([8, 8, 8])
    alone = [flat(train(FedAvg(lr=0.1), data, rounds=1, selection=Schedule([[k]])).params) for k in range(3)]
    together = flat(train(FedAvg(lr=0.1), data, rounds=1).params)
    np.testing.assert_allclose(together, np.mean(alone, axis=0), rtol=1e-11, atol=1e-13)


def test_unequal_sizes_weigh_by_examples():
    alone = [flat(train(FedAvg(lr=0.1), rounds=1, selection=Schedule([[k]])).params) for k in range(3)]
    together = flat(train(FedAvg(lr=0.1), rounds=1).params)
    np.testing.assert_allclose(together, np.average(alone, axis=0, weights=SIZES), rtol=1e-11, atol=1e-13)


def test_clients_that_are_copies_train_as_one():
    base = rows(9, 3)
    copies = Islands.from_datasets([base, Dataset({"x": base.x, "y": base.y}, classes=3)])
    one = Islands.from_datasets([base])
    plan = FedAvg(lr=0.2, batch_size=None, epochs=3)
    np.testing.assert_allclose(flat(train(plan, copies).params), flat(train(plan, one).params), rtol=1e-11, atol=1e-13)


@settings(max_examples=20)
@given(st.floats(0.1, 2.0), st.floats(0.5, 1.0))
def test_server_rate_and_decay(server_lr, decay):
    plan = FedAvg(lr=0.2, server_lr=server_lr, decay=decay)
    state = plan.init({"w": np.zeros(2)})
    for number in (1, 2, 3):
        sent = plan.broadcast(state, "train")
        assert sent["lr"] == pytest.approx(0.2 * decay ** (number - 1))
        state = plan.fold(state, {"update": {"w": np.ones(2)}}, RoundInfo(number, 1, 1, 1), "train")
        np.testing.assert_allclose(state["params"]["w"], server_lr * number)


def test_server_rate_scales_the_first_step():
    half, whole = (flat(train(FedAvg(lr=0.1, server_lr=s), rounds=1).params) for s in (0.5, 1.0))
    np.testing.assert_allclose(half, 0.5 * whole, rtol=1e-12)


@pytest.mark.slow
def test_it_reaches_the_optimum_of_a_convex_problem():
    """Multinomial logistic regression with weight decay: FedSGD arrives at the pooled optimum of scikit-learn."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    data = islands([60, 90, 150])
    pooled, l2 = data.pooled(), 0.05
    model, seldom = atoll.models.linear(4, 3, l2=l2), atoll.Evaluation(every=600)
    found = train(FedSGD(lr=1.0), data, rounds=600, model=model, evaluation=seldom).params
    reference = linear_model.LogisticRegression(C=1 / (l2 * len(pooled)), tol=1e-10, max_iter=1000).fit(
        pooled.x, pooled.y
    )
    np.testing.assert_allclose(found["weight"].T, reference.coef_, atol=1e-5)


def test_local_steps_make_fedavg_faster_than_fedsgd():
    data = islands([60, 60, 60])
    slow = train(FedSGD(lr=0.1), data, rounds=60).metrics
    fast = train(FedAvg(lr=0.1, batch_size=None, epochs=5), data, rounds=60).metrics
    assert fast.rounds_to("test/loss", slow.last("test/loss")) <= 60 / 4


def test_least_squares_and_hinge_learn_too():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    w = np.array([1.0, -2.0, 0.5])
    regression = atoll.data.iid(Dataset({"x": x, "y": x @ w + 1.0}, task="regression"), parties=4, seed=0)
    found = train(FedAvg(lr=0.05), regression, rounds=60, model=atoll.models.linear(3, 1)).params
    np.testing.assert_allclose(found["weight"][:, 0], w, atol=1e-3)
    np.testing.assert_allclose(found["bias"], [1.0], atol=1e-3)
    signs = Dataset({"x": x, "y": np.where(x @ w > 0, 1, -1)}, task="binary")
    binary = atoll.data.iid(signs, parties=4, seed=0).with_test(signs)
    result = train(FedAvg(lr=0.1), binary, rounds=30, model=atoll.models.linear(3, 1, loss="hinge"))
    assert result.metrics.last("test/accuracy") > 0.9


@given(st.integers(0, 40), st.integers(1, 4), st.sampled_from([None, 1, 3, 10]), st.sampled_from([None, 1, 7]))
def test_batches_cover_every_row_once_an_epoch(n, epochs, size, steps):
    plan = Algorithm(epochs=epochs, batch_size=size, steps=steps)
    batches = batch_rows(plan, n, key=123)
    assert len(batches) == count_steps(plan, n)
    if n == 0:
        assert batches == []
        return
    per_epoch = -(-n // min(size or n, n))
    for first in range(0, len(batches) - per_epoch + 1, per_epoch):
        seen = np.concatenate(batches[first : first + per_epoch])
        assert sorted(seen.tolist()) == list(range(n))
    if steps is not None:
        assert len(batches) == steps


def test_an_empty_client_weighs_nothing():
    with_empty = Islands.from_datasets([rows(6, 1), rows(1, 2)]).holdout(0.5, seed=0)[1]
    assert with_empty.sizes.tolist() == [3, 0]
    alone = train(FedAvg(lr=0.1), with_empty, selection=Schedule([[0]]))
    both = train(FedAvg(lr=0.1), with_empty)
    np.testing.assert_allclose(flat(both.params), flat(alone.params), rtol=1e-12)


def test_a_local_update_sees_the_gradient_at_any_point():
    """A step may ask for several gradients; the loss reported is that of the first."""

    class Looks(FedAvg):
        def step(self, local, grad, broadcast):
            grad({k: v + 1.0 for k, v in local["params"].items()})
            return super().step(local, grad, broadcast)

    data = islands([8])
    model, shard = learner(data), data.shard(0)
    w = {"weight": np.zeros((4, 3)), "bias": np.zeros(3)}
    plan = Looks(lr=0.1, batch_size=None)
    reply, state, loss = local_update(plan, model.loss_gradient, {"params": w, "lr": 0.1}, None, shard.x, shard.y, 1)
    ahead = {k: v + 1.0 for k, v in w.items()}
    assert loss == pytest.approx(model.loss_gradient(ahead, shard.x, shard.y)[0])
    expected = model.loss_gradient(w, shard.x, shard.y)[1]
    np.testing.assert_allclose(reply["update"].value["bias"], -0.1 * expected["bias"], rtol=1e-12)
    assert state is None


def test_statistics_are_sums():
    plan = SufficientStatistics()
    local = plan.start({"params": {"n": np.ones(2)}}, None)
    assert local["params"]["n"].tolist() == [0.0, 0.0]
    reply, _ = plan.finish({"params": {"n": np.full(2, 3.0)}}, {}, None, LocalWork(5.0, 1.0))
    assert plan.fold({"params": None}, {"statistics": reply["statistics"].value}, RoundInfo(1, 1, 1, 1), "train") == {
        "params": reply["statistics"].value
    }


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FedAvg(lr=0.0), "lr=0.0"),
        (lambda: FedAvg(lr=float("nan")), "lr=nan"),
        (lambda: FedAvg(epochs=0), "epochs=0"),
        (lambda: FedAvg(steps=0), "steps=0"),
        (lambda: FedAvg(batch_size=0), "batch_size=0"),
        (lambda: FedAvg(server_lr=0.0), "server_lr=0.0"),
        (lambda: FedAvg(decay=-1.0), "decay=-1.0"),
        (lambda: FedSGD(lr=-1.0), "lr=-1.0"),
        (lambda: FedSGD(steps=3), "steps=3"),
        (lambda: FedSGD(epochs=2), "epochs=2"),
        (lambda: FedSGD(batch_size=10), "batch_size=10"),
    ],
)
def test_bad_settings(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
