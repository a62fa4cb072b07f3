"""Entries that move: rows of a table and entries along an axis by number, the sums that go back to them; tensors joined, or reversed along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import Node

from .lanes import loops
from .script import KernelScript
from .values import Expr, NativeLeaf, Unsupported, Value, dtype_of, leaves_of, text_of

__all__ = ["LOOKUPS"]

aten: Any = torch.ops.aten


def _gather(w: KernelScript, node: Node) -> Value:
    base, dim, index = w.leaf(node.args[0]), int(node.args[1]), w.get(node.args[2], torch.int64)  # type: ignore[arg-type]
    dim %= max(1, base.at.dim())
    return _at(w, base, dim, index)


def _scatter(w: KernelScript, node: Node) -> Value:
    made = w.store(w.get(node.args[0], torch.float32))
    dim, index = int(node.args[1]) % max(1, made.at.dim()), w.get(node.args[2], torch.int64)  # type: ignore[arg-type]
    value = w.spread(w.cast(w.get(node.args[3], made.dtype), made.dtype), index.shape)
    target = _at(w, made, dim, index)
    parts = [*leaves_of(target), *leaves_of(value)]
    places = {id(leaf): w.place(leaf, list(leaf.at.stride())) for leaf in parts}
    lines = [f"for (int i{d} = 0; i{d} < {n}; ++i{d})" for d, n in enumerate(index.shape)]
    w.body.lines += [*lines, f"{text_of(target, places)} = {text_of(value, places)};"]
    return made


def _at(w: KernelScript, base: NativeLeaf, dim: int, index: Value) -> Expr:
    strides = list(base.at.stride())
    size, step = base.at.shape[dim], strides[dim]
    strides[dim] = 0
    there = NativeLeaf(base.name, base.at.as_strided(index.shape, strides, base.at.storage_offset()), base.dtype)
    return Expr(f"(&{{0}})[within({{1}}, {size}, bad) * {step}]", [there, index], index.shape, base.dtype)


def _embedding(w: KernelScript, node: Node) -> Value:
    """Rows of a table by number: ``out[i, :] = table[index[i], :]``."""
    table, index = w.leaf(node.args[0]), w.get(node.args[1], torch.int64)
    out = w.new((*index.shape, table.shape[1]), table.dtype)
    _by_row(w, index, table, out, "to[j] = row[j * {step}];", "const float* __restrict row", "float* __restrict to")
    return out


def _summed_rows(w: KernelScript, node: Node) -> Value:
    """Add rows to rows of a table by number, in order: ``table[index[i], :] += rows[i, :]``."""
    numbers: Any = node.args[1]
    added = node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False)
    if not added or len(numbers) != 1 or numbers[0] is None or len(node.meta["val"].shape) != 2:
        raise Unsupported("entries put elsewhere than into rows of a table, or not added")
    if dtype_of(numbers[0]) != torch.int64 or node.meta["val"].dtype != torch.float32:
        raise Unsupported("rows of another type than float, or found by a mask")
    table, index = w.store(w.get(node.args[0], torch.float32)), w.get(numbers[0], torch.int64)
    rows = w.store(w.spread(w.get(node.args[2], torch.float32), (*index.shape, table.shape[1])))
    _by_row(w, index, table, rows, "row[j] += to[j];", "float* __restrict row", "const float* __restrict to")
    return table


def _by_row(w: KernelScript, index: Value, table: NativeLeaf, rows: NativeLeaf, line: str, row: str, to: str) -> None:
    """Write a loop over numbers of rows; ``line`` handles an entry of a row of the table and of ``rows``, which is contiguous."""
    if table.dtype != torch.float32:
        raise Unsupported(f"a table of {table.dtype}")
    (count, width), (far, step) = table.shape, table.at.stride()
    flat = index if isinstance(index, NativeLeaf) else w.store(index)
    number = w.place(flat, list(flat.at.stride()))
    place = w.place(rows, list(rows.at.stride())[:-1])
    w.body.lines += [
        *loops(flat.shape),
        "{",
        f"{row} = {table.name} + {table.at.storage_offset()} + within({number}, {count}, bad) * {far};",
        f"{to} = &{place};",
        f"for (int j = 0; j < {width}; ++j) {line.format(step=step) if '{' in line else line}",
        "}",
    ]


def _joined_along(w: KernelScript, node: Node) -> Value:
    """Translate tensors that are put one after another: each is written to its place in new memory."""
    made = node.meta["val"]
    parts: Any = node.args[0]
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    axis = int(given) % made.dim()
    to, begin = w.new(tuple(made.shape), made.dtype), 0
    for part in parts:
        size = part.meta["val"].shape[axis]
        place = NativeLeaf(to.name, to.at.narrow(axis, begin, size), to.dtype)
        w.loop(place, w.cast(w.get(part, made.dtype), made.dtype))
        begin += size
    return to


def _flipped(w: KernelScript, node: Node) -> Value:
    """Translate one axis in reverse: its slices are copied from the last to the first."""
    made, axes = node.meta["val"], cast(Any, node.args[1])
    if len(axes) != 1:
        raise Unsupported("several axes in reverse")
    axis = int(axes[0]) % made.dim()
    given = w.cast(w.get(node.args[0], made.dtype), made.dtype)
    given = given if isinstance(given, NativeLeaf) and given.name and given.at.is_contiguous() else w.store(given)
    to, size = w.new(tuple(made.shape), made.dtype), made.shape[axis]
    before, after = math.prod(made.shape[:axis]), math.prod(made.shape[axis + 1 :])
    source = f"{given.name} + {given.at.storage_offset()}"
    w.body.lines += [
        f"for (i64 a = 0; a < {before}; ++a) for (i64 t = 0; t < {size}; ++t)",
        f"memcpy({to.name} + (a*{size} + t)*{after}, {source} + (a*{size} + {size - 1} - t)*{after}, {after * made.dtype.itemsize});",
    ]
    return to


LOOKUPS: dict[Any, Callable[[KernelScript, Node], Value]] = {
    aten.embedding.default: _embedding,
    aten.index_put.default: _summed_rows,
    aten.gather.default: _gather,
    aten.scatter.value: _scatter,
    aten.cat.default: _joined_along,
    aten.flip.default: _flipped,
}
