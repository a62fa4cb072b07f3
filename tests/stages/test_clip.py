"""Laws of clipping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import atoll
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.stage import Guarding, StageContext
from atoll.stages import Clip

torch = pytest.importorskip("torch")
RNG = Rng.of(0)
KEYS = np.arange(4, dtype=np.uint64)
values = arrays(np.float64, (4, 3), elements=st.floats(-100, 100))
bounds = st.floats(1e-3, 1e3)


def tree(x):
    return {"w": x, "b": [x[..., :1] * 0.5]}


@given(values, bounds)
def test_the_norm_is_at_most_the_bound_and_the_direction_stays(x, bound):
    clipped = Clip(bound).encode(tree(x), StageContext.of(RNG))
    before, after = float(T.norm(tree(x))), float(T.norm(clipped))
    assert after <= bound * (1 + 1e-12)
    assert after == pytest.approx(min(before, bound), rel=1e-9)
    for one, other in zip(T.leaves(tree(x)), T.leaves(clipped), strict=True):
        np.testing.assert_allclose(
            other * max(before, bound),
            one * bound if before > bound else one * max(before, bound),
            rtol=1e-9,
            atol=1e-9,
        )


@given(values, bounds)
def test_below_the_bound_nothing_changes(x, bound):
    value = tree(x)
    if float(T.norm(value)) <= bound:
        assert Clip(bound).encode(value, StageContext.of(RNG)) is value


@given(values, bounds)
def test_clipping_twice_is_clipping_once(x, bound):
    once = Clip(bound).encode(tree(x), StageContext.of(RNG))
    twice = Clip(bound).encode(once, StageContext.of(RNG))
    for a, b in zip(T.leaves(once), T.leaves(twice), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(x=values, bound=bounds)
def test_a_block_is_clipped_client_by_client(library, dtype, x, bound):
    block = tree(x.astype(dtype))
    if library == "torch":
        block = T.map(torch.tensor, block)
    together = Clip(bound).encode_block(block, StageContext(keys=KEYS))
    for c in range(len(x)):
        alone = Clip(bound).encode(T.map(lambda leaf, c=c: leaf[c], block), StageContext.of(RNG))
        for a, b in zip(T.leaves(alone), T.leaves(together), strict=True):
            assert str(a.dtype) == str(b.dtype)
            np.testing.assert_allclose(np.asarray(b[c]), np.asarray(a), rtol=1e-5 if dtype == "float32" else 1e-11)


def test_huge_updates_are_clipped_not_lost():
    """The square of 1e25 overflows float32; the clipped update still points the same way."""
    x = {"w": np.array([3e25, 4e25], np.float32)}
    np.testing.assert_allclose(Clip(1.0).encode(x, StageContext.of(RNG))["w"], [0.6, 0.8], rtol=1e-6)
    block = Clip(1.0).encode_block({"w": np.stack([x["w"], np.zeros(2, np.float32)])}, StageContext(keys=KEYS[:2]))
    np.testing.assert_allclose(block["w"], [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)


def test_zero_stays_zero():
    assert not Clip(1.0).encode({"w": np.zeros(3)}, StageContext.of(RNG))["w"].any()
    assert not Clip(1.0).encode_block({"w": np.zeros((2, 3))}, StageContext(keys=KEYS[:2]))["w"].any()


def test_sensitivity_and_kind():
    assert facet(Clip(2.0), Guarding).sensitivity(None) == 2.0
    assert facet(Clip(2.0), Guarding).sensitivity(1.0) == 1.0
    assert facet(Clip(2.0), Guarding).sensitivity(5.0) == 2.0
    assert Clip(2.0).summable
    assert not Clip(2.0).linear
    assert Clip(2.0).settings() == {"bound": 2.0, "alone": False}


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_bounds(bound):
    with pytest.raises(ConfigError, match=rf"bound={bound} \(in Clip\)"):
        Clip(bound)


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_round_moves_the_model_by_at_most_the_bound(engine):
    data = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=1.0, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=1.0), uplink=[Clip(0.25)], rounds=1, selection=atoll.Everyone()
    )  # fmt: skip
    params = atoll.simulate(job, data, engine=engine).params
    assert float(T.norm(params)) <= 0.25 + 1e-12
    free = atoll.simulate(job.replace(uplink=[]), data, engine=engine).params
    assert float(T.norm(free)) > 0.25
