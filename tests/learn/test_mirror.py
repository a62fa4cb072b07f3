"""Mirror maps, FedMirror and FedDualAvg: inverses, minima, base cases, and the curse of primal averaging."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import atoll
from atoll.algorithms import FedAvg, FedDualAvg, FedMirror
from atoll.core.errors import ConfigError
from atoll.learn.proximal import Entropy, PNorm, soft
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.testing import check_algorithm
from atoll_papers.survey.first_order import LASSO_L1, LASSO_LR, lasso, lasso_gap, lasso_optimum, non_zeros

vectors = arrays(np.float64, 4, elements=st.floats(-10, 10).filter(lambda x: x == 0 or abs(x) > 1e-3))
exponents = st.floats(1.2, 2.0)


@given(vectors, exponents)
def test_the_p_norm_map_has_an_inverse(w: np.ndarray, p: float) -> None:
    h = PNorm(p)
    np.testing.assert_allclose(h.primal(h.dual({"w": w}), 0.0)["w"], w, rtol=1e-6, atol=1e-9)


@given(vectors, exponents, st.floats(0, 5), vectors)
def test_primal_is_the_minimum(z: np.ndarray, p: float, c: float, off: np.ndarray) -> None:
    def value(w: np.ndarray) -> float:
        return float(0.5 * np.sum(np.abs(w) ** p) ** (2 / p) + c * np.abs(w).sum() - z @ w)

    best = PNorm(p).primal({"w": z}, c)["w"]
    for length in (1e-3, 1.0):
        assert value(best) <= value(best + length * off) + 1e-9


@given(arrays(np.float64, 4, elements=st.floats(0.01, 1.0)), vectors)
def test_the_entropy_map_is_the_simplex(w: np.ndarray, z: np.ndarray) -> None:
    w = w / w.sum()
    h = Entropy()
    np.testing.assert_allclose(h.primal(h.dual({"w": w}), 0.0)["w"], w, rtol=1e-9)
    made = h.primal({"w": z}, 1.0)["w"]
    assert made.sum() == pytest.approx(1.0)
    assert (made >= 0).all()


def test_soft_thresholding() -> None:
    np.testing.assert_array_equal(soft({"w": np.array([3.0, -0.5, -2.0, 0.0])}, 1.0)["w"], [2.0, 0.0, -1.0, 0.0])


def train(algorithm: Any, data: Any, rounds: int) -> np.ndarray:
    dim = np.shape(data.shard(0).x)[1]
    last = atoll.Evaluation(every=rounds)
    job = atoll.Training(
        model=Quadratic(dim), algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds, evaluation=last
    )
    return np.asarray(atoll.simulate(job, data, engine="inline").params["w"])


def test_euclid_without_a_penalty_is_fedavg() -> None:
    setting: dict[str, Any] = {"lr": 0.02, "steps": 4, "batch_size": None}
    base = train(FedAvg(**setting), quadratics(), 10)
    np.testing.assert_array_equal(train(FedMirror(**setting), quadratics(), 10), base)
    np.testing.assert_allclose(train(FedDualAvg(**setting), quadratics(), 10), base, rtol=1e-12)


def test_one_client_is_proximal_gradient_descent_and_reaches_a_stationary_point() -> None:
    data = quadratics(clients=1)
    h, b = np.asarray(data.shard(0).x), np.asarray(data.shard(0).y)
    w = np.zeros(20)
    for _ in range(600):
        z = w - 0.05 * (h @ w - b)
        w = np.sign(z) * np.maximum(np.abs(z) - 0.05 * 2.0, 0.0)
    found = train(FedMirror(lr=0.05, l1=2.0, steps=20, batch_size=None), data, 30)
    np.testing.assert_allclose(found, w, atol=1e-12)
    gradient = h @ found - b
    assert (found == 0).any()
    assert (np.abs(gradient[found == 0]) <= 2.0).all()
    np.testing.assert_allclose(gradient[found != 0], -2.0 * np.sign(found[found != 0]), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "p", "reaches"), [(FedMirror, 2.0, True), (FedMirror, 1.5, False), (FedDualAvg, 1.5, True)]
)
def test_with_one_step_only_the_mean_of_dual_points_suits_every_geometry(kind: Any, p: float, reaches: bool) -> None:
    data = quadratics(clients=3, dim=4)
    found = train(kind(lr=0.1, steps=1, batch_size=None, mirror="pnorm", p=p), data, 300)
    off = np.abs(found - minimiser(data)[0]).max()
    # The optimum is no fixed point of mean_k grad h^*(z - lr g_k) where grad h^* is not linear.
    assert off < 1e-4 if reaches else 1e-3 < off < 1e-1


def test_exponentiated_gradients_find_the_best_vertex() -> None:
    # On the simplex sum_j c_j w_j is least at the smallest c_j; a quadratic with a small Hessian and b = -c.
    c = np.array([0.3, 0.1, 0.5, 0.4])
    data = atoll.data.Islands.from_datasets(
        {f"{k}": atoll.data.Dataset({"x": np.zeros((4, 4)), "y": -c + 0.05 * k}, task="regression") for k in range(3)}
    )
    for kind in (FedMirror, FedDualAvg):
        found = train(kind(lr=1.0, mirror="entropy", steps=5, batch_size=None), data, 60)
        assert found.sum() == pytest.approx(1.0)
        assert found[1] > 0.999


@pytest.mark.slow
def test_the_mean_of_sparse_models_is_dense_and_the_mean_of_dual_points_is_not() -> None:
    # Specification of the survey, section 3: at T = 5, of an optimum with 8 non-zeros, FedMirror leaves 77 and FedDualAvg exactly 8. Its order of draws is
    # not given, so that ours is another data set of the same recipe.
    data = lasso()
    top = max(np.linalg.eigvalsh(np.asarray(data.shard(k).x))[-1] for k in range(10))
    assert pytest.approx(0.5 / top, rel=3e-3) == LASSO_LR
    best, _ = lasso_optimum(data)
    assert np.count_nonzero(best) == 8
    setting: dict[str, Any] = {"lr": LASSO_LR, "l1": LASSO_L1, "steps": 5, "batch_size": None}
    primal = {"w": train(FedMirror(**setting), data, 200)}
    dual = {"w": train(FedDualAvg(**setting), data, 200)}
    assert non_zeros(data, primal) > 60
    assert non_zeros(data, dual) == 8
    np.testing.assert_array_equal(dual["w"] != 0, best != 0)
    assert 0 < lasso_gap(data, dual) < lasso_gap(data, primal) / 10


@pytest.mark.parametrize("mirror", ["euclid", "pnorm", "entropy"])
@pytest.mark.parametrize("kind", [FedMirror, FedDualAvg])
def test_the_contract_holds_in_every_geometry(kind: Any, mirror: str) -> None:
    check_algorithm(kind(lr=0.1, l1=0.01, mirror=mirror), descends=mirror != "entropy")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"l1": -0.1}, r"l1=-0\.1"),
        ({"mirror": "hyperbolic"}, "mirror='hyperbolic'"),
        ({"mirror": "pnorm", "p": 1.0}, r"p=1\.0"),
        ({"mirror": "pnorm", "p": 2.5}, r"p=2\.5"),
    ],
)
def test_bad_settings_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FedMirror(**settings)
    with pytest.raises(ConfigError, match=r"server_lr=0\.0"):
        FedDualAvg(server_lr=0.0)
