"""Stragglers are the same clients with the same part of the work on every path."""

import numpy as np
import pytest

import atoll
from atoll.learn.algorithm import Stragglers
from atoll.learn.learner import LearnerSettings, adapt
from atoll.learn.local.update import count_steps, local_update

torch = pytest.importorskip("torch")
LATE = atoll.FedAvg(lr=0.05, epochs=6, batch_size=16, stragglers=Stragglers(0.6))


def zero_linear():
    with torch.random.fork_rng(devices=[]):
        model = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def divided(equal):
    data = atoll.data.digits()
    return (
        atoll.data.iid(data, parties=6, seed=1) if equal else atoll.data.dirichlet(data, parties=6, alpha=0.5, seed=1)
    )


@pytest.mark.parametrize("equal", [False, True], ids=["sizes differ", "sizes alike"])
def test_torch_alone_and_in_blocks_and_numpy_agree(equal):
    from atoll.torch import LocalTraining

    islands = divided(equal)
    shards = [islands.shard(i) for i in range(len(islands))]
    columns = [(np.asarray(s.x), np.asarray(s.y)) for s in shards]
    keys = np.arange(10, 10 + len(shards), dtype=np.uint64)
    numpy = adapt(atoll.models.linear(64, 10), LearnerSettings(algorithm=LATE), islands)
    start = {"weight": np.zeros((64, 10)), "bias": np.zeros(10)}
    turned = {"weight": np.zeros((10, 64), np.float32), "bias": np.zeros(10, np.float32)}
    training = LocalTraining(zero_linear(), LATE, compile="never")
    blocks = {}
    for batch in training.many(columns, {"params": turned, "lr": 0.05}, None, keys):
        for i, position in enumerate(batch.positions.tolist()):
            blocks[position] = (batch.steps[i], batch.reply["update"].value["weight"][i])
    seen = set()
    for i, ((x, y), key) in enumerate(zip(columns, keys, strict=True)):
        want = local_update(LATE, numpy.loss_gradient, {"params": start, "lr": 0.05}, None, x, y, int(key))[0]["update"]
        alone = training.one((x, y), {"params": turned, "lr": 0.05}, None, int(key))[0]["update"]
        steps, weight = blocks[i]
        assert steps == count_steps(LATE, len(y), int(key))
        seen.add(steps < count_steps(LATE, len(y)))
        np.testing.assert_allclose(alone.value["weight"].T, want.value["weight"], rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(weight.T, want.value["weight"], rtol=2e-4, atol=2e-5)
    assert seen == {True, False}  # some were late, some were not


@pytest.mark.slow
def test_a_training_is_the_same_on_both_engines():
    job = atoll.Training(model=zero_linear(), algorithm=LATE, selection=atoll.Everyone(), rounds=2)
    one, many = (atoll.simulate(job, divided(True), engine=e, seed=3).params for e in ("inline", "batched"))
    np.testing.assert_allclose(many["weight"], one["weight"], rtol=2e-4, atol=2e-5)
    full = job.replace(algorithm=atoll.FedAvg(lr=0.05, epochs=6, batch_size=16))
    other = atoll.simulate(full, divided(True), engine="inline", seed=3).params
    assert np.abs(other["weight"] - one["weight"]).max() > 1e-3
