"""Graph pass on traced programs: maximum pooling of plainly stored images in native code.

PyTorch's own takes longer than the convolutions around it, unless the channel is the innermost axis, where its group normalisation is slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from .libraries import normalising

__all__ = ["Pooling", "pool_of", "pools", "replace_pools"]

Tensor = torch.Tensor
aten: Any = torch.ops.aten


class Pooling(NamedTuple):
    """A pooling that native code can do.

    Attributes:
        node: the operation.
        size: the side of its windows.
        stride: their distance.
        values: the node of the largest entries.
        places: the node of their places; ``None`` if nobody uses them.
        slopes: the operations that lead slopes to these places.
        shape: of the largest entries.
    """

    node: Node
    size: int
    stride: int
    values: Node
    places: Node | None
    slopes: list[Node]
    shape: torch.Size


def pool_of(node: Node) -> Pooling | None:
    """Return what native code needs to know of a pooling; ``None`` if it is none, or another kind."""
    if node.target is not aten.max_pool2d_with_indices.default:
        return None
    given: Any = (*node.args[1:], *([], [0], [1], False)[len(node.args) - 2 :])
    size, stride, padding, dilation, ceil = given
    stride = stride or size
    source: Any = node.args[0]
    users: Any = node.users
    value, parts = source.meta["val"], {int(user.args[1]): user for user in users}
    slopes = [] if 1 not in parts else list(parts[1].users)
    plain = {*padding} == {0} and {*dilation} == {1} and not ceil and len({*size}) == len({*stride}) == 1
    plain = plain and value.is_contiguous() and value.dtype == torch.float32 and size[0] <= 15 and 0 in parts
    if not plain or any(at.target is not aten.max_pool2d_with_indices_backward.default for at in slopes):
        return None
    return Pooling(node, int(size[0]), int(stride[0]), parts[0], parts.get(1), slopes, parts[0].meta["val"].shape)


def pools(gm: GraphModule) -> Iterator[Pooling]:
    """Yield the poolings that native code can do."""
    for node in gm.graph.nodes:
        made = pool_of(node)
        if made is not None:
            yield made


def replace_pools(gm: GraphModule) -> bool:
    """Let native code pool, where it can; return whether it does. ``recompile`` writes the module's code."""
    replaced = False
    for pool in list(pools(gm)):
        made = _functions(pool.size, pool.stride)
        if made is None:
            return replaced
        forward, backward = made
        for reader in pool.slopes:
            reader.target, reader.args = backward, (reader.args[0], reader.args[1], pool.places)
        pool.node.target, pool.node.args, pool.node.kwargs = forward, pool.node.args[:1], {}
        replaced = True
    return replaced


@functools.cache
def _functions(size: int, stride: int) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    made = normalising(size, stride)
    if made is None:
        return None

    def pooled(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        *planes, height, width = x.shape
        shape = (*planes, (height - size) // stride + 1, (width - size) // stride + 1)
        largest, places = x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)
        made.pool(x.data_ptr(), largest.data_ptr(), places.data_ptr(), x.shape[:-2].numel(), height, width)
        return largest, places

    def unpooled(slope: Tensor, x: Tensor, places: Tensor) -> Tensor:
        slope, (height, width) = slope.contiguous(), x.shape[-2:]
        by = x.new_empty(x.shape)
        made.unpool(slope.data_ptr(), places.data_ptr(), by.data_ptr(), x.shape[:-2].numel(), height, width)
        return by

    return pooled, unpooled
