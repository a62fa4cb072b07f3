"""A recording gives what the function gives, and refuses what depends on values."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from atoll.core.algebra import tree as T
from atoll.torch import buffers
from atoll.torch.examples.sums import gradient_of
from atoll.torch.tracing import compiler
from atoll.torch.tracing.compiler import Unrecordable, record
from tests.support.torch_toys import seeded

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FUNCTIONS: dict[str, Any] = {
    "views": lambda x, y: [x.t().reshape(-1)[1:5] + y.sum(), x[:, None].expand(3, 2, 4) * 2],
    "several-results": lambda x, y: [*x.max(1), *torch.var_mean(y, 0)],
    "a-tensor-from-outside": lambda x, y: [x * torch.tensor(3.0) + torch.arange(4)],
    "in-place": lambda x, y: [x.clone().add_(1.0).mul_(2.0), y * 1],
    "gradient": lambda x, y: [
        gradient_of(lambda w: torch.nn.functional.cross_entropy(y @ w.t(), torch.tensor([0, 1])), x)[0]
    ],
    "gradient-of-a-gradient": lambda x, y: [
        gradient_of(lambda w: gradient_of(lambda v: (v**3 * y.sum()).sum(), w)[0].sin().sum(), x)[0]
    ],
    "clients": lambda x, y: [torch.func.vmap(lambda r: gradient_of(lambda w: (w * r).exp().sum(), r)[0])(x)],
    "lists": lambda x, y: [torch.cat([x, x * 2]).sum(0), torch.stack([y, y]).mean((0, 1))],
    "functions-of-trees": lambda x, y: [T.where(x > 0, T.sqrt(x * x), T.zeros_like(x)), T.stack([y, T.sign(y)])],
    "entries-by-their-numbers": lambda x, y: [x.reshape(-1)[np.array([0, 5, 2])], y[:, torch.tensor([3, 1])]],
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_a_recording_repeats_the_function(name: str) -> None:
    fn = FUNCTIONS[name]
    x, y = _drawn(3, 4), _drawn(2, 4, seed=1)
    graph = record(fn, [torch.empty(3, 4), torch.empty(2, 4)])
    graph.recompile()
    for got, wanted in zip(graph(x.clone(), y.clone()), fn(x.clone(), y.clone()), strict=True):
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()


def test_gradients_are_those_of_torch_func() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    params = {name: value.detach() for name, value in model.named_parameters()}
    params["unused"] = torch.ones(2)
    x = _drawn(6, 4)

    def loss(p: Any) -> Tensor:
        return torch.func.functional_call(model, {k: v for k, v in p.items() if k != "unused"}, x).square().mean()

    got, value = gradient_of(loss, params)
    wanted, same = torch.func.grad_and_value(loss)(params)
    assert torch.equal(value, same)
    assert all(torch.equal(got[name], wanted[name]) for name in params)
    assert not value.requires_grad
    assert not any(leaf.requires_grad for leaf in got.values())


def test_a_table_takes_operations_apart() -> None:
    graph = record(
        lambda x: [torch.nn.functional.silu(x)], [torch.empty(3)], {aten.silu.default: lambda x: x * x.sigmoid()}
    )
    assert aten.silu.default not in {node.target for node in graph.graph.nodes}
    graph.recompile()
    x = _drawn(3)
    torch.testing.assert_close(graph(x)[0], torch.nn.functional.silu(x))


REFUSED: dict[str, Any] = {
    "item": lambda x: [x * x.sum().item()],
    "condition": lambda x: [x if x.sum() > 0 else -x],
    "shape-of-values": lambda x: [x.nonzero() * 1.0],
    "entries-by-a-mask": lambda x: [x[x > 0]],
    "draw": lambda x: [torch.rand(3) * x],
    "no-tensor": lambda x: [3.0],
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_depends_on_values_is_refused(name: str) -> None:
    with pytest.raises(Unrecordable, match=r"depends on values|a result of type"):
        record(REFUSED[name], [torch.empty(3)])


@pytest.mark.parametrize("fn", [lambda x: [torch.from_numpy(x.numpy())], lambda x: [torch.tensor(x.tolist())]])
def test_values_cannot_be_looked_at(fn: Any) -> None:
    with pytest.raises(RuntimeError, match="not supported for tensor subclasses"):
        record(fn, [torch.empty(3)])


def test_a_gradient_that_is_not_differentiated_again_takes_pytorchs_own_operation() -> None:
    def step(again: bool) -> Any:
        return lambda w: [gradient_of(lambda at: nn.functional.group_norm(x * at, 2).square().sum(), w, again=again)[0]]

    x, w = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)), torch.full((4, 1), 2.0)
    graphs = [record(step(again), [w]) for again in (False, True)]
    names = [[str(node.target) for node in graph.graph.nodes] for graph in graphs]
    assert ["native_group_norm_backward" in "".join(some) for some in names] == [True, False]
    made = []
    for graph in graphs:
        graph.recompile()
        made += graph(w)
    torch.testing.assert_close(*made)


SMALL_JOB = """
import sys
import numpy as np
import torch
from atoll.learn.algorithms import FedAvg
from atoll.torch import LocalTraining, params_of
model = torch.nn.Linear(3, 2)
rng = np.random.default_rng(0)
shards = [(rng.normal(size=(10, 3)).astype(np.float32), rng.integers(0, 2, 10)) for _ in range(4)]
training = LocalTraining(model, FedAvg(batch_size=5), volume=20)
training.many_sum(shards, {"params": params_of(model), "lr": 0.1}, None, np.arange(4, dtype=np.uint64))
print(training.choices["mode"], "torch._dynamo" in sys.modules, "torch._inductor" in sys.modules)
"""


@pytest.mark.slow
def test_a_small_job_does_not_load_pytorchs_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL_JOB], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["vector", "False", "False"]


def test_no_mode_of_ours_loads_pytorchs_compiler() -> None:
    """PyTorch wraps what a mode does with operations so that the first one imports ``torch._dynamo``, unless the mode says that it needs no guard."""
    ours = [kind for kind in TorchDispatchMode.__subclasses__() if kind.__module__.startswith("atoll.")]
    assert {kind.__module__ for kind in ours} == {buffers.__name__, compiler.__name__}
    assert not any(kind._should_skip_dynamo() for kind in ours)
