"""Statements of a translated step: entry by entry, products, and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import Node

from .operations import C_TYPES, CONVERSIONS, POINTWISE, VIEWS, literal
from .writer import (
    Expr,
    KernelScript,
    LaneRow,
    NativeLeaf,
    Unsupported,
    Value,
    dtype_of,
    leaves_of,
    lift_matrix,
    loops,
    meta,
    nest,
    permute_axes,
    plain,
    text_of,
)

__all__ = ["ELEMENTWISE", "PRODUCTS", "REDUCTIONS", "pointwise", "view"]

# Elementwise operations, views and constants: expressions that are computed where they are used.


Tensor = torch.Tensor
aten: Any = torch.ops.aten
prims: Any = torch.ops.prims


def pointwise(w: KernelScript, node: Node) -> Value:
    """Translate an operation entry by entry."""
    return _join_values(w, node, POINTWISE[cast(Any, node.target)])


def _join_values(w: KernelScript, node: Node, text: str) -> Value:
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("rounding_mode") is not None:
        raise Unsupported(f"{node.target} with {dict(node.kwargs)}")
    shape, made = tuple(node.meta["val"].shape), node.meta["val"].dtype
    name = node.target.overloadpacket.__name__  # type: ignore[union-attr]
    text = "(!{0})" if name == "bitwise_not" and made == torch.bool else text
    work = made
    if made == torch.bool:  # a comparison works in the type of its operands
        typed = [dtype_of(a) for a in node.args if isinstance(a, Node)]
        work = typed[0]
        for other in typed[1:]:
            work = torch.promote_types(work, other)
        if any(isinstance(a, float) for a in node.args) and not work.is_floating_point:
            work = torch.float32
    if work not in C_TYPES:
        raise Unsupported(f"{node.target} in {work}")
    parts = []
    for i, arg in enumerate(node.args):
        wanted = torch.bool if name == "where" and i == 0 else work
        parts.append(w.spread(w.cast(w.get(arg, wanted), wanted), shape))
    return Expr(text, parts, shape, made)


_ROOTS: dict[Any, str] = {0.5: "f_sqrt({0})", -0.5: "(1.0f / f_sqrt({0}))", -1: "(1.0f / {0})"}


def _power(w: KernelScript, node: Node) -> Value:
    base, power = w.get(node.args[0], torch.float32), node.args[1]
    if power not in (1, 2, 3, *_ROOTS) or node.meta["val"].dtype != torch.float32:
        raise Unsupported(f"power {power}")
    made = w.cast(base, torch.float32)
    if power in _ROOTS:
        return Expr(_ROOTS[power], [made], made.shape, torch.float32)
    base = made if isinstance(made, NativeLeaf) else w.store(made)
    return Expr(f"({' * '.join(['{0}'] * int(power))})", [base], base.shape, torch.float32)  # type: ignore[arg-type]


def _exponent(w: KernelScript, node: Node) -> Value:
    if node.meta["val"].dtype != torch.float32:
        raise Unsupported(f"a power of {node.meta['val'].dtype}")
    return _join_values(w, node, "__builtin_powf({0}, {1})")


def _remainder(w: KernelScript, node: Node) -> Value:
    if node.meta["val"].dtype != torch.int64 or node.args[1] == 0:
        raise Unsupported("a remainder of other than whole numbers")
    return _join_values(w, node, "(({0} % {1} + {1}) % {1})")


def _clamp(w: KernelScript, node: Node) -> Value:
    shape, dtype = tuple(node.meta["val"].shape), node.meta["val"].dtype
    made = w.spread(w.cast(w.get(node.args[0], dtype), dtype), shape)
    for bound, text in zip(node.args[1:], ("larger({0}, {1})", "smaller({0}, {1})"), strict=False):
        if bound is not None:
            made = Expr(text, [made, w.spread(w.cast(w.get(bound, dtype), dtype), shape)], shape, dtype)
    return made


def _convert(w: KernelScript, node: Node) -> Value:
    return w.cast(w.get(node.args[0], torch.float32), node.meta["val"].dtype)


def _constant(w: KernelScript, node: Node) -> Value:
    value = node.meta["val"]
    number = node.args[1] if node.target in (aten.full.default, aten.full_like.default) else node.args[0]
    if node.target in (aten.zeros_like.default, aten.ones_like.default):
        number = 0 if node.target is aten.zeros_like.default else 1
    if not isinstance(number, bool | int | float):
        raise Unsupported("a constant that is not a number")
    return Expr(literal(number, value.dtype), [], tuple(value.shape), value.dtype)


def _positions(w: KernelScript, node: Node) -> Value:
    """Translate ``iota`` and ``arange``: each entry is its own position."""
    if node.target is torch.ops.prims.iota.default:
        (length,), start, step = node.args, node.kwargs["start"], node.kwargs["step"]
    elif node.target is aten.arange.start_step:
        start, _, step = (*node.args, 1)[:3]
        length = node.meta["val"].numel()
    else:
        length, start, step = node.args[0], 0, 1
    if not all(isinstance(n, int) for n in (length, start, step)):
        raise Unsupported("positions that are not whole numbers")
    made: Value = NativeLeaf("", meta((cast(int, length),)), torch.int64)
    if (start, step) != (0, 1):
        made = Expr(f"({{0}} * {step}LL + {start}LL)", [made], made.shape, torch.int64)
    return w.cast(made, node.meta["val"].dtype)


def view(w: KernelScript, node: Node, how: Callable[..., Tensor]) -> Value:
    """Translate an operation that looks at the same entries in another way."""
    base = w.get(node.args[0], torch.float32)

    def turn(value: Value) -> Value:
        if isinstance(value, NativeLeaf):
            return NativeLeaf(value.name, how(value.at, *node.args[1:], **node.kwargs), value.dtype)
        parts = [turn(part) for part in value.parts]
        return Expr(value.text, parts, tuple(node.meta["val"].shape), value.dtype)

    if node.target is aten.as_strided.default:
        base = base if isinstance(base, NativeLeaf) and base.at.is_contiguous() else w.store(base)
    try:
        return turn(base)
    except (RuntimeError, ValueError):
        return turn(w.store(base))


def _reshape(w: KernelScript, node: Node) -> Value:
    return view(w, node, lambda at, shape: at.view(shape))


def _broadcast(w: KernelScript, node: Node) -> Value:
    """Translate ``prims.broadcast_in_dim``: axes get places among those of a larger shape."""

    def spread(at: Tensor, shape: tuple[int, ...], axes: list[int]) -> Tensor:
        thin = [at.shape[axes.index(d)] if d in axes else 1 for d in range(len(shape))]
        return at.view(thin).expand(tuple(shape))

    return view(w, node, spread)


def _in_place(w: KernelScript, node: Node) -> Value:
    """Translate an operation in place, on a value that nothing else reads, or on a weight whose readers are all done."""
    first = node.args[0]
    if node.meta.get("updates"):
        return _update_weight(w, node)
    if not isinstance(first, Node) or len(first.users) > 1:
        raise Unsupported(f"{node.target} on a value that is read elsewhere")
    return _join_values(w, node, _IN_PLACE[node.target])


def _update_weight(w: KernelScript, node: Node) -> Value:
    """Change a weight where it is; values that only this operation reads are computed on the way."""
    to = w.leaf(node.args[0])
    value = _join_values(w, node, _IN_PLACE[node.target])
    if not plain(to, to.shape):
        raise Unsupported("an update of a view")
    w.settle({arg for arg in node.all_input_nodes if len(arg.users) == 1})
    if not all(leaf.name != to.name or plain(leaf, to.shape) for leaf in leaves_of(value)):
        value = w.store(value)
    w.loop(to, value)
    return to


def _copy_into(w: KernelScript, node: Node) -> Value:
    """Translate a copy into memory: the old value stays for those that read it before, as later ones name the copy. A view would need both."""
    first = node.args[0]
    if not isinstance(first, Node) or any(user.target in _SHARING for user in first.users):
        raise Unsupported("a copy into a value that is viewed elsewhere")
    made = node.meta["val"]
    return w.spread(w.cast(w.get(node.args[1], made.dtype), made.dtype), tuple(made.shape))


def _make_undefined(w: KernelScript, node: Node) -> Value:
    """Translate new memory: zeros, since what is in it is never read."""
    made = node.meta["val"]
    return Expr(literal(0, made.dtype), [], tuple(made.shape), made.dtype)


_SHARING = {*VIEWS, aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_IN_PLACE: dict[Any, str] = {
    aten.add_.Tensor: "({0} + {1})",
    aten.sub_.Tensor: "({0} - {1})",
    aten.mul_.Tensor: "({0} * {1})",
    aten.div_.Tensor: "({0} / {1})",
}
ELEMENTWISE: dict[Any, Callable[[KernelScript, Node], Value]] = {
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default, aten.reshape.default), _reshape),
    **dict.fromkeys(CONVERSIONS, _convert),
    **dict.fromkeys(
        (
            aten.full.default,
            aten.full_like.default,
            aten.scalar_tensor.default,
            aten.zeros_like.default,
            aten.ones_like.default,
        ),
        _constant,
    ),
    **dict.fromkeys((prims.iota.default, aten.arange.default, aten.arange.start_step), _positions),
    prims.broadcast_in_dim.default: _broadcast,
    **dict.fromkeys(_IN_PLACE, _in_place),
    aten.copy_.default: _copy_into,
    aten.empty_permuted.default: _make_undefined,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Scalar: _exponent,
    aten.remainder.Scalar: _remainder,
}


# Matrix products, as calls of templates that know every size and stride.


def _product(w: KernelScript, node: Node) -> Value:
    """``A B``, and ``C + A B`` with or without writing to C."""
    name = node.target._name.removeprefix("aten::")  # type: ignore[union-attr]
    if node.kwargs and any(node.kwargs.get(k, 1) != 1 for k in ("alpha", "beta")):
        raise Unsupported("a scaled product")
    if node.meta["val"].dtype != torch.float32:
        raise Unsupported(f"a product of {node.meta['val'].dtype}")
    shape = tuple(node.meta["val"].shape)
    if name.endswith("mm_"):
        w.settle()
        to = w.leaf(node.args[0])
        if not to.at.is_contiguous():
            raise Unsupported("an update of a view")
    else:
        to = w.new(shape, torch.float32)
        begin = w.get(node.args[0], torch.float32) if "add" in name else Expr("0.0f", [], shape, torch.float32)
        w.loop(to, begin)
    a, b = w.operand(node.args[-2]), w.leaf(node.args[-1])
    a, b, to_at = (leaf if leaf.at.dim() == 3 else lift_matrix(leaf) for leaf in (a, b, to))
    _multiply(w, a, b, to_at)
    return to


def _multiply(w: KernelScript, a: NativeLeaf, b: NativeLeaf, to: NativeLeaf) -> None:
    batch, m, k = a.at.shape
    n = b.at.shape[2]
    if 0 in (batch, m, n, k):
        return
    within = a.at.stride(2) == 1 and b.at.stride(1) == 1 and k >= 8
    if not within and b.at.stride(2) != 1 and n > 1:
        b = w.store(b)
    (ab, am, ak), (bb, bk, bn), (cb, cm, _) = a.at.stride(), b.at.stride(), to.at.stride()
    sides = [f"{leaf.name} + {leaf.at.storage_offset()}" for leaf in (a, b, to)]
    outer = f"outer<{m}, {n}, {k}, {am}, {ak}, {bk}, {cm}>"
    call = f"inner<{m}, {n}, {k}, {am}, {bn}, {cm}>" if within else outer
    places = [f"{side} + z*{step}" if batch > 1 else side for side, step in zip(sides, (ab, bb, cb), strict=True)]
    loop = f"for (int z = 0; z < {batch}; ++z) " if batch > 1 else ""
    w.body.lines.append(f"{loop}{call}({', '.join(places)});")


PRODUCTS: dict[Any, Callable[[KernelScript, Node], Value]] = dict.fromkeys(
    (
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.addmm_.default,
        aten.baddbmm.default,
        aten.baddbmm_.default,
    ),
    _product,
)


# Sums, means, variances and extremes along some axes.


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
    turned = permute_axes(source, order)
    places = {id(leaf): w.place(leaf, list(leaf.at.stride())) for leaf in leaves_of(turned)}
    text = text_of(turned, places)
    fold = _FOLDS.get(name, "({0} + {1})")
    shape, split = list(turned.shape), len(axes) if rows else len(kept)
    row = LaneRow(places, {id(leaf): (leaf.at.stride() or (0,))[-1] for leaf in leaves_of(turned)}, shape)
    place = w.place(out, [*([0] * split if rows else []), *out.at.stride()])
    if rows:
        begin = nest([math.prod(out.shape)], [f"{out.name}[i0] = {first};"])
        w.write(
            lambda: [*loops(shape[split:-1], split), "{", *row.stack_axes(out, place, turned, split, name), "}"],
            [*begin, *nest(shape, [f"{place} = {fold.format(place, text)};"])],
        )
        return
    plain = [*loops(shape[:split]), "{", f"{C_TYPES[out.dtype]} acc = {first};", *loops(shape[split:-1], split)]
    if shape and name in ("sum", "mean"):
        plain.append("#pragma omp simd reduction(+:acc)")
    plain += [*loops(shape[-1:], len(shape) - 1), f"acc = {fold.format('acc', text)};", f"{place} = acc;", "}"]
    w.write(lambda: [*loops(shape[:split]), "{", *row.fold_axes(out, place, turned, split, name), "}"], plain)


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
