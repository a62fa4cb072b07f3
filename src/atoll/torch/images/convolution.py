"""Graph pass on traced programs: small convolutions in native code.

PyTorch's library is made for large ones. With few channels it takes several times as long, and between two of its calls tensors change their memory order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from .libraries import convolving
from .live import Live, padded

__all__ = ["convolutions", "replace_convolutions"]

Tensor = torch.Tensor
aten: Any = torch.ops.aten
_CHANNELS = 64 * 64  # pairs of channels; beyond, PyTorch's library is as fast
_PLANES = 1 << 18  # bytes of an image that stay in a core's cache


class _Shape(NamedTuple):
    images: int
    inputs: int
    height: int
    width: int
    outputs: int
    rows: int
    columns: int
    stride: int
    padding: int
    high: int
    wide: int


def convolutions(gm: GraphModule) -> Iterator[tuple[Node, _Shape | None]]:
    """Yield the convolutions and their slopes; with ``None`` those that native code does not have or that are large."""
    for node in gm.graph.nodes:
        if node.target is aten.convolution.default:
            x, weight, _, *how = node.args
            yield node, _shape(_value(x), _value(weight), _value(node), how[:6])
        elif node.target is aten.convolution_backward.default:
            slope, x, weight, _, *how = node.args
            yield node, _shape(_value(x), _value(weight), _value(slope), how[:6])


def replace_convolutions(gm: GraphModule, live: Live) -> bool:
    """Let native code convolve, where it can; return whether it does. ``recompile`` writes the module's code."""
    found = [(node, shape) for node, shape in convolutions(gm) if shape is not None]
    made = convolving() if found else None
    if made is None:
        return False
    for node, shape in found:
        if node.target is aten.convolution.default:
            node.target, node.args = _values(made, shape, live), node.args[:3]
        else:
            wanted: Any = node.args[-1]
            node.target, node.args = _slopes(made, shape, live, *wanted), node.args[:3]
    return True


def _shape(x: Tensor | None, weight: Tensor | None, made: Tensor | None, how: list[Any]) -> _Shape | None:
    if x is None or weight is None or made is None or not how:
        return None
    stride, padding, dilation, transposed, _, groups = how
    plain = all(
        t.dtype == torch.float32 and t.device.type in ("cpu", "meta") and t.is_contiguous() and t.numel()
        for t in (x, weight, made)
    )
    square = len({*stride}) == len({*padding}) == 1 and {*dilation} == {1} and not transposed and groups == 1
    if not plain or not square or x.dim() != 4 or padding[0] >= min(weight.shape[2:]):
        return None
    (images, inputs, height, width), (outputs, _, rows, columns) = x.shape, weight.shape
    large = inputs * outputs > _CHANNELS or inputs * (height + 2) * (width + 2) * x.element_size() > _PLANES
    shape = _Shape(
        images, inputs, height, width, outputs, rows, columns, stride[0], padding[0], made.shape[2], made.shape[3]
    )
    return None if large else shape


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _values(made: ctypes.CDLL, shape: _Shape, live: Live) -> Callable[..., Tensor]:
    numbers, sizes = (ctypes.c_int64 * len(shape))(*shape), (shape.images, shape.outputs, shape.high, shape.wide)

    def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        y = x.new_empty(sizes)
        numbers[0] = rows = live.of(shape.images)
        made.convolve(numbers, x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr())
        return padded(y, rows)

    return convolved


def _slopes(
    made: ctypes.CDLL, shape: _Shape, live: Live, by_input: bool, by_weight: bool, by_bias: bool
) -> Callable[..., tuple[Tensor | None, Tensor | None, Tensor | None]]:
    numbers = (ctypes.c_int64 * len(shape))(*shape)

    def convolved_slopes(
        slope: Tensor, x: Tensor, weight: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        slope, x, weight = slope.contiguous(), x.contiguous(), weight.contiguous()
        numbers[0] = rows = live.of(shape.images)
        by: list[Tensor | None] = [None, None, None]
        if by_weight or by_bias:
            weights, bias = torch.empty_like(weight), weight.new_empty(shape.outputs) if by_bias else None
            to = None if bias is None else bias.data_ptr()
            made.convolve_weights(numbers, slope.data_ptr(), x.data_ptr(), weights.data_ptr(), to)
            by[1:] = [weights, bias]
        if by_input:
            by[0] = inputs = torch.empty_like(x)
            made.convolve_inputs(numbers, slope.data_ptr(), weight.data_ptr(), inputs.data_ptr())
            padded(inputs, rows)
        return by[0], by[1], by[2]

    return convolved_slopes
