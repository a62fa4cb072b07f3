"""Layers of images in native code, as operations of a traced step: convolutions, group normalisation and maximum pooling."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from ..tracing.fuse import tidy
from .image_code import convolving, normalising

__all__ = [
    "Live",
    "Pooling",
    "convolutions",
    "count_layers",
    "norms",
    "pad_rows",
    "pool_of",
    "pools",
    "replace_convolutions",
    "replace_layers",
    "replace_norms",
    "replace_pools",
]

# How many rows of a mini-batch are real: the others only pad it.


Tensor = torch.Tensor


class Live:
    """The real rows of the mini-batch that a program is about to see.

    Native layers leave out images that pad, and return zeros for them: the loss weighs these rows with zero, so that nothing depends on their values.

    Attributes:
        width: rows of the mini-batch, padding included.
        rows: real ones; they come first.
    """

    def __init__(self) -> None:
        self.width = -1
        self.rows = -1

    def of(self, count: int) -> int:
        """Return how many of some images are real: all of them, unless there is one for each row."""
        return self.rows if count == self.width else count


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """Fill the rows from a number on with zeros, in place, and return the tensor."""
    if rows < len(tensor):
        tensor[rows:].zero_()
    return tensor


# Graph pass on traced programs: maximum pooling of plainly stored images in native code.
#
# PyTorch's own takes longer than the convolutions around it, unless the channel is the innermost axis, where its group normalisation is slow.


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

    def pool_images(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        *planes, height, width = x.shape
        shape = (*planes, (height - size) // stride + 1, (width - size) // stride + 1)
        largest, places = x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)
        made.pool(x.data_ptr(), largest.data_ptr(), places.data_ptr(), x.shape[:-2].numel(), height, width)
        return largest, places

    def unpool_slope(slope: Tensor, x: Tensor, places: Tensor) -> Tensor:
        slope, (height, width) = slope.contiguous(), x.shape[-2:]
        by = x.new_empty(x.shape)
        made.unpool(slope.data_ptr(), places.data_ptr(), by.data_ptr(), x.shape[:-2].numel(), height, width)
        return by

    return pool_images, unpool_slope


# Graph pass on traced programs: group normalisation, and the ReLU, sum and pooling after it, as one operation of native code each way.
#
# normalise -> ReLU                   y = max(0, (x - m) r w + b)
# normalise -> + other -> ReLU        the end of a residual block
# normalise -> ReLU -> pooling        the plane between them never leaves the cache


_getitem: Any = operator.getitem
_BACKWARD = aten.native_group_norm_backward.default


class _NormShape(NamedTuple):
    images: int
    channels: int
    plane: int
    groups: int
    relu: int
    height: int
    width: int


class _Chain(NamedTuple):
    """A normalisation and what one operation takes over after it.

    Attributes:
        norm: the normalisation.
        parts: its results in use, by number.
        last: the operation whose value is the result.
        other: what is added before the ReLU.
        relu: the ReLU.
        pool: the pooling after it.
    """

    norm: Any
    parts: dict[int, Node]
    last: Node
    other: Any = None
    relu: Node | None = None
    pool: Pooling | None = None


def norms(gm: GraphModule) -> Iterator[_Chain]:
    """Yield the group normalisations that native code can do, with what follows them."""
    for node in gm.graph.nodes:
        if node.target is aten.native_group_norm.default and _plain(node.args[0]):
            parts = {int(user.args[1]): user for user in node.users}
            slopes = [user for i in (1, 2) if i in parts for user in parts[i].users]
            if 0 in parts and _plain(parts[0]) and all(user.target is _BACKWARD for user in slopes):
                yield _chain(node, parts)


def replace_norms(gm: GraphModule, live: Live) -> bool:
    """Let native code normalise, where it can; return whether it does. ``recompile`` writes the module's code."""
    replaced = False
    for chain in norms(gm):  # one by one: what a chain adds may be an earlier one's result
        made = normalising(*(() if chain.pool is None else (chain.pool.size, chain.pool.stride)))
        if made is None:
            return replaced
        _replace(gm, chain, made, live)
        replaced = True
    return replaced


def _chain(norm: Node, parts: dict[int, Node]) -> _Chain:
    out, other = parts[0], None
    after: Any = _only(out)
    if after is not None and after.target is aten.add.Tensor and not after.kwargs and _plain(after):
        others = [given for given in after.args if given is not out]
        if len(others) == 1 and _plain(others[0]) and others[0].meta["val"].shape == out.meta["val"].shape:
            other, after = others[0], _only(after)
    if after is None or after.target is not aten.relu.default or not _plain(after):
        return _Chain(norm, parts, out)
    pool = None if other is not None else _pool_after(after)
    return _Chain(norm, parts, after if pool is None else pool.node, other, after, pool)


def _pool_after(relu: Node) -> Pooling | None:
    """Return the pooling that alone uses a ReLU, but for the slopes of both."""
    made = next((found for user in relu.users if (found := pool_of(user)) is not None), None)
    if made is None:
        return None
    for user in set(relu.users) - {made.node, *made.slopes}:
        below = user.target is aten.threshold_backward.default and user.args[1] is relu and user.args[2] == 0
        if not below or user.args[0] not in made.slopes or not _into_norm(user):
            return None
    return made if all((after := _only(slope)) is not None and after.args[1] is relu for slope in made.slopes) else None


def _into_norm(node: Node) -> bool:
    """Tell whether the slopes below a ReLU go into those of a normalisation alone."""
    after = _only(node)
    return after is not None and after.target is _BACKWARD and after.args[0] is node


def _replace(gm: GraphModule, chain: _Chain, made: ctypes.CDLL, live: Live) -> None:
    norm, value = chain.norm, chain.norm.args[0].meta["val"]
    images, channels, plane, groups, eps = norm.args[3:8]
    call: Callable[..., tuple[Tensor, ...]]
    height, width = (*value.shape[2:], 1, 1)[:2]
    shape = _NormShape(images, channels, plane, groups, int(chain.relu is not None), height, width)
    results: dict[int, Node] = {}
    with gm.graph.inserting_before(chain.last):
        if chain.pool is None:
            call = _normalise(made, shape, eps, live)
            fused = gm.graph.call_function(call, (*norm.args[:3], chain.other))
        else:
            call = _make_pooled(made, shape, eps, live, tuple(chain.pool.shape))
            fused = gm.graph.call_function(call, norm.args[:3])
        for number in range(3 if chain.pool is None else 4):
            results[number] = gm.graph.call_function(_getitem, (fused, number))
    for number in (1, 2):
        if number in chain.parts:
            results[number].meta = chain.parts[number].meta
            chain.parts[number].replace_all_uses_with(results[number])
    _replace_slopes(results, chain, made, shape, live)
    last = chain.last if chain.pool is None else chain.pool.values
    results[0].meta = last.meta
    last.replace_all_uses_with(results[0])


def _replace_slopes(results: dict[int, Node], chain: _Chain, made: ctypes.CDLL, shape: _NormShape, live: Live) -> None:
    """Let the slopes of the normalisation take over those of what follows it."""
    for user in list(results[1].users):
        given: Any = user.args
        slope, x, mean, rate, weight, *_, wanted = given
        below = chain.relu is not None and slope.target is aten.threshold_backward.default
        below = below and slope.args[1] is chain.relu and slope.args[2] == 0 and len(slope.users) == 1
        if below and chain.pool is not None and slope.args[0] in chain.pool.slopes:
            user.args = (slope.args[0].args[0], results[0], results[3], x, weight, mean, rate)
            user.target = _pooled_slopes(made, shape, live, wanted)
            continue
        whole = below and chain.pool is None
        user.args = (slope.args[0] if whole else slope, results[0] if whole else None, x, weight, mean, rate)
        user.target = _norm_slopes(made, shape, live, wanted)


def _only(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _plain(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (
        isinstance(value, Tensor)
        and value.dtype == torch.float32
        and value.device.type in ("cpu", "meta")
        and value.dim() > 2
        and value.numel() > 0
        and value.is_contiguous()
    )


def _normalise(
    made: ctypes.CDLL, shape: _NormShape, eps: float, live: Live
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    numbers = (ctypes.c_int64 * len(shape))(*shape)

    def normalise_batch(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, other: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, other = x.contiguous(), None if other is None else other.contiguous()
        y, kept = torch.empty_like(x), x.new_empty(2, shape.images, shape.groups)
        numbers[0] = rows = live.of(shape.images)
        to = [_at(t) for t in (x, weight, bias, other, y, kept[0], kept[1])]
        made.normalise(numbers, eps, *to)
        return pad_rows(y, rows), kept[0], kept[1]

    return normalise_batch


def _norm_slopes(
    made: ctypes.CDLL, shape: _NormShape, live: Live, wanted: list[bool]
) -> Callable[..., tuple[Tensor | None, Tensor | None, Tensor | None]]:
    numbers = (ctypes.c_int64 * len(shape))(*shape)

    def normalised_slopes(
        slope: Tensor, y: Tensor | None, x: Tensor, weight: Tensor | None, mean: Tensor, rate: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        slope, x = slope.contiguous(), x.contiguous()
        numbers[0] = rows = live.of(shape.images)
        by = _room(shape, x, rows, wanted)
        made.normalise_slopes(numbers, *(_at(t) for t in (slope, y, x, weight, mean, rate, *by)))
        return by

    return normalised_slopes


def _make_pooled(
    made: ctypes.CDLL, shape: _NormShape, eps: float, live: Live, pooled: tuple[int, ...]
) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    numbers = (ctypes.c_int64 * len(shape))(*shape)

    def normalised_pooled(
        x: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = x.contiguous()
        y, places = x.new_empty(pooled), x.new_empty(pooled, dtype=torch.uint8)
        kept = x.new_empty(2, shape.images, shape.groups)
        numbers[0] = rows = live.of(shape.images)
        made.normalise_pool(numbers, eps, *(_at(t) for t in (x, weight, bias, y, places, kept[0], kept[1])))
        return pad_rows(y, rows), kept[0], kept[1], places

    return normalised_pooled


def _pooled_slopes(
    made: ctypes.CDLL, shape: _NormShape, live: Live, wanted: list[bool]
) -> Callable[..., tuple[Tensor | None, Tensor | None, Tensor | None]]:
    numbers = (ctypes.c_int64 * len(shape))(*shape)

    def normalised_pooled_slopes(
        slope: Tensor, y: Tensor, places: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rate: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        slope, x = slope.contiguous(), x.contiguous()
        numbers[0] = rows = live.of(shape.images)
        by = _room(shape, x, rows, wanted)
        made.normalise_pool_slopes(numbers, *(_at(t) for t in (slope, y, places, x, weight, mean, rate, *by)))
        return by

    return normalised_pooled_slopes


def _room(
    shape: _NormShape, x: Tensor, rows: int, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return memory for the slopes by input, weight and bias."""
    by_input = pad_rows(torch.empty_like(x), rows) if wanted[0] else None
    sums = [x.new_zeros(shape.channels) if one else None for one in wanted[1:]]
    return by_input, sums[0], sums[1]


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


# Graph pass on traced programs: small convolutions in native code.
#
# PyTorch's library is made for large ones. With few channels it takes several times as long, and between two of its calls tensors change their memory order.


# Pairs of channels; beyond, PyTorch's library is as fast. With one input channel and 48 images a convolution takes 0.17 ms where oneDNN takes 0.78, and
# the slopes of its filters 0.16 ms for 1.4; with 16 to 64 channels both are about equally fast.
_CHANNELS = 64 * 64
_PLANES = 1 << 18  # bytes of an image that stay in a core's cache


class _ConvolutionShape(NamedTuple):
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


def convolutions(gm: GraphModule) -> Iterator[tuple[Node, _ConvolutionShape | None]]:
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
            node.target, node.args = _convolve(made, shape, live), node.args[:3]
        else:
            wanted: Any = node.args[-1]
            node.target, node.args = _convolution_slopes(made, shape, live, *wanted), node.args[:3]
    return True


def _shape(x: Tensor | None, weight: Tensor | None, made: Tensor | None, how: list[Any]) -> _ConvolutionShape | None:
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
    shape = _ConvolutionShape(
        images, inputs, height, width, outputs, rows, columns, stride[0], padding[0], made.shape[2], made.shape[3]
    )
    return None if large else shape


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _convolve(made: ctypes.CDLL, shape: _ConvolutionShape, live: Live) -> Callable[..., Tensor]:
    numbers, sizes = (ctypes.c_int64 * len(shape))(*shape), (shape.images, shape.outputs, shape.high, shape.wide)

    def convolve_images(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        y = x.new_empty(sizes)
        numbers[0] = rows = live.of(shape.images)
        made.convolve(numbers, x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr())
        return pad_rows(y, rows)

    return convolve_images


def _convolution_slopes(
    made: ctypes.CDLL, shape: _ConvolutionShape, live: Live, by_input: bool, by_weight: bool, by_bias: bool
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
            pad_rows(inputs, rows)
        return by[0], by[1], by[2]

    return convolved_slopes


# All native layers of images at once.


def count_layers(gm: GraphModule) -> int:
    """Return how many operations native code can take over; if it leaves a convolution to PyTorch, then pooling alone."""
    found = list(convolutions(gm))
    pooled = sum(1 for _ in pools(gm))
    if not all(shape is not None for _, shape in found):
        return pooled
    return pooled + len(found) + sum(1 for _ in norms(gm))


def replace_layers(gm: GraphModule) -> Live | None:
    """Let native code take what it can of layers of images; ``recompile`` writes the module's code.

    Returns:
        What tells these layers how many rows are real; ``None`` if there are none.
    """
    live = Live()
    whole = all(shape is not None for _, shape in convolutions(gm))
    replaced = [replace_norms(gm, live), replace_pools(gm), whole and replace_convolutions(gm, live)]
    tidy(gm)
    return live if any(replaced) else None
