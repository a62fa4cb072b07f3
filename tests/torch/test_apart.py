"""Operations that native code takes apart itself are those of PyTorch, and are traced without loading PyTorch's compiler or sympy."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atoll.torch.examples.sums import gradient_of
from atoll.torch.native.operations import APART, simple_operations
from atoll.torch.tracing.compiler import record
from tests.support.torch_toys import seeded

Tensor = torch.Tensor
Drawn = Callable[..., Tensor]
aten: Any = torch.ops.aten


def _soft(op: Any) -> Any:
    return lambda x, more, axis: [(op, (x, axis, False), {})]


def _soft_backward(forward: Any, op: Any) -> Any:
    return lambda x, more, axis: [(op, (more(x), forward(x, axis, False), axis, x.dtype), {})]


def _normal(x: Tensor, more: Any, axis: int) -> list[Any]:
    shape = list(x.shape[axis:])
    weights = [None, more(x.new_empty(shape))]
    return [(aten.native_layer_norm.default, (x, shape, w, b, 1e-5), {}) for w in weights for b in weights]


def _normal_backward(x: Tensor, more: Any, axis: int) -> list[Any]:
    cases = []
    for _, (_, shape, w, b, eps), _ in _normal(x, more, axis):
        _, mean, rate = aten.native_layer_norm(x, shape, w, b, eps)
        cases += [
            (aten.native_layer_norm_backward.default, (more(x), x, shape, mean, rate, w, b, mask), {})
            for mask in ([True, w is not None, b is not None], [False, w is not None, False])
        ]
    return cases


def _spread(x: Tensor, more: Any, axis: int) -> list[Any]:
    some = [None, [axis], [axis - x.dim()]]
    return [
        (aten.var_mean.correction, (x, dim), {"correction": c, "keepdim": keep})
        for dim in some
        for c in (None, 0, 0.5)
        for keep in (False, True)
        if (x.numel() if dim is None else x.shape[axis]) > 1
    ]


def _rows(x: Tensor, more: Any, axis: int) -> list[Any]:
    numbers = (more(x)[..., 0].abs() * 9).to(torch.int64) % 7
    return [
        (aten.embedding_dense_backward.default, (x, some, 7, pads, often), {})
        for some in (numbers, numbers.to(torch.int32))
        for pads in (-1, 2)
        for often in (False, True)
    ]


CASES: dict[Any, Any] = {
    aten._softmax.default: _soft(aten._softmax.default),
    aten._log_softmax.default: _soft(aten._log_softmax.default),
    aten._softmax_backward_data.default: _soft_backward(aten._softmax, aten._softmax_backward_data.default),
    aten._log_softmax_backward_data.default: _soft_backward(aten._log_softmax, aten._log_softmax_backward_data.default),
    aten.native_layer_norm.default: _normal,
    aten.native_layer_norm_backward.default: _normal_backward,
    aten.var_mean.correction: _spread,
    aten.gelu.default: lambda x, more, axis: [(aten.gelu.default, (x,), {"approximate": a}) for a in ("none", "tanh")],
    aten.gelu_backward.default: lambda x, more, axis: [
        (aten.gelu_backward.default, (more(x), x), {"approximate": a}) for a in ("none", "tanh")
    ],
    aten.embedding_dense_backward.default: _rows,
}


def _terms_of_layer_norm(x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    _, mean, rate = aten.native_layer_norm(x, shape, None, None, eps)
    around = (x.abs() + mean.abs()) * (1.0 if weight is None else weight.abs())
    spread = (x * x).mean(list(range(-len(shape), 0)), keepdim=True)
    return rate * around + (0.0 if bias is None else bias.abs()), x.abs(), rate + rate**3 * spread


def _terms_of_layer_norm_backward(
    grad: Tensor, x: Tensor, shape: list[int], mean: Tensor, rate: Tensor, weight: Any, bias: Any, mask: Any
) -> Any:
    """PyTorch adds up ``r g + b x + c`` with ``b`` of the order of ``r^3 sum(g (x - m)) / n`` and ``c = -b m - r sum(g) / n``, of which nearly nothing is left for a row of one."""
    del bias, mask
    axes, others = list(range(-len(shape), 0)), list(range(x.dim() - len(shape)))
    given = (grad if weight is None else grad * weight).abs()
    far = x.abs() + mean.abs()
    row = rate * (given + given.mean(axes, keepdim=True)) + rate**3 * far * (given * far).mean(axes, keepdim=True)
    columns = grad.abs() * far * rate, grad.abs()
    return row, *(part.sum(others) if others else part for part in columns)


def _terms_of_softmax_backward(grad: Tensor, out: Tensor, axis: int, dtype: Any) -> Any:
    return grad.abs() + grad.abs().sum(axis, keepdim=True)


def _terms_of_variance(x: Tensor, dim: Any, correction: Any = None, keepdim: bool = False) -> Any:
    return (x * x).sum(), x.abs().sum()


TERMS: dict[Any, Any] = {
    aten._softmax.default: lambda x, axis, half: 1.0 + x.abs(),
    aten._log_softmax.default: lambda x, axis, half: 1.0 + x.abs().amax(axis, keepdim=True),
    aten._softmax_backward_data.default: _terms_of_softmax_backward,
    aten._log_softmax_backward_data.default: _terms_of_softmax_backward,
    aten.native_layer_norm.default: _terms_of_layer_norm,
    aten.native_layer_norm_backward.default: _terms_of_layer_norm_backward,
    aten.var_mean.correction: _terms_of_variance,
    aten.gelu.default: lambda x, approximate: x.abs(),
    aten.gelu_backward.default: lambda grad, x, approximate: grad.abs() * (1.0 + x.abs() ** 3),
    aten.embedding_dense_backward.default: lambda grad, *_: grad.abs().sum(),
}
"""Operation -> for each of its results, the sizes of the terms that it is a sum of, in its formula or in PyTorch's: what cancels leaves an error of their order."""


def _same(op: Any, args: Any, kwargs: Any, *, terms: Any = None, **within: float) -> None:
    made, wanted = simple_operations()[op](*args, **kwargs), op(*args, **kwargs)
    sizes = (None, None, None) if terms is None else terms(*args, **kwargs)
    made, wanted, sizes = (x if isinstance(x, tuple) else (x,) for x in (made, wanted, sizes))
    for ours, theirs, size in zip(made, wanted, sizes, strict=terms is not None):
        assert (ours is None) == (theirs is None)
        if ours is not None and size is None:
            torch.testing.assert_close(ours, theirs, equal_nan=True, **within)
        elif ours is not None:
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            assert ((ours - theirs).abs() <= within["rtol"] * torch.as_tensor(size)).all(), (ours, theirs, size)


def test_every_operation_has_cases() -> None:
    assert set(CASES) == set(TERMS) == set(APART)


@pytest.mark.parametrize("op", list(CASES), ids=str)
@settings(max_examples=12)
@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), axis=st.integers(0, 3), seed=st.integers(0, 99))
def test_an_operation_taken_apart_is_that_of_pytorch(op: Any, shape: list[int], axis: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** (seed % 4 - 1)

    def more(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64) * scale

    for case in CASES[op](more(torch.empty(shape)), more, axis % len(shape)):
        _same(*case, terms=TERMS[op], rtol=1e-12)


def test_infinities_and_numbers_that_overflow_are_treated_as_by_pytorch() -> None:
    x = torch.tensor([[1e30, -torch.inf, 3.0], [-torch.inf, -torch.inf, 0.0], [torch.inf, 1.0, 2.0], [1e4, -1e4, 0.0]])
    for op in (aten._softmax.default, aten._log_softmax.default):
        _same(op, (x, 1, False), {})
    for approximate in ("none", "tanh"):
        _same(aten.gelu.default, (x[3],), {"approximate": approximate})


def test_lower_precision_and_empty_tensors_are_left_to_pytorchs_decompositions() -> None:
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    for few in (x.to(torch.bfloat16), x[:0]):
        for op, args in ((aten.gelu.default, (few,)), (aten._softmax.default, (few, 1, False))):
            assert APART[op](*args) is NotImplemented
            _same(op, args, {}, rtol=2e-2, atol=2e-2)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(9, 8, padding_idx=1), nn.Linear(8, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.embed(x)).mean(1))


def test_a_step_of_a_transformer_is_traced_without_loading_sympy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(_Model)
    params = {name: value.detach() for name, value in model.named_parameters()}
    table = simple_operations()
    load = builtins.__import__

    def guarded(name: str, *rest: Any, **kwargs: Any) -> Any:
        if name.startswith(("sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes")):
            raise AssertionError(f"{name} takes a second to load")
        return load(name, *rest, **kwargs)

    def step(x: Tensor, y: Tensor, *leaves: Tensor) -> list[Tensor]:
        def loss(at: Any) -> Tensor:
            logs = torch.func.functional_call(model, at, (x,)).log_softmax(1)
            return -logs.gather(1, y[:, None]).mean()

        slopes, _ = gradient_of(loss, dict(zip(params, leaves, strict=True)))
        return list(slopes.values())

    x, y = torch.arange(12).reshape(2, 6) % 9, torch.tensor([3, 0])
    monkeypatch.setattr(builtins, "__import__", guarded)
    graph = record(step, [x, y, *params.values()], table)
    monkeypatch.undo()
    graph.recompile()
    for got, wanted in zip(graph(x, y, *params.values()), step(x, y, *params.values()), strict=True):
        torch.testing.assert_close(got, wanted)


NATIVE_JOB = """
import sys
import numpy as np
import torch
from atoll.learn.algorithms import FedAvg
from atoll.torch import LocalTraining, params_of
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Linear(4, 2))
rng = np.random.default_rng(0)
shards = [(rng.normal(size=(10, 3)).astype(np.float32), rng.integers(0, 2, 10)) for _ in range(4)]
training = LocalTraining(model, FedAvg(batch_size=5), volume=10**7)
training.many_sum(shards, {"params": params_of(model), "lr": 0.1}, None, np.arange(4, dtype=np.uint64))
print("steps" in training.choices["code"], "torch._dynamo" in sys.modules, "sympy" in sys.modules)
"""


@pytest.mark.slow
def test_native_code_is_made_without_loading_pytorchs_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", NATIVE_JOB], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]
