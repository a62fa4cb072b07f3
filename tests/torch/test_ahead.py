"""A step's views in native code, beside the products and convolutions of PyTorch: the same results, and the rest needs no rows for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from atoll.algorithms import FedAvg
from atoll.labels.methods.fixmatch import FixMatchLoss
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining
from atoll.torch.native.code import make_function
from atoll.torch.tracing.compiler import trace
from atoll.torch.tracing.fuse import halves_of
from atoll.views import OwnRows, row_keys, strong, weak
from tests.support.torch_toys import broadcast_of, compare, seeded, shards_of

pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path_factory.getbasetemp() / "native"))


def _step(weights: Tensor, rows: Tensor, seed: Tensor) -> list[Tensor]:
    """A layer on two views of some rows, after what needs neither."""
    keys = row_keys(seed, torch.arange(6))
    both = torch.cat([weak("images")(rows, keys), strong("images")(rows, keys)])
    return [weights * 2.0, both.flatten(1) @ weights, rows.mean()]


def _drawn() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(80, 3, generator=draw), torch.rand(6, 1, 8, 10, generator=draw), torch.tensor([12, 34])]


def test_a_step_falls_into_views_and_the_rest() -> None:
    inputs = _drawn()
    graph = trace(_step, inputs)
    made = halves_of(graph, 1)
    assert made is not None
    ahead, rest = made
    first = ahead(*inputs[1:])
    for got, wanted in zip(rest(*inputs, *first), _step(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    kinds = [[str(node.target) for node in part.graph.nodes] for part in (ahead, rest)]
    assert any("grid_sampler" in name for name in kinds[0])
    assert not any("grid_sampler" in name or "bitwise" in name for name in kinds[1])
    assert not any("mm" in name for name in kinds[0])


def test_little_before_the_rest_stays_with_it() -> None:
    def step(weights: Tensor, rows: Tensor) -> list[Tensor]:
        return [(rows * 2.0 + 1.0) @ weights]

    assert halves_of(trace(step, [torch.ones(3, 2), torch.ones(4, 3)]), 1) is None


def test_native_code_gives_the_views() -> None:
    inputs = _drawn()
    made = halves_of(trace(_step, inputs), 1)
    assert made is not None
    native = make_function(made[0])
    assert native is not None
    for got, wanted in zip(native(inputs[1:]), made[0](*inputs[1:]), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_native_code_gives_views_that_take_values_from_other_rows() -> None:
    from atoll.views import Mixup

    def step(rows: Tensor, seed: Tensor) -> list[Tensor]:
        keys = row_keys(seed, torch.arange(6))
        return [Mixup()(strong("photos")(rows, keys), keys, OwnRows(rows))]

    inputs = [torch.rand(6, 3, 8, 10, generator=torch.Generator().manual_seed(1)), torch.tensor([5, 6])]
    graph = trace(step, inputs)
    graph.recompile()
    native = make_function(graph)
    assert native is not None
    torch.testing.assert_close(native(inputs)[0], step(*inputs)[0], rtol=0, atol=2e-6)


class Small(nn.Module):
    """A convolution, a normalisation and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2))
        self.last = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x).flatten(1))


def test_a_network_trains_as_the_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from atoll.torch.native import code as steps

    called: list[int] = []
    plain: Any = steps.NativeFunction.__call__
    monkeypatch.setattr(steps.NativeFunction, "__call__", lambda self, given: called.append(1) or plain(self, given))
    model = seeded(Small)
    loss = FixMatchLoss(weak("images"), strong("images"), 0.3, 1.0)
    training = LocalTraining(
        model, FedAvg(epochs=2, batch_size=5), loss=loss, choices={"mode": "single", "ahead": True}
    )
    assert compare(training, shards_of([10, 5], (1, 8, 8)), broadcast_of(model)) < 1e-5
    assert called
