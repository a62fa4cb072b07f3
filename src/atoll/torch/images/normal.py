"""Graph pass on traced programs: group normalisation, and the ReLU, sum and pooling after it, as one operation of native code each way.

normalise -> ReLU                   y = max(0, (x - m) r w + b)
normalise -> + other -> ReLU        the end of a residual block
normalise -> ReLU -> pooling        the plane between them never leaves the cache
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from .libraries import normalising
from .live import Live, padded
from .pooling import Pooling, pool_of

__all__ = ["norms", "replace_norms"]

Tensor = torch.Tensor
aten: Any = torch.ops.aten
_getitem: Any = operator.getitem
_BACKWARD = aten.native_group_norm_backward.default


class _Shape(NamedTuple):
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
    shape = _Shape(images, channels, plane, groups, int(chain.relu is not None), height, width)
    results: dict[int, Node] = {}
    with gm.graph.inserting_before(chain.last):
        if chain.pool is None:
            call = _values(made, shape, eps, live)
            fused = gm.graph.call_function(call, (*norm.args[:3], chain.other))
        else:
            call = _pooled(made, shape, eps, live, tuple(chain.pool.shape))
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


def _replace_slopes(results: dict[int, Node], chain: _Chain, made: ctypes.CDLL, shape: _Shape, live: Live) -> None:
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
        user.target = _slopes(made, shape, live, wanted)


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


def _values(made: ctypes.CDLL, shape: _Shape, eps: float, live: Live) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    numbers = (ctypes.c_int64 * len(shape))(*shape)

    def normalised(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, other: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, other = x.contiguous(), None if other is None else other.contiguous()
        y, kept = torch.empty_like(x), x.new_empty(2, shape.images, shape.groups)
        numbers[0] = rows = live.of(shape.images)
        to = [_at(t) for t in (x, weight, bias, other, y, kept[0], kept[1])]
        made.normalise(numbers, eps, *to)
        return padded(y, rows), kept[0], kept[1]

    return normalised


def _slopes(
    made: ctypes.CDLL, shape: _Shape, live: Live, wanted: list[bool]
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


def _pooled(
    made: ctypes.CDLL, shape: _Shape, eps: float, live: Live, pooled: tuple[int, ...]
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
        return padded(y, rows), kept[0], kept[1], places

    return normalised_pooled


def _pooled_slopes(
    made: ctypes.CDLL, shape: _Shape, live: Live, wanted: list[bool]
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
    shape: _Shape, x: Tensor, rows: int, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return memory for the slopes by input, weight and bias."""
    by_input = padded(torch.empty_like(x), rows) if wanted[0] else None
    sums = [x.new_zeros(shape.channels) if one else None for one in wanted[1:]]
    return by_input, sums[0], sums[1]


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
