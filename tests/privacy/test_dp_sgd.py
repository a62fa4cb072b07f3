"""DP-SGD: what one example can move, where mini-batches and noise come from, and what the ledger says."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import (
    DPSGD,
    IFCA,
    Accelerated,
    FedAvg,
    FedDyn,
    FedNova,
    FedProx,
    FedYogi,
    LocalSAGA,
    Mime,
    OutputPerturbation,
    PFedMe,
    Scaffold,
)
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.examples import Clipping, ExampleSteps, StepSecrets, clipped_rows
from atoll.learn.local.update import MiniBatch, local_update
from atoll.learn.transforms import Momentum
from atoll.models.linear_model import Linear, LinearLearner
from atoll.privacy import spent

LOCAL = {"lr": 0.05, "epochs": 2, "batch_size": 8}
BASES = [
    FedAvg(**LOCAL),
    FedProx(**LOCAL),
    FedYogi(**LOCAL),
    Scaffold(**LOCAL),
    FedNova(**LOCAL),
    FedDyn(**LOCAL),
    PFedMe(lr=0.05, lam=5.0, epochs=1, batch_size=8),
    Accelerated(base=FedAvg(**LOCAL), transforms=(Momentum(0.5),), memory="client"),
]


def ids(algorithm):
    return type(algorithm).__name__


def learner(loss="cross_entropy", outputs=3, l2=0.0, features=5):
    return LinearLearner(Linear(features, outputs, loss, l2), loss, LearnerSettings(algorithm=FedAvg()))


def rows(draw, n, loss, features=5, outputs=3):
    x = draw.normal(size=(n, features)) * 10.0 ** draw.integers(-3, 4, size=(n, 1))
    if loss == "cross_entropy":
        return x, draw.integers(0, outputs, size=n)
    return x, draw.normal(size=(n, outputs)) if loss == "mse" else np.sign(draw.normal(size=(n, outputs)))


def params_of(draw, features=5, outputs=3):
    return {"weight": draw.normal(size=(features, outputs)), "bias": draw.normal(size=outputs)}


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 6),
    loss=st.sampled_from(["cross_entropy", "mse", "hinge"]),
    l2=st.sampled_from([0.0, 0.3]),
    bound=st.floats(1e-3, 1e3),
)
def test_the_sum_of_a_linear_model_is_that_of_its_examples_one_by_one(seed, n, loss, l2, bound):
    draw = np.random.default_rng(seed)
    model, params, (x, y) = learner(loss, l2=l2), params_of(draw), rows(draw, n, loss)
    clipping = Clipping(bound)
    want = clipped_rows(lambda i: model.loss_gradient(params, x[i : i + 1], y[i : i + 1])[1], n, params, clipping)
    for a, b in zip(T.leaves(model.clipped(params, x, y, clipping)), T.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * bound)


@given(seed=st.integers(0, 2**32 - 1), loss=st.sampled_from(["cross_entropy", "mse"]), huge=st.booleans())
def test_no_example_moves_the_sum_further_than_the_clip(seed, loss, huge):
    """Searched for: large, small and overflowing examples, added to any others."""
    draw = np.random.default_rng(seed)
    model, params, (x, y) = learner(loss, l2=0.1), params_of(draw), rows(draw, 5, loss)
    if huge:
        x[4] *= 10.0 ** draw.integers(0, 300)
    with np.errstate(all="ignore"):
        more, less = (model.clipped(params, x[:k], y[:k], Clipping(0.7)) for k in (5, 4))
    assert T.norm(T.sub(more, less)) <= 0.7


def test_an_example_without_a_finite_gradient_adds_nothing():
    draw = np.random.default_rng(0)
    model, params, (x, y) = learner("mse"), params_of(draw), rows(draw, 4, "mse")
    x[2, 1] = np.inf
    with np.errstate(all="ignore"):
        one_by_one = clipped_rows(
            lambda i: model.loss_gradient(params, x[i : i + 1], y[i : i + 1])[1], 4, params, Clipping(1.0)
        )
        fast = model.clipped(params, x, y, Clipping(1.0))
    others = model.clipped(params, np.delete(x, 2, 0), np.delete(y, 2, 0), Clipping(1.0))
    for made in (one_by_one, fast):
        for a, b in zip(T.leaves(made), T.leaves(others), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


def test_layers_share_the_bound():
    gradient = {"a.weight": np.array([30.0]), "a.bias": np.array([40.0]), "b.weight": np.array([1e-6])}
    made = clipped_rows(lambda i: gradient, 1, gradient, Clipping(2.0, by_layer=True))
    assert math.hypot(made["a.weight"][0], made["a.bias"][0]) == pytest.approx(2.0 / math.sqrt(2), rel=1e-4)
    assert made["b.weight"][0] == pytest.approx(1e-6)
    assert T.norm(clipped_rows(lambda i: T.scale(gradient, 1e9), 1, gradient, Clipping(2.0, by_layer=True))) <= 2.0


def test_a_step_is_the_definition():
    """``w - lr (sum_i clip(g_i) + z C n) / B``, with the mini-batches and the noise of the stream, whose deviation is ``z C / B``."""
    draw = np.random.default_rng(1)
    model, (x, y) = learner(), rows(draw, 30, "cross_entropy")
    private = DPSGD(FedAvg(lr=0.5, steps=3, batch_size=8), clip=0.4, noise=1.3)
    params = params_of(draw)
    reply, _, _ = local_update(private, model.loss_gradient, {"params": params, "lr": 0.5}, None, x, y, 7, noise=Rng(5))
    secrets, want = StepSecrets(private.example_steps, 30, 3, Rng(5)), params
    assert len({len(taken) for taken in secrets.rows}) > 1  # mini-batches have no fixed size
    drawn = []
    for taken in secrets.rows:
        total = {"weight": np.zeros((5, 3)), "bias": np.zeros(3)}
        for i in taken.tolist():
            g = model.loss_gradient(want, x[i : i + 1], y[i : i + 1])[1]
            length = np.sqrt(sum((leaf**2).sum() for leaf in g.values()))
            total = {name: total[name] + g[name] * (0.4 / max(0.4, length)) for name in total}
        noise = secrets.like(want)
        drawn.append(np.concatenate([leaf.ravel() for leaf in noise.values()]))
        want = {name: want[name] - 0.5 * (total[name] / 8 + noise[name]) for name in want}
    assert np.concatenate(drawn).std() == pytest.approx(1.3 * 0.4 / 8, rel=0.3)
    for name, leaf in reply["update"].value.items():
        np.testing.assert_allclose(leaf, want[name] - params[name], rtol=1e-4, atol=1e-6)


def test_mini_batches_are_poisson_samples():
    """Each example is in each mini-batch with probability q, on its own: sizes are binomial, pairs independent."""
    rows_of = StepSecrets(ExampleSteps(20), 50, 4000, Rng(3)).rows
    sizes = np.array([len(taken) for taken in rows_of])
    assert sizes.mean() == pytest.approx(20.0, abs=0.3)
    assert sizes.var() == pytest.approx(50 * 0.4 * 0.6, rel=0.1)
    taken = np.zeros((4000, 50))
    for at, some in enumerate(rows_of):
        taken[at, some] = 1.0
    together = np.cov(taken[:, 0], taken[:, 1])[0, 1]
    assert abs(together) < 4 * 0.24 / math.sqrt(4000)
    assert [len(some) for some in StepSecrets(ExampleSteps(20), 12, 3, Rng(3)).rows] == [12, 12, 12]
    assert StepSecrets(ExampleSteps(20), 0, 2, Rng(3)).rows[1].tolist() == []


def islands(parties=4):
    return atoll.data.iid(atoll.data.iris(), parties=parties, seed=1)


def run(algorithm, engine="inline", rounds=2, **more):
    job = atoll.Training(
        model=atoll.models.linear(4, 3),
        algorithm=algorithm,
        rounds=rounds,
        selection=atoll.Everyone(),
        evaluation=atoll.Evaluation(),
    )
    return atoll.simulate(job, islands(), engine=engine, seed=3, **more)


def weights(result):
    return np.concatenate([np.ravel(leaf) for leaf in T.leaves(result.params)])


@pytest.mark.parametrize("base", BASES, ids=ids)
def test_every_first_order_method_releases_one_gaussian_a_step(base, tmp_path):
    private = DPSGD(base, clip=0.5, noise=2.0)
    assert np.isfinite(weights(run(private, folder=tmp_path))).all()
    sizes = [len(islands().shard(i)) for i in range(4)]
    steps = base.epochs * math.ceil(sizes[0] / 8)
    lines = list(Ledger(tmp_path / "checkpoints" / "ledger.jsonl"))
    assert [line["kind"] for line in lines] == ["gaussian"] * 8
    assert len({line["party"] for line in lines}) == 4
    assert {line["count"] for line in lines} == {steps}
    assert {line["unit"] for line in lines} == {"example"}
    assert {line["drawn_by"] for line in lines} == {"party"}
    assert {line["sampling"] for line in lines} == {8 / n for n in sizes}
    assert {line["noise_multiplier"] for line in lines} == {2.0 / math.sqrt(private.gradients)}


def test_the_noise_is_not_a_function_of_the_seed():
    """Everything that the server knows is equal in two runs, and their models differ; a seeded secret makes them equal, and the ledger says so."""
    private = DPSGD(FedAvg(**LOCAL), clip=0.5, noise=1.0)
    first, second = (weights(run(private)) for _ in range(2))
    assert np.abs(first - second).min() > 0
    np.testing.assert_array_equal(*(weights(run(private, secret_seed=5)) for _ in range(2)))


def test_epsilon_of_a_run_is_that_of_the_calculator():
    """q = 0.04, sigma = 1.5, 2250 steps, delta = 1e-5: 6.7688 by loss distributions."""
    private = DPSGD(FedAvg(steps=2250, batch_size=8), clip=1.0, noise=1.5)
    (event,) = private.events(200)
    assert (event.sampling, event.count) == (0.04, 2250)
    ledger = [{"party": "a", "request": "r", **event.pack()}]
    assert spent(ledger, 1e-5, "pld")["a"] == pytest.approx(6.7688, abs=2e-3)
    assert spent(ledger, 1e-5, "rdp")["a"] == pytest.approx(7.3293, abs=2e-3)


def test_several_gradients_of_one_mini_batch_count_together():
    private = DPSGD(PFedMe(lr=0.05, lam=5.0, epochs=1, batch_size=8), clip=0.5, noise=2.0)
    assert private.gradients > 1
    (event,) = private.events(80)
    assert event.noise_multiplier == pytest.approx(2.0 / math.sqrt(private.gradients))


def test_one_rate_for_all_sizes_needs_a_number_of_steps():
    private = DPSGD(FedAvg(steps=5), clip=1.0, noise=1.0, batch=10, rate=0.05)
    assert [private.events(n)[0].sampling for n in (10, 1000)] == [0.05, 0.05]
    assert [private.events(n)[0].count for n in (10, 1000)] == [5, 5]
    with pytest.raises(ConfigError, match="must not depend on their size"):
        DPSGD(FedAvg(epochs=2), clip=1.0, noise=1.0, batch=10, rate=0.05)


@pytest.mark.parametrize(
    "settings", [{"clip": 0.0}, {"clip": math.inf}, {"noise": 0.0}, {"noise": -1.0}, {"rate": 1.5}, {"batch": 0}]
)
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        DPSGD(FedAvg(steps=4), **{"clip": 1.0, "noise": 1.0, **settings})


def test_all_rows_as_one_mini_batch_need_an_expected_size():
    with pytest.raises(ConfigError, match="the expected size of a mini-batch"):
        DPSGD(FedAvg(batch_size=None), clip=1.0, noise=1.0)
    assert DPSGD(FedAvg(batch_size=None), clip=1.0, noise=1.0, batch=4).size == 4


def test_noise_that_is_not_declared_is_refused():
    with pytest.raises(CompositionError, match="does not declare it"):
        MiniBatch(lambda p, x, y: (0.0, p), np.zeros((1, 1)), np.zeros(1)).normal({"w": np.zeros(1)})


def test_an_anchor_gradient_is_a_noisy_release_too():
    """SCAFFOLD's option 1 takes the gradient at the server's model in a pass of its own."""
    counts = {o: DPSGD(Scaffold(option=o, **LOCAL), clip=1.0, noise=1.0).events(40) for o in (1, 2)}
    assert sum(event.count for event in counts[1]) > sum(event.count for event in counts[2]) == 10


@pytest.mark.parametrize(
    ("base", "match"),
    [
        (IFCA(FedAvg(**LOCAL)), "no step along gradients"),
        (Mime(**LOCAL), "phases of a round"),
        (LocalSAGA(parts=4, epochs=1), "drawn afresh"),
        (OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0), "mechanism already"),
    ],
    ids=lambda value: ids(value) if not isinstance(value, str) else "",
)
def test_a_base_whose_releases_would_not_be_noisy_gradients_is_refused(base, match):
    with pytest.raises(CompositionError, match=match):
        DPSGD(base, clip=1.0, noise=1.0, batch=4)
