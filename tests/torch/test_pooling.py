"""Maximum pooling in native code gives what PyTorch gives, bit for bit, and so do its slopes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from atoll.algorithms import FedAvg
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining
from atoll.torch.blocks.decide import StepCost, _beside
from atoll.torch.examples.sums import gradient_of
from atoll.torch.native.image_layers import pools, replace_pools
from atoll.torch.tracing.compiler import trace
from tests.support.torch_toys import Images, broadcast_of, compare, seeded, shards_of

pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path_factory.getbasetemp() / "native"))


def _step(**settings: Any) -> Any:
    def call(x: Tensor, slope: Tensor) -> list[Tensor]:
        def value(at: Tensor) -> Tensor:
            return (nn.functional.max_pool2d(at, **settings) * slope).sum()

        return [nn.functional.max_pool2d(x, **settings), gradient_of(value, x)[0]]

    return call


# Windows apart, over one another with a stride of 2, and with gaps; each is a small library to compile.
@pytest.mark.parametrize(
    ("size", "stride"), [(2, 2), *(pytest.param(*n, marks=pytest.mark.slow) for n in ((3, 2), (2, 3)))]
)
@pytest.mark.parametrize("sides", [(4, 6), (7, 37)])
def test_values_and_slopes_are_pytorchs(size: int, stride: int, sides: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.relu(torch.randn(3, 2, *sides, generator=draw))  # with equal entries in many windows
    x[0, 0, 0, 1], x[1, 1, 2, 2] = float("nan"), float("inf")
    step = _step(kernel_size=size, stride=stride)
    slope = torch.rand(step(x, torch.ones(()))[0].shape, generator=draw)
    graph = trace(step, [x, slope])
    assert replace_pools(graph)
    graph.recompile()
    value, slopes = graph(x, slope)
    torch.testing.assert_close(value, step(x, slope)[0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(slopes, step(x, slope)[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("settings", [{"padding": 1}, {"dilation": 2}, {"ceil_mode": True}, {"stride": (2, 1)}])
def test_other_poolings_stay_with_pytorch(settings: dict[str, Any]) -> None:
    graph = trace(_step(kernel_size=2, **settings), [torch.zeros(1, 1, 7, 7), torch.ones(())])
    assert not list(pools(graph))


def test_images_whose_channel_is_innermost_stay_with_pytorch() -> None:
    x = torch.zeros(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    assert not list(pools(trace(_step(kernel_size=2), [x, torch.ones(())])))


def test_networks_train_as_the_reference_does() -> None:
    model = seeded(lambda: Images(nn.GroupNorm(2, 4)))
    training = LocalTraining(model, FedAvg(epochs=2, batch_size=5), choices={"mode": "single", "layers": True})
    assert compare(training, shards_of([10, 7], (1, 8, 8)), broadcast_of(model)) < 1e-5
    assert training._runner is not None
    programs = [p for block in training._runner._blocks.values() for p in block.programs.values()]
    names = [getattr(node.target, "__name__", "") for p in programs for node in p.graph.graph.nodes]
    assert {"normalised_pooled", "normalised_pooled_slopes"} <= set(names)


@pytest.mark.parametrize(
    ("wish", "volume", "wanted"),
    [("auto", 10, False), ("auto", 1000, True), ("always", 10, True), ("never", 1000, False)],
)
def test_native_code_beside_pytorch_is_made_where_it_pays(wish: str, volume: int, wanted: bool) -> None:
    training = SimpleNamespace(compile=wish, volume=volume)
    runner: Any = SimpleNamespace(
        training=training, network=SimpleNamespace(device=torch.device("cpu")), seconds_a_client=0.05
    )
    cost = StepCost(1e8, 1e6, True, calls=100, ahead=60, layers=3)
    made = _beside(runner, cost, 1)
    assert made == {"ahead": wanted, "layers": wanted}
    plain = _beside(runner, replace(cost, ahead=0, layers=0), 1)
    assert plain == {"ahead": False, "layers": False}
