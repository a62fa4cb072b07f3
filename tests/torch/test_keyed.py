"""Keyed dropout and plain recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll.torch.tracing.keyed import ForeignRandomnessError, Keyed, step_seeds, uniform
from atoll.torch.tracing.recurrent import RECURRENT
from tests.support.torch_toys import seeded


def _seed(key: int, step: int = 0) -> torch.Tensor:
    return torch.from_numpy(step_seeds(np.array([key], np.uint64), np.array([step]))[0, 0])


def test_the_draw_is_uniform_and_uncorrelated() -> None:
    n = 200_000
    draws = uniform(_seed(2**40 + 17, 3), 1, (n,)).double() / 2**32
    # Five standard errors of the mean, variance and lag-1 product of independent uniforms.
    assert abs(float(draws.mean()) - 0.5) < 5 * (1 / 12 / n) ** 0.5
    assert abs(float(draws.var()) - 1 / 12) < 5 * (1 / 180 / n) ** 0.5
    assert abs(float(((draws[1:] - 0.5) * (draws[:-1] - 0.5)).mean())) < 5 / 12 / n**0.5
    counts = torch.histc(draws, 64)
    assert float(((counts - n / 64) ** 2 / (n / 64)).sum()) < 63 + 5 * (2 * 63) ** 0.5


@pytest.mark.parametrize(("key", "step", "call"), [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2**32, 0, 0)])
def test_key_step_and_call_each_change_the_draw(key: int, step: int, call: int) -> None:
    base = uniform(_seed(0), 0, (4000,)).double()
    other = uniform(_seed(key, step), call, (4000,)).double()
    assert abs(float(torch.corrcoef(torch.stack([base, other]))[0, 1])) < 5 / 4000**0.5


@pytest.mark.parametrize("layer", [nn.Dropout(0.25), nn.AlphaDropout(0.25), nn.Dropout2d(0.25)])
def test_dropout_keeps_scale_and_share(layer: nn.Module) -> None:
    x = torch.ones(400, 50, 2) if not isinstance(layer, nn.Dropout2d) else torch.ones(400, 50, 2, 2)
    with Keyed(_seed(5), strict=True):
        y = layer(x)
    low = y.flatten().min()
    share = float((y == low).float().mean())
    assert abs(share - 0.25) < 0.02
    if isinstance(layer, nn.Dropout2d):
        assert bool((y.flatten(2).std(-1) == 0).all())
    if not isinstance(layer, nn.AlphaDropout):
        assert float(y.max()) == pytest.approx(1 / 0.75)
    else:
        # Self-normalising: zero mean and unit variance in, the same out (Klambauer et al. 2017).
        normal = torch.randn(400, 100, generator=torch.Generator().manual_seed(0))
        with Keyed(_seed(5), strict=True):
            z = layer(normal)
        assert abs(float(z.mean())) < 0.02
        assert abs(float(z.var()) - 1.0) < 0.05


def test_evaluation_mode_drops_nothing() -> None:
    x = torch.ones(3, 4)
    with Keyed(_seed(5), strict=True) as mode:
        assert torch.equal(nn.Dropout(0.5).eval()(x), x)
    assert mode.calls == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(5, 7, 2, bidirectional=True, batch_first=True),
        lambda: nn.GRU(5, 7, 2, batch_first=True),
        lambda: nn.GRU(5, 7, bias=False, bidirectional=True),
        lambda: nn.RNN(5, 7),
        lambda: nn.RNN(5, 7, nonlinearity="relu"),
    ],
)
def test_plain_recurrent_layers_equal_pytorchs(make: Any) -> None:
    layer = seeded(make)
    x = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    wanted = torch.utils._pytree.tree_leaves(layer(x))
    with Keyed(_seed(1), strict=True):
        got = torch.utils._pytree.tree_leaves(layer(x))
    for a, b in zip(wanted, got, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_client_alone_has_pytorchs_kernels_where_there_is_nothing_to_key(kind: Any, monkeypatch: Any) -> None:
    """Loss, gradient and Hessian-vector product are those of the loop; with masks to draw it is the loop."""
    loops: list[str] = []
    for name, loop in list(RECURRENT.items()):
        monkeypatch.setitem(RECURRENT, name, lambda *a, n=name, f=loop: (loops.append(n), f(*a))[1])
    x = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))

    def found(layer: nn.Module, strict: bool) -> list[torch.Tensor]:
        params = list(layer.parameters())
        with Keyed(_seed(1), strict=strict):
            loss = layer(x)[0].square().sum()
        slopes = torch.autograd.grad(loss, params, create_graph=True)
        return [loss, *slopes, *torch.autograd.grad(sum(g.square().sum() for g in slopes), params)]

    layer = seeded(lambda: kind(5, 7, 2, bidirectional=True))
    native = found(layer, False)
    assert loops == []
    for a, b in zip(native, found(layer, True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert len(loops) == 1
    found(seeded(lambda: kind(5, 7, 2, dropout=0.5)), False)  # masks between its layers
    assert len(loops) == 2
    found(seeded(lambda: kind(5, 7, 2, dropout=0.5).eval()), False)
    assert len(loops) == 2


def test_attention_with_dropout_is_keyed() -> None:
    q = torch.rand(2, 3, 6, 4, generator=torch.Generator().manual_seed(0))
    attention = nn.functional.scaled_dot_product_attention
    with Keyed(_seed(1), strict=True):
        a, plain = attention(q, q, q, dropout_p=0.5, is_causal=True), attention(q, q, q, is_causal=True)
    with Keyed(_seed(1), strict=True):
        b = attention(q, q, q, dropout_p=0.5, is_causal=True)
    assert torch.equal(a, b)
    assert not torch.equal(a, plain)
    torch.testing.assert_close(plain, attention(q, q, q, is_causal=True))
    with Keyed(_seed(1), strict=True) as mode:
        mode.keep = lambda shape, p: torch.ones(shape, dtype=torch.bool)  # type: ignore[method-assign]
        kept = attention(q, q, q, dropout_p=0.5, is_causal=True)
    torch.testing.assert_close(kept, 2.0 * plain)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(3),
        lambda: torch.bernoulli(torch.full((3,), 0.5)),
        lambda: nn.MultiheadAttention(4, 2, dropout=0.1)(*[torch.ones(3, 2, 4)] * 3),
    ],
)
def test_other_randomness_is_refused_when_strict(draw: Any) -> None:
    with (
        torch.random.fork_rng(devices=[]),
        Keyed(_seed(1), strict=True),
        pytest.raises(ForeignRandomnessError, match="keyed by client"),
    ):
        draw()
