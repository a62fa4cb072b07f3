"""FedCOMGATE: clients of different sizes and speeds, and wrappers that move the model where its mean did not lead to."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import Accelerated, FedAvg, FedCOMGATE, ServerOptimised, Upcycled
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Identity
from atoll.data import Dataset, Islands
from atoll.learn.algorithm import Stragglers
from atoll.learn.transforms import Momentum
from tests.support.drift_toys import Loop

EXACT = FedCOMGATE(lr=0.02, steps=5, batch_size=None, compressor=Identity())
LATE = replace(EXACT, stragglers=Stragglers(0.5))


def unequal(sizes=(7, 20, 60), dim=4):
    """Least squares that disagree, at clients of these sizes, and the optimum of the mean over all rows."""
    draw = np.random.default_rng(5)
    xs = [draw.normal(size=(n, dim)) * draw.uniform(0.5, 2.0) for n in sizes]
    ys = [x @ draw.normal(size=dim) for x in xs]
    rows = np.column_stack([np.concatenate(xs), np.ones(sum(sizes))])
    best = np.linalg.lstsq(rows, np.concatenate(ys), rcond=None)[0]
    return Islands.from_datasets(
        [Dataset({"x": x, "y": y}, task="regression") for x, y in zip(xs, ys, strict=True)]
    ), best


@pytest.mark.parametrize(
    "algorithm", [pytest.param(EXACT, marks=pytest.mark.slow), LATE], ids=["equal steps", "stragglers"]
)
@pytest.mark.slow
def test_clients_of_different_sizes_end_at_the_optimum_of_all_rows(algorithm):
    data, best = unequal()

    def off(algorithm, rounds):
        job = atoll.Training(
            model=atoll.models.linear(4, 1, loss="mse"), algorithm=algorithm, rounds=rounds, selection=atoll.Everyone()
        )
        params = atoll.simulate(job, data, engine="inline", seed=0).params
        return np.abs(np.append(params["weight"].ravel(), params["bias"]) - best).max()

    assert off(replace(algorithm, lr=0.03), 400) < 1e-8
    assert off(FedAvg(lr=0.03, steps=5, batch_size=None, stragglers=algorithm.stragglers), 200) > 1e-2


@given(seed=st.integers(0, 999), rounds=st.integers(1, 8))
@settings(max_examples=15, deadline=None)
def test_the_corrections_cancel_whatever_steps_clients_do(seed, rounds):
    loop = Loop(LATE, seed=seed).rounds(rounds)
    sent = loop.algorithm.broadcast(loop.state, "train")
    deltas = [loop.algorithm.start(sent, client)["delta"]["w"] for client in loop.clients]
    np.testing.assert_allclose(np.sum(deltas, axis=0), 0.0, atol=1e-9)
    assert np.abs(deltas).max() > 1e-3


@pytest.mark.parametrize(
    "wrap",
    [
        lambda base: ServerOptimised(base=base, transforms=(Momentum(0.3),)),
        lambda base: Upcycled(base=base, coefficient=0.2),
        lambda base: Accelerated(base=base, transforms=(Momentum(0.3),), memory="client"),
    ],
    ids=["server momentum", "upcycled", "local momentum"],
)
def test_the_optimum_is_reached_through_wrappers_too(wrap):
    assert Loop(wrap(EXACT)).rounds(400).gap < 1e-12


def test_where_the_mean_led_to_travels_only_where_it_is_elsewhere():
    plain, moved = Loop(EXACT).rounds(3), Loop(Upcycled(base=EXACT, coefficient=0.2)).rounds(4)
    assert "landed" not in plain.algorithm.broadcast(plain.state, "train")
    assert "landed" in moved.algorithm.broadcast(moved.state, "train")


def test_steps_that_differ_with_the_clients_sizes_are_refused():
    with pytest.raises(ConfigError, match=r"steps=None: clients of different sizes.*set steps="):
        FedCOMGATE(lr=0.1)
