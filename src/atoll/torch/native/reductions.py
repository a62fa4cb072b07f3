"""Sums, means, variances and extremes along some axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .lanes import LaneRow, loops, nest
from .ops import C_TYPES, literal
from .script import KernelScript
from .values import Expr, NativeLeaf, Unsupported, Value, leaves_of, permuted, text_of

__all__ = ["REDUCTIONS"]

aten: Any = torch.ops.aten
prims: Any = torch.ops.prims


_FOLDS = {"amax": "larger({0}, {1})", "amin": "smaller({0}, {1})", "any": "({0} | {1})"}
_LEAST = {
    ("amax", torch.float32): "(-INF)",
    ("amin", torch.float32): "INF",
    ("amax", torch.int64): "INT64_MIN",
    ("amin", torch.int64): "INT64_MAX",
}


def _reduce(w: KernelScript, node: Node) -> Value:
    source = w.get(node.args[0], torch.float32)
    made = node.meta["val"]
    name = node.target.overloadpacket.__name__  # type: ignore[union-attr]
    dims = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], list | tuple) else None
    dims = [node.args[1]] if len(node.args) > 1 and isinstance(node.args[1], int) else dims
    rank = len(source.shape)
    axes = sorted({int(d) % rank for d in dims}) if dims else list(range(rank))  # type: ignore[arg-type]
    source = w.cast(source, made.dtype)
    count = math.prod(source.shape[a] for a in axes)
    if name in ("amax", "amin") and not count:
        raise Unsupported("the largest of nothing")
    out = w.new(tuple(n for d, n in enumerate(source.shape) if d not in axes), made.dtype)
    first = _LEAST.get((name, made.dtype), literal(0, made.dtype))
    if name in ("amax", "amin") and (name, made.dtype) not in _LEAST:
        raise Unsupported(f"{name} of {made.dtype}")
    _fold(w, out, source, axes, name, first)
    if name == "mean":
        w.loop(out, Expr(f"({{0}} / {float(count)!r}f)", [out], out.shape, out.dtype))
    return NativeLeaf(out.name, out.at.view(tuple(made.shape)), out.dtype)


def _fold(w: KernelScript, out: NativeLeaf, source: Value, axes: list[int], name: str, first: str) -> None:
    """Fold along some axes: into a variable where the last axis is one of them, else row by row into the result."""
    kept = [d for d in range(len(source.shape)) if d not in axes]
    rows = bool(kept) and kept[-1] == len(source.shape) - 1
    order = [*axes, *kept] if rows else [*kept, *axes]
    turned = permuted(source, order)
    places = {id(leaf): w.place(leaf, list(leaf.at.stride())) for leaf in leaves_of(turned)}
    text = text_of(turned, places)
    fold = _FOLDS.get(name, "({0} + {1})")
    shape, split = list(turned.shape), len(axes) if rows else len(kept)
    row = LaneRow(places, {id(leaf): (leaf.at.stride() or (0,))[-1] for leaf in leaves_of(turned)}, shape)
    place = w.place(out, [*([0] * split if rows else []), *out.at.stride()])
    if rows:
        begin = nest([math.prod(out.shape)], [f"{out.name}[i0] = {first};"])
        w.write(
            lambda: [*loops(shape[split:-1], split), "{", *row.stacked(out, place, turned, split, name), "}"],
            [*begin, *nest(shape, [f"{place} = {fold.format(place, text)};"])],
        )
        return
    plain = [*loops(shape[:split]), "{", f"{C_TYPES[out.dtype]} acc = {first};", *loops(shape[split:-1], split)]
    if shape and name in ("sum", "mean"):
        plain.append("#pragma omp simd reduction(+:acc)")
    plain += [*loops(shape[-1:], len(shape) - 1), f"acc = {fold.format('acc', text)};", f"{place} = acc;", "}"]
    w.write(lambda: [*loops(shape[:split]), "{", *row.folded(out, place, turned, split, name), "}"], plain)


def _variance(w: KernelScript, node: Node) -> Value:
    """Translate a variance: the sum of squared differences from the mean, over the number of entries less the correction."""
    source, made = w.get(node.args[0], torch.float32), node.meta["val"]
    if made.dtype != torch.float32 or source.dtype != torch.float32:
        raise Unsupported(f"a variance of {source.dtype}")
    dims: Any = node.args[1] if len(node.args) > 1 else None
    rank = len(source.shape)
    axes = sorted({int(d) % rank for d in dims}) if dims else list(range(rank))
    kept = [1 if d in axes else n for d, n in enumerate(source.shape)]
    count = math.prod(source.shape[a] for a in axes)
    given: Any = node.args[2] if len(node.args) > 2 else node.kwargs.get("correction")
    correction = 1.0 if given is None else float(given)
    if count <= correction:
        raise Unsupported(f"a variance of {count} entries less {correction}")
    source = source if isinstance(source, NativeLeaf) else w.store(source)
    out = w.new(tuple(n for d, n in enumerate(source.shape) if d not in axes), torch.float32)
    _fold(w, out, source, axes, "sum", "0.0f")
    w.loop(out, Expr(f"({{0}} / {float(count)!r}f)", [out], out.shape, out.dtype))
    mean = NativeLeaf(out.name, out.at.view(kept).expand(source.shape), out.dtype)
    apart = w.store(Expr("({0} - {1})", [source, mean], source.shape, source.dtype))
    _fold(w, out, Expr("({0} * {0})", [apart], apart.shape, apart.dtype), axes, "sum", "0.0f")
    w.loop(out, Expr(f"({{0}} / {count - correction!r}f)", [out], out.shape, out.dtype))
    return NativeLeaf(out.name, out.at.view(tuple(made.shape)), out.dtype)


REDUCTIONS: dict[Any, Callable[[KernelScript, Node], Value]] = {
    **dict.fromkeys(
        (
            aten.sum.default,
            aten.sum.dim_IntList,
            prims.sum.default,
            aten.mean.default,
            aten.mean.dim,
            aten.amax.default,
            aten.amin.default,
            aten.any.dim,
        ),
        _reduce,
    ),
    prims.var.default: _variance,
    aten.var.correction: _variance,
}
