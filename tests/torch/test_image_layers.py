"""Convolutions, group normalisation and what follows it in native code give what PyTorch gives, and so do their slopes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from atoll.algorithms import FedAvg
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining
from atoll.torch.examples.sums import gradient_of
from atoll.torch.native.image_layers import convolutions, count_layers, replace_layers
from atoll.torch.tracing.compiler import trace
from tests.support.torch_toys import Images, broadcast_of, compare, seeded, shards_of

pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path_factory.getbasetemp() / "native"))


def _drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw) for shape in shapes]


def _names(graph: Any) -> set[str]:
    return {getattr(node.target, "__name__", str(node.target)) for node in graph.graph.nodes}


def _check(layer: Any, inputs: list[Tensor], rtol: float = 1e-5, *, rows: int | None = None) -> set[str]:
    """Compare the value of a layer and all its slopes with PyTorch's in double precision; return the names of the operations that ran."""

    def step(*given: Tensor) -> list[Tensor]:
        out = layer(*given[:-1])

        def along(at: list[Tensor]) -> Tensor:
            return (layer(*at) * given[-1]).sum()

        return [out, *gradient_of(along, list(given[:-1]))[0]]

    slope = _drawn(tuple(layer(*inputs).shape), seed=1)[0]
    if rows is not None:
        slope[rows:] = 0.0
    graph = trace(step, [*inputs, slope])
    live = replace_layers(graph)
    assert live is not None
    graph.recompile()
    if rows is not None:
        live.width, live.rows = len(inputs[0]), rows
    got = graph(*inputs, slope)
    want = step(*(given.double() for given in (*inputs, slope)))
    if rows is not None:
        assert not got[0][rows:].any()
        got[0][rows:] = want[0][rows:]
    for ours, exact in zip(got, want, strict=True):
        scale = float(exact.abs().max()) + 1e-12
        torch.testing.assert_close(ours.double() / scale, exact / scale, rtol=0, atol=rtol)
    return _names(graph)


# side of the filter, stride, padding: the usual ones, windows apart, filters larger than the image's rest, padding that reaches the filter
_WINDOWS = [(3, 1, 1), (3, 2, 1), (1, 2, 0), (5, 2, 2), (3, 3, 0), (2, 2, 1), (4, 1, 3), (7, 3, 3), (1, 1, 0)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("size", "stride", "padding"), _WINDOWS)
def test_convolutions_are_pytorchs(size: int, stride: int, padding: int, bias: bool) -> None:
    for inputs, outputs, sides in ((1, 8, (9, 7)), (3, 17, (20, 12))):
        given = _drawn((3, inputs, *sides), (outputs, inputs, size, size), (outputs,))[: 3 if bias else 2]

        def layer(x: Tensor, weight: Tensor, *more: Tensor) -> Tensor:
            return F.conv2d(x, weight, *more, stride=stride, padding=padding)

        assert {"convolve_images", "convolved_slopes"} <= _check(layer, given)


_AFTER = {
    "alone": lambda y, x: y,
    "relu": lambda y, x: torch.relu(y),
    "residual": lambda y, x: torch.relu(x + y),
    "pooled": lambda y, x: F.max_pool2d(torch.relu(y), 2),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("after", _AFTER)
def test_normalisation_and_what_follows_are_pytorchs(after: str, affine: bool) -> None:
    for (channels, groups), sides in itertools.product(((6, 3), (4, 1), (3, 3)), ((7, 5), (4, 16))):
        given = _drawn((3, channels, *sides), (channels,), (channels,))[: 3 if affine else 1]
        given[0] = given[0] + 3.0  # the mean matters

        def layer(x: Tensor, *more: Tensor, groups: int = groups) -> Tensor:
            return _AFTER[after](F.group_norm(x, groups, *more), x)

        names = _check(layer, given, 2e-5)
        forward, kind = ("normalised_pooled",) * 2 if after == "pooled" else ("normalise_batch", "normalised")
        assert {forward, f"{kind}_slopes"} <= names
        assert not {"aten.native_group_norm.default", "aten.relu.default"} & names


def _small(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.max_pool2d(torch.relu(F.group_norm(F.conv2d(x, weight, padding=1), 2, scale, shift)), 2)


def _residual(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    first = torch.relu(F.group_norm(F.conv2d(x, weight, padding=1), 2, scale, shift))
    second = F.group_norm(F.conv2d(first, weight.repeat(1, 2, 1, 1)[:, :4], padding=1), 2, scale, shift)
    return torch.relu(second + first)


@pytest.mark.parametrize("layer", [_small, _residual])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_pad_are_left_out(layer: Any, rows: int) -> None:
    _check(layer, _drawn((5, 2, 8, 8), (4, 2, 3, 3), (4,), (4,)), 2e-5, rows=rows)


def test_what_is_not_a_number_stays_so() -> None:
    x, weight, scale, shift = _drawn((3, 2, 8, 8), (4, 2, 3, 3), (4,), (4,))
    x[1, 0, 3, 3] = float("nan")
    graph = trace(lambda *given: [_small(*given)], [x, weight, scale, shift])
    assert replace_layers(graph) is not None
    graph.recompile()
    got = graph(x, weight, scale, shift)[0]
    want = _small(x, weight, scale, shift)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[[0, 2]], want[[0, 2]])


@pytest.mark.parametrize(
    "settings", [{"dilation": 2}, {"groups": 2}, {"stride": (2, 1)}, {"padding": (0, 1)}, {"padding": 3}]
)
def test_other_convolutions_stay_with_pytorch(settings: dict[str, Any]) -> None:
    x, weight = _drawn((2, 4, 9, 9), (4, 4 // settings.get("groups", 1), 3, 3))
    graph = trace(lambda *given: [F.conv2d(*given, **settings)], [x, weight])
    assert [shape for _, shape in convolutions(graph)] == [None]
    assert replace_layers(graph) is None


def test_large_convolutions_stay_with_pytorch_and_so_does_what_lies_between_them() -> None:
    def layer(x: Tensor, weight: Tensor) -> list[Tensor]:
        return [F.group_norm(F.conv2d(x, weight), 4)]

    small, large = _drawn((1, 4, 5, 5), (8, 4, 3, 3)), [torch.zeros(1, 128, 5, 5), torch.zeros(64, 128, 3, 3)]
    assert count_layers(trace(layer, small)) == 2
    assert count_layers(trace(layer, large)) == 0


def test_images_whose_channel_is_innermost_stay_with_pytorch() -> None:
    x, weight = (t.contiguous(memory_format=torch.channels_last) for t in _drawn((2, 3, 8, 8), (4, 3, 3, 3)))
    assert replace_layers(trace(lambda *given: [F.group_norm(F.conv2d(*given), 2)], [x, weight])) is None


class Chain(nn.Module):
    """A residual block, and a ReLU that writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.second, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(4, 4, affine=False)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)), inplace=True)
        return self.last(torch.relu(self.norm2(self.second(y)) + y).mean((2, 3)))


@pytest.mark.every(2)
@pytest.mark.parametrize("make", [Chain, lambda: Images(nn.GroupNorm(2, 4))], ids=["residual", "pooled"])
@pytest.mark.parametrize("widths", [(5,), (5, 8)])
def test_networks_train_as_the_reference_does(make: Any, widths: tuple[int, ...]) -> None:
    model = seeded(make)
    choices = {"mode": "single", "layers": True, "uneven": True, "widths": widths, "stretch": 1024}
    training = LocalTraining(model, FedAvg(epochs=2, batch_size=5), choices=choices)
    assert compare(training, shards_of([10, 7, 3, 1], (1, 8, 8)), broadcast_of(model)) < 2e-5
    assert training._runner is not None
    programs = [p for block in training._runner._blocks.values() for p in block.programs.values()]
    assert {"convolve_images", "convolved_slopes"} <= set().union(*(_names(p.graph) for p in programs))
