"""From a traced step to C++: elementwise chains become one loop, small products become calls of a template.

Only operations that are known to be exact are translated. An operation, a type or a layout outside the tables raises
`Unsupported`, and PyTorch's own generator compiles the step instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from .lanes import GUARD, LaneRow, Mixed, loops, nest
from .ops import C_TYPES, CONVERSIONS, POINTWISE, VIEWS, literal
from .values import (
    Body,
    Expr,
    NativeLeaf,
    Unsupported,
    Value,
    dtype_of,
    leaves_of,
    lifted,
    merged,
    meta,
    permuted,
    text_of,
)

__all__ = ["emit"]

Tensor = torch.Tensor
aten: Any = torch.ops.aten


def emit(gm: GraphModule, names: Sequence[str], targets: Sequence[tuple[str, str]]) -> Body:
    """Translate a function of one client.

    Args:
        gm: its operations, ATen only, updates fused in place.
        names: the C++ variables that its inputs are in.
        targets: for each output the variable that takes it, and how: ``"="`` or ``"+="``. A variable may be an input's too.

    Raises:
        Unsupported: an operation, a type or a layout that is not translated.
    """
    return _Emitter(gm, names, targets).run()


class _Emitter:
    def __init__(self, gm: GraphModule, names: Sequence[str], targets: Sequence[tuple[str, str]]) -> None:
        self.graph = gm.graph
        self.names = names
        self.targets = targets
        self.body = Body()
        self.values: dict[Node, Value] = {}
        self.done: set[Node] = set()

    def run(self) -> Body:
        inputs = 0
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._input(node, inputs)
                inputs += 1
            elif node.op == "call_function":
                self._operation(node)
                self._forget(node)
            elif node.op == "output":
                self._output(node)
            else:
                raise Unsupported(node.op)
        return self.body

    def _forget(self, node: Node) -> None:
        """Drop values that are no longer needed."""
        self.done.add(node)
        for arg in node.all_input_nodes:
            if self.done.issuperset(arg.users):
                self.values.pop(arg, None)

    def _input(self, node: Node, number: int) -> NativeLeaf:
        value = node.meta["val"]
        if node.users and (value.dtype not in C_TYPES or not value.is_contiguous()):
            raise Unsupported(f"an input of type {value.dtype} and strides {value.stride()}")
        return NativeLeaf(self.names[number], meta(tuple(value.shape)), value.dtype)

    def _output(self, node: Node) -> None:
        """Write all outputs, after computing what reads a variable that is overwritten."""
        outputs: Any = node.args[0]
        written = {name for name, _ in self.targets}
        moves: list[tuple[NativeLeaf, Value, str]] = []
        for made, (name, how) in zip(outputs, self.targets, strict=True):
            value = self._get(made, dtype_of(made))
            same = [leaf.name == name and _plain(leaf, value.shape) for leaf in leaves_of(value)]
            if isinstance(value, NativeLeaf) and all(same) and how == "=":
                continue  # updated in place, or never changed
            apart = [leaf.name not in written for leaf in leaves_of(value)]
            if not all(a or s for a, s in zip(apart, same, strict=True)):
                value = self._store(value)
            moves.append((NativeLeaf(name, meta(value.shape), value.dtype), value, how))
        for to, value, how in moves:
            self._loop(to, value, how)

    def _operation(self, node: Node) -> None:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.dtype not in C_TYPES:
            raise Unsupported(f"{node.target} of type {getattr(value, 'dtype', type(value))}")
        rule = _RULES.get(node.target)
        if rule is not None:
            made = rule(self, node)
        elif node.target in VIEWS:
            made = self._view(node, cast(Any, node.target))
        elif node.target in POINTWISE:
            made = self._pointwise(node)
        else:
            raise Unsupported(str(node.target))
        if isinstance(made, Expr) and made.parts and len(node.users) > 1:
            made = self._store(made)
        self.values[node] = made

    # Values -----------------------------------------------------------------------------------------------------------

    def _get(self, arg: Any, dtype: torch.dtype) -> Value:
        if isinstance(arg, Node):
            return self.values[arg]
        if isinstance(arg, bool | int | float):
            return Expr(literal(arg, dtype), [], (), dtype)
        raise Unsupported(f"an argument of type {type(arg).__name__}")

    def _leaf(self, arg: Any) -> NativeLeaf:
        value = self._get(arg, torch.float32)
        return value if isinstance(value, NativeLeaf) and value.name else self._store(value)

    def _operand(self, arg: Any) -> NativeLeaf:
        """Return a value that a product may read in any order: a transposed expression is stored in memory order."""
        value = self._get(arg, torch.float32)
        if isinstance(value, NativeLeaf) or not value.parts:
            return self._leaf(arg)
        strides = max((leaf.at.stride() for leaf in leaves_of(value)), key=lambda s: sum(n > 0 for n in s))
        order = sorted(range(len(strides)), key=lambda d: -strides[d])
        made = self._store(permuted(value, order))
        return NativeLeaf(made.name, made.at.permute([order.index(d) for d in range(len(order))]), made.dtype)

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype) -> NativeLeaf:
        name, count = f"t{len(self.body.buffers)}", max(1, math.prod(shape))
        self.body.buffers.append(f"alignas(64) {C_TYPES[dtype]} {name}[{count}];")
        self.body.room += -(-count * dtype.itemsize // 64) * 64
        return NativeLeaf(f"t{len(self.body.buffers) - 1}", meta(shape), dtype)

    def _store(self, value: Value) -> NativeLeaf:
        made = self._new(value.shape, value.dtype)
        self._loop(made, value)
        return made

    def _spread(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Return the value over a larger shape; costly expressions are computed once before."""
        if value.shape == shape:
            return value
        if isinstance(value, NativeLeaf):
            return NativeLeaf(value.name, value.at.expand(shape), value.dtype)
        if value.parts and math.prod(value.shape) < math.prod(shape):
            return self._spread(self._store(value), shape)
        return Expr(value.text, [self._spread(part, shape) for part in value.parts], shape, value.dtype)

    def _cast(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype == dtype:
            return value
        text = "uint8_t(({0}) != 0)" if dtype == torch.bool else f"{C_TYPES[dtype]}({{0}})"
        return Expr(text, [value], value.shape, dtype)

    # Loops ------------------------------------------------------------------------------------------------------------

    def _loop(self, to: NativeLeaf, value: Value, how: str = "=") -> None:
        """``to[i] = value[i]`` for all i, over as few axes as the strides allow."""
        value = self._spread(value, to.shape)
        leaves = [to, *leaves_of(value)]
        sizes, strides = merged(to.shape, [leaf.at.stride() for leaf in leaves])
        places = {id(leaf): self._place(leaf, steps) for leaf, steps in zip(leaves, strides, strict=True)}
        text = f"{places[id(to)]} {how} {text_of(value, places)};"
        row = LaneRow(
            places, {id(leaf): (steps or [0])[-1] for leaf, steps in zip(leaves, strides, strict=True)}, sizes
        )
        self._lines(lambda: [*loops(sizes[:-1]), "{", *row.moved(to, value, how), "}"], nest(sizes, [text]))

    def _lines(self, lanes: Callable[[], list[str]], plain: list[str]) -> None:
        """Write statements as vector code if the processor and the table support it, else as plain code."""
        try:
            self.body.lines += [GUARD, *lanes(), "#else", *plain, "#endif"]
        except Mixed:
            self.body.lines += plain

    def _place(self, leaf: NativeLeaf, strides: list[int]) -> str:
        terms = [f"i{d}*{step}" if step != 1 else f"i{d}" for d, step in enumerate(strides) if step]
        offset = int(leaf.at.storage_offset())
        index = " + ".join([*terms, *([str(offset)] if offset or not terms else [])])
        return f"{leaf.name}[{index}]" if leaf.name else f"i64({index})"

    # Rules ------------------------------------------------------------------------------------------------------------

    def _pointwise(self, node: Node) -> Value:
        if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("rounding_mode") is not None:
            raise Unsupported(f"{node.target} with {dict(node.kwargs)}")
        shape, made = tuple(node.meta["val"].shape), node.meta["val"].dtype
        text = POINTWISE[node.target]
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
            parts.append(self._spread(self._cast(self._get(arg, wanted), wanted), shape))
        return Expr(text, parts, shape, made)

    def _view(self, node: Node, how: Callable[..., Tensor]) -> Value:
        base = self._get(node.args[0], torch.float32)

        def turn(value: Value) -> Value:
            if isinstance(value, NativeLeaf):
                return NativeLeaf(value.name, how(value.at, *node.args[1:], **node.kwargs), value.dtype)
            parts = [turn(part) for part in value.parts]
            return Expr(value.text, parts, tuple(node.meta["val"].shape), value.dtype)

        if node.target is aten.as_strided.default:
            base = base if isinstance(base, NativeLeaf) and base.at.is_contiguous() else self._store(base)
        try:
            return turn(base)
        except (RuntimeError, ValueError):
            return turn(self._store(base))

    def _power(self, node: Node) -> Value:
        base, power = self._get(node.args[0], torch.float32), node.args[1]
        if power not in (1, 2, 3) or node.meta["val"].dtype != torch.float32:
            raise Unsupported(f"power {power}")
        made = self._cast(base, torch.float32)
        base = made if isinstance(made, NativeLeaf) else self._store(made)
        return Expr(f"({' * '.join(['{0}'] * int(power))})", [base], base.shape, torch.float32)  # type: ignore[arg-type]

    def _clamp(self, node: Node) -> Value:
        shape, dtype = tuple(node.meta["val"].shape), node.meta["val"].dtype
        made = self._spread(self._cast(self._get(node.args[0], dtype), dtype), shape)
        for bound, text in zip(node.args[1:], ("larger({0}, {1})", "smaller({0}, {1})"), strict=False):
            if bound is not None:
                made = Expr(text, [made, self._spread(self._cast(self._get(bound, dtype), dtype), shape)], shape, dtype)
        return made

    def _reshape(self, node: Node) -> Value:
        return self._view(node, lambda at, shape: at.view(shape))

    def _convert(self, node: Node) -> Value:
        return self._cast(self._get(node.args[0], torch.float32), node.meta["val"].dtype)

    def _constant(self, node: Node) -> Value:
        value = node.meta["val"]
        number = node.args[1] if node.target in (aten.full.default, aten.full_like.default) else node.args[0]
        if node.target in (aten.zeros_like.default, aten.ones_like.default):
            number = 0 if node.target is aten.zeros_like.default else 1
        if not isinstance(number, bool | int | float):
            raise Unsupported("a constant that is not a number")
        return Expr(literal(number, value.dtype), [], tuple(value.shape), value.dtype)

    def _positions(self, node: Node) -> Value:
        """Translate ``iota`` and ``arange``: each entry is its own position."""
        if node.target is torch.ops.prims.iota.default:
            (length,), start, step = node.args, node.kwargs["start"], node.kwargs["step"]
        elif node.target is aten.arange.start_step:
            start, _, step = (*node.args, 1)[:3]
            length = node.meta["val"].numel()
        else:
            length, start, step = node.args[0], 0, 1
        if not all(isinstance(n, int) and n >= 0 for n in (length, start, step)):
            raise Unsupported("positions that run down, or are not whole numbers")
        length, start, step = cast(int, length), cast(int, start), cast(int, step)
        room = torch.empty(start + step * max(length, 1) + 1, device="meta", dtype=torch.uint8)
        return self._cast(
            NativeLeaf("", room.as_strided((length,), (step,), start), torch.int64), node.meta["val"].dtype
        )

    def _gather(self, node: Node) -> Value:
        base, dim, index = self._leaf(node.args[0]), int(node.args[1]), self._get(node.args[2], torch.int64)  # type: ignore[arg-type]
        dim %= max(1, base.at.dim())
        return self._at(base, dim, index)

    def _at(self, base: NativeLeaf, dim: int, index: Value) -> Expr:
        strides = list(base.at.stride())
        size, step = base.at.shape[dim], strides[dim]
        strides[dim] = 0
        there = NativeLeaf(base.name, base.at.as_strided(index.shape, strides, base.at.storage_offset()), base.dtype)
        return Expr(f"(&{{0}})[within({{1}}, {size}, bad) * {step}]", [there, index], index.shape, base.dtype)

    def _scatter(self, node: Node) -> Value:
        made = self._store(self._get(node.args[0], torch.float32))
        dim, index = int(node.args[1]) % max(1, made.at.dim()), self._get(node.args[2], torch.int64)  # type: ignore[arg-type]
        value = self._spread(self._cast(self._get(node.args[3], made.dtype), made.dtype), index.shape)
        target = self._at(made, dim, index)
        parts = [*leaves_of(target), *leaves_of(value)]
        places = {id(leaf): self._place(leaf, list(leaf.at.stride())) for leaf in parts}
        lines = [f"for (int i{d} = 0; i{d} < {n}; ++i{d})" for d, n in enumerate(index.shape)]
        self.body.lines += [*lines, f"{text_of(target, places)} = {text_of(value, places)};"]
        return made

    def _reduce(self, node: Node) -> Value:
        source = self._get(node.args[0], torch.float32)
        made = node.meta["val"]
        name = node.target.overloadpacket.__name__  # type: ignore[union-attr]
        dims = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], list | tuple) else None
        rank = len(source.shape)
        axes = sorted({int(d) % rank for d in dims}) if dims else list(range(rank))  # type: ignore[arg-type]
        source = self._cast(source, made.dtype)
        count = math.prod(source.shape[a] for a in axes)
        if name in ("amax", "amin") and not count:
            raise Unsupported("the largest of nothing")
        out = self._new(tuple(n for d, n in enumerate(source.shape) if d not in axes), made.dtype)
        first = {"amax": "(-INF)", "amin": "INF"}.get(name, literal(0, made.dtype))
        if name in ("amax", "amin") and made.dtype != torch.float32:
            raise Unsupported(f"{name} of {made.dtype}")
        self._fold(out, source, axes, name, first)
        if name == "mean":
            self._loop(out, Expr(f"({{0}} / {float(count)!r}f)", [out], out.shape, out.dtype))
        return NativeLeaf(out.name, out.at.view(tuple(made.shape)), out.dtype)

    def _fold(self, out: NativeLeaf, source: Value, axes: list[int], name: str, first: str) -> None:
        """Fold along some axes: into a variable where the last axis is one of them, else row by row into the result."""
        kept = [d for d in range(len(source.shape)) if d not in axes]
        rows = bool(kept) and kept[-1] == len(source.shape) - 1
        order = [*axes, *kept] if rows else [*kept, *axes]
        turned = permuted(source, order)
        places = {id(leaf): self._place(leaf, list(leaf.at.stride())) for leaf in leaves_of(turned)}
        text = text_of(turned, places)
        fold = {"amax": "larger({0}, {1})", "amin": "smaller({0}, {1})"}.get(name, "({0} + {1})")
        shape, split = list(turned.shape), len(axes) if rows else len(kept)
        row = LaneRow(places, {id(leaf): (leaf.at.stride() or (0,))[-1] for leaf in leaves_of(turned)}, shape)
        place = self._place(out, [*([0] * split if rows else []), *out.at.stride()])
        if rows:
            begin = nest([math.prod(out.shape)], [f"{out.name}[i0] = {first};"])
            self._lines(
                lambda: [*loops(shape[split:-1], split), "{", *row.stacked(out, place, turned, split, name), "}"],
                [*begin, *nest(shape, [f"{place} = {fold.format(place, text)};"])],
            )
            return
        plain = [*loops(shape[:split]), "{", f"{C_TYPES[out.dtype]} acc = {first};", *loops(shape[split:-1], split)]
        if shape and name in ("sum", "mean"):
            plain.append("#pragma omp simd reduction(+:acc)")
        plain += [*loops(shape[-1:], len(shape) - 1), f"acc = {fold.format('acc', text)};", f"{place} = acc;", "}"]
        self._lines(lambda: [*loops(shape[:split]), "{", *row.folded(out, place, turned, split, name), "}"], plain)

    def _product(self, node: Node) -> Value:
        """``A B``, and ``C + A B`` with or without writing to C."""
        name = node.target._name.removeprefix("aten::")  # type: ignore[union-attr]
        if node.kwargs and any(node.kwargs.get(k, 1) != 1 for k in ("alpha", "beta")):
            raise Unsupported("a scaled product")
        if node.meta["val"].dtype != torch.float32:
            raise Unsupported(f"a product of {node.meta['val'].dtype}")
        shape = tuple(node.meta["val"].shape)
        if name.endswith("mm_"):
            self._settle()
            to = self._leaf(node.args[0])
            if not to.at.is_contiguous():
                raise Unsupported("an update of a view")
        else:
            to = self._new(shape, torch.float32)
            begin = self._get(node.args[0], torch.float32) if "add" in name else Expr("0.0f", [], shape, torch.float32)
            self._loop(to, begin)
        a, b = self._operand(node.args[-2]), self._leaf(node.args[-1])
        a, b, to_at = (leaf if leaf.at.dim() == 3 else lifted(leaf) for leaf in (a, b, to))
        self._multiply(a, b, to_at)
        return to

    def _settle(self) -> None:
        """Compute pending values before memory that they may read is overwritten."""
        for node, value in self.values.items():
            if isinstance(value, Expr) and value.parts:
                self.values[node] = self._store(value)

    def _multiply(self, a: NativeLeaf, b: NativeLeaf, to: NativeLeaf) -> None:
        batch, m, k = a.at.shape
        n = b.at.shape[2]
        if 0 in (batch, m, n, k):
            return
        within = a.at.stride(2) == 1 and b.at.stride(1) == 1 and k >= 8
        if not within and b.at.stride(2) != 1 and n > 1:
            b = self._store(b)
        (ab, am, ak), (bb, bk, bn), (cb, cm, _) = a.at.stride(), b.at.stride(), to.at.stride()
        sides = [f"{leaf.name} + {leaf.at.storage_offset()}" for leaf in (a, b, to)]
        outer = f"outer<{m}, {n}, {k}, {am}, {ak}, {bk}, {cm}>"
        call = f"inner<{m}, {n}, {k}, {am}, {bn}, {cm}>" if within else outer
        places = [f"{side} + z*{step}" if batch > 1 else side for side, step in zip(sides, (ab, bb, cb), strict=True)]
        loop = f"for (int z = 0; z < {batch}; ++z) " if batch > 1 else ""
        self.body.lines.append(f"{loop}{call}({', '.join(places)});")


def _plain(leaf: NativeLeaf, shape: tuple[int, ...]) -> bool:
    """Tell whether the entries are all of a variable's, in order."""
    return leaf.shape == shape and leaf.at.is_contiguous() and leaf.at.storage_offset() == 0


_Rule = Callable[[_Emitter, Node], Value]
_RULES: dict[Any, _Rule] = {
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default, aten.reshape.default), _Emitter._reshape),
    **dict.fromkeys(CONVERSIONS, _Emitter._convert),
    **dict.fromkeys(
        (
            aten.full.default,
            aten.full_like.default,
            aten.scalar_tensor.default,
            aten.zeros_like.default,
            aten.ones_like.default,
        ),
        _Emitter._constant,
    ),
    **dict.fromkeys((torch.ops.prims.iota.default, aten.arange.default, aten.arange.start_step), _Emitter._positions),
    **dict.fromkeys(
        (
            aten.sum.default,
            aten.sum.dim_IntList,
            aten.mean.default,
            aten.mean.dim,
            aten.amax.default,
            aten.amin.default,
        ),
        _Emitter._reduce,
    ),
    **dict.fromkeys(
        (
            aten.mm.default,
            aten.bmm.default,
            aten.addmm.default,
            aten.addmm_.default,
            aten.baddbmm.default,
            aten.baddbmm_.default,
        ),
        _Emitter._product,
    ),
    aten.clamp.default: _Emitter._clamp,
    aten.pow.Tensor_Scalar: _Emitter._power,
    aten.gather.default: _Emitter._gather,
    aten.scatter.value: _Emitter._scatter,
}
