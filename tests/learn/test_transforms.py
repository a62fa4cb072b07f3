"""Transforms of a direction: closed forms, first steps, bounds, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atoll.core.algebra import tree as T
from atoll.core.errors import ConfigError
from atoll.learn.transforms import (
    AdaGrad,
    Adam,
    ClipNorm,
    Momentum,
    Proximal,
    RMSProp,
    Transform,
    WeightDecay,
    Yogi,
    apply_all,
    init_all,
)

ALL = [
    AdaGrad(),
    Adam(),
    Adam(debias=False),
    ClipNorm(0.5),
    Momentum(0.9),
    Momentum(0.9, nesterov=True, damped=True),
    Proximal(0.3),
    RMSProp(),
    Transform(),
    WeightDecay(0.1),
    Yogi(),
]
numbers = st.floats(-100, 100).filter(lambda x: x == 0 or abs(x) > 1e-3)
gradients = st.lists(arrays(np.float64, 3, elements=numbers), min_size=1, max_size=6)


def after(transform: Transform, seen: list[np.ndarray]) -> tuple[np.ndarray, Any]:
    """The last direction and the memory, at the point 0."""
    here = {"w": np.zeros(3)}
    memory, v = transform.init(here), {"w": np.zeros(3)}
    for g in seen:
        v, memory = transform.apply({"w": g}, memory, here, here)
    return v["w"], memory


@given(gradients, st.floats(0, 0.99))
def test_momentum_is_the_discounted_sum(seen: list[np.ndarray], beta: float) -> None:
    t = len(seen)
    total = sum(beta ** (t - 1 - i) * g for i, g in enumerate(seen))
    np.testing.assert_allclose(after(Momentum(beta), seen)[0], total, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        after(Momentum(beta, nesterov=True), seen)[0], seen[-1] + beta * total, rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(after(Momentum(beta, damped=True), seen)[0], (1 - beta) * total, rtol=1e-9, atol=1e-9)


@given(gradients, st.floats(0, 0.99), st.floats(0, 0.999))
def test_adam_is_the_ratio_of_weighted_means(seen: list[np.ndarray], b1: float, b2: float) -> None:
    def mean(beta: float, values: list[np.ndarray]) -> np.ndarray:
        weights = np.array([beta ** (len(values) - 1 - i) for i in range(len(values))])
        return np.tensordot(weights / weights.sum(), np.array(values), axes=1)

    below = np.sqrt(mean(b2, [g * g for g in seen])) + 1e-8
    terms = mean(b1, [np.abs(g) for g in seen]) / below  # which may cancel above a root that is nearly 0
    assert (np.abs(after(Adam(b1, b2), seen)[0] - mean(b1, seen) / below) <= 1e-9 * terms).all()
    rms = seen[-1] / (np.sqrt(mean(b2, [g * g for g in seen])) + 1e-8)
    np.testing.assert_allclose(after(RMSProp(b2), seen)[0], rms, rtol=1e-9)


@given(gradients)
def test_adagrad_divides_by_the_root_of_the_sum_of_squares(seen: list[np.ndarray]) -> None:
    wanted = seen[-1] / (np.sqrt(sum(g * g for g in seen)) + 1e-8)
    np.testing.assert_allclose(after(AdaGrad(), seen)[0], wanted, rtol=1e-9, atol=1e-12)


@given(arrays(np.float64, 3, elements=numbers))
def test_the_first_corrected_step_is_the_sign(g: np.ndarray) -> None:
    np.testing.assert_allclose(after(Adam(), [g])[0], np.sign(g), atol=2e-5)
    np.testing.assert_allclose(after(RMSProp(), [g])[0], np.sign(g), atol=2e-5)


@given(gradients, st.floats(0, 0.99))
def test_yogi_moves_its_mean_square_by_a_bounded_amount(seen: list[np.ndarray], beta: float) -> None:
    _, before = after(Yogi(0.9, beta), seen[:-1])
    _, now = after(Yogi(0.9, beta), seen)
    moved = np.abs(now["s"]["w"] - before["s"]["w"])
    assert (moved <= (1 - beta) * seen[-1] ** 2 * (1 + 1e-9) + 1e-9).all()
    _, adam = after(Adam(0.9, beta, debias=False), seen[:1])
    np.testing.assert_allclose(after(Yogi(0.9, beta), seen[:1])[1]["s"]["w"], adam["s"]["w"], rtol=1e-9)


@given(arrays(np.float64, 4, elements=numbers), st.floats(1e-3, 1e3))
def test_clipping_bounds_the_norm_and_keeps_what_is_short(g: np.ndarray, bound: float) -> None:
    tree = {"a": g[:3], "b": g[3:]}
    clipped, _ = ClipNorm(bound).apply(tree, {}, tree, tree)
    assert T.norm(clipped) <= bound * (1 + 1e-9)
    factor = min(1.0, bound / np.linalg.norm(g)) if g.any() else 1.0
    np.testing.assert_allclose(np.concatenate([clipped["a"], clipped["b"]]), g * factor, rtol=1e-9, atol=1e-12)


@given(arrays(np.float64, 3, elements=numbers), arrays(np.float64, 3, elements=numbers), st.floats(0, 10))
def test_pulls_are_gradients_of_their_penalties(y: np.ndarray, x: np.ndarray, weight: float) -> None:
    zero, at, start = {"w": np.zeros(3)}, {"w": y}, {"w": x}
    np.testing.assert_allclose(Proximal(weight).apply(zero, {}, at, start)[0]["w"], weight * (y - x))
    np.testing.assert_allclose(WeightDecay(weight).apply(zero, {}, at, start)[0]["w"], weight * y)


@pytest.mark.parametrize("transform", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_stay_and_nothing_given_changes(transform: Transform, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(2, 3)).astype(dtype), "b": rng.normal(size=2).astype(dtype)}
    kept = T.map(np.copy, params)
    memory = transform.init(params)
    assert bool(T.leaves(memory)) == transform.remembers
    for _ in range(2):
        v, memory = transform.apply(params, memory, params, T.zeros_like(params))
    for leaf in [*T.leaves(v), *T.leaves(memory)]:
        assert leaf.dtype == dtype
    np.testing.assert_array_equal(params["w"], kept["w"])
    np.testing.assert_array_equal(params["b"], kept["b"])


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_torch_gives_the_same(transform: Transform) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    point, steps = {"w": rng.normal(size=4)}, [{"w": rng.normal(size=4)} for _ in range(3)]
    other = {"w": torch.from_numpy(point["w"])}
    memory, theirs = transform.init(point), transform.init(other)
    for g in steps:
        v, memory = transform.apply(g, memory, point, T.zeros_like(point))
        w, theirs = transform.apply({"w": torch.from_numpy(g["w"])}, theirs, other, T.zeros_like(other))
        np.testing.assert_allclose(w["w"].numpy(), v["w"], rtol=1e-12)


def test_a_chain_acts_in_order() -> None:
    chain = (WeightDecay(1.0), ClipNorm(1.0))
    at, zero = {"w": np.array([3.0, 4.0])}, {"w": np.zeros(2)}
    v, memory = apply_all(chain, zero, init_all(chain, at), at, at)
    np.testing.assert_allclose(v["w"], [0.6, 0.8])
    assert memory == [{}, {}]
    v, _ = apply_all(chain[::-1], zero, init_all(chain, at), at, at)
    np.testing.assert_allclose(v["w"], [3.0, 4.0])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Momentum(1.0), r"beta=1\.0"),
        (lambda: Momentum(-0.1), r"beta=-0\.1"),
        (lambda: Momentum(float("nan")), "beta=nan"),
        (lambda: Adam(beta1=1.0), r"beta1=1\.0 \(in Adam\)"),
        (lambda: Yogi(beta2=1.5), r"beta2=1\.5 \(in Yogi\)"),
        (lambda: RMSProp(eps=0.0), r"eps=0\.0"),
        (lambda: AdaGrad(eps=-1.0), r"eps=-1\.0"),
        (lambda: Proximal(-1.0), r"mu=-1\.0"),
        (lambda: WeightDecay(float("inf")), "rate=inf"),
        (lambda: ClipNorm(0.0), r"bound=0\.0"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
