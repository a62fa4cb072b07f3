"""Entries that move: rows of a table and entries along an axis by number, the sums that go back to them; tensors joined, or reversed along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import Node

from .operations import C_TYPES, literal
from .writer import (
    Expr,
    KernelScript,
    NativeLeaf,
    Unsupported,
    Value,
    dtype_of,
    leaves_of,
    loops,
    permute_axes,
    text_of,
)

__all__ = ["LOOKUPS", "SEVERAL"]

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


def _rows(w: KernelScript, node: Node) -> Value:
    """Entries of one axis by number: ``out[..., i, ...] = base[..., index[i], ...]``."""
    numbers: Any = node.args[1]
    if node.target is aten.index_select.default:
        numbers = [*[None] * (int(cast(Any, numbers)) % node.meta["val"].dim()), node.args[2]]
    given = [d for d, number in enumerate(numbers) if number is not None]
    if len(given) != 1 or dtype_of(numbers[given[0]]) != torch.int64:
        raise Unsupported("entries by several numbers, or by a mask")
    (axis,), base, index = given, w.leaf(node.args[0]), w.get(numbers[given[0]], torch.int64)
    shape, after = tuple(node.meta["val"].shape), base.at.dim() - axis - 1
    index = index if isinstance(index, NativeLeaf) else w.store(index)
    number = NativeLeaf(index.name, index.at[(..., *[None] * after)].expand(shape), torch.int64)
    steps = list(base.at.stride())
    steps[axis : axis + 1] = [0] * (len(shape) - after - axis)
    there = NativeLeaf(base.name, base.at.as_strided(shape, steps, base.at.storage_offset()), base.dtype)
    text = f"(&{{0}})[within({{1}}, {base.shape[axis]}, bad) * {base.at.stride(axis)}]"
    return Expr(text, [there, number], shape, base.dtype)


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


def _flip_axes(w: KernelScript, node: Node) -> Value:
    """Translate axes in reverse: slices are copied from the last to the first."""
    made, axes = node.meta["val"], cast(Any, node.args[1])
    given = w.cast(w.get(node.args[0], made.dtype), made.dtype)
    given = given if isinstance(given, NativeLeaf) and given.name and given.at.is_contiguous() else w.store(given)
    for axis in axes:
        given = _reverse_axis(w, given, int(axis) % made.dim())
    return given


def _reverse_axis(w: KernelScript, given: NativeLeaf, axis: int) -> NativeLeaf:
    to, size = w.new(given.shape, given.dtype), given.shape[axis]
    before, after = math.prod(given.shape[:axis]), math.prod(given.shape[axis + 1 :])
    source = f"{given.name} + {given.at.storage_offset()}"
    w.body.lines += [
        f"for (i64 a = 0; a < {before}; ++a) for (i64 t = 0; t < {size}; ++t)",
        f"memcpy({to.name} + (a*{size} + t)*{after}, {source} + (a*{size} + {size - 1} - t)*{after}, {after * given.dtype.itemsize});",
    ]
    return to


def _pad_entries(w: KernelScript, node: Node) -> Value:
    """Translate a frame of one number around the entries."""
    made, sides = node.meta["val"], cast(Any, node.args[1])
    number: Any = node.args[2] if len(node.args) > 2 else 0
    if any(side < 0 for side in sides):
        raise Unsupported("a frame that cuts off")
    to = w.new(tuple(made.shape), made.dtype)
    w.loop(to, Expr(literal(number, made.dtype), [], to.shape, made.dtype))
    inside, given = to.at, w.cast(w.get(node.args[0], made.dtype), made.dtype)
    for i, before in enumerate(sides[::2]):
        axis = made.dim() - 1 - i
        inside = inside.narrow(axis, before, given.shape[axis])
    w.loop(NativeLeaf(to.name, inside, to.dtype), given)
    return to


def _put_between(w: KernelScript, node: Node) -> Value:
    """Translate a tensor with other entries in a slice of it."""
    made = node.meta["val"]
    given: Any = {**dict(zip(("dim", "start", "end", "step"), node.args[2:], strict=False)), **node.kwargs}
    axis = int(given.get("dim", 0)) % made.dim()
    size = made.shape[axis]
    begin, end = given.get("start") or 0, size if given.get("end") is None else given["end"]
    begin, end = (min(n + size * (n < 0), size) for n in (begin, end))
    to = w.new(tuple(made.shape), made.dtype)
    w.loop(to, w.cast(w.get(node.args[0], made.dtype), made.dtype))
    places = [slice(None)] * axis + [slice(begin, end, given.get("step", 1))]
    w.loop(NativeLeaf(to.name, to.at[tuple(places)], to.dtype), w.cast(w.get(node.args[1], made.dtype), made.dtype))
    return to


def _sample_images(w: KernelScript, node: Node) -> Value:
    """Images between their pixels; see the template ``sampled``."""
    if tuple(node.args[2:5]) != (0, 0, True) or node.meta["val"].dtype != torch.float32:
        raise Unsupported("images sampled in another way")
    images, grid, shape = w.leaf(node.args[0]), w.get(node.args[1], torch.float32), tuple(node.meta["val"].shape)
    height, width = images.shape[2:]
    (far, plane, sy, sx), offset = images.at.stride(), images.at.storage_offset()
    image = f"{images.name} + {offset} + i0*{far} + i1*{plane}"
    places = [_coordinate(grid, i, shape) for i in range(2)]
    value = Expr(f"sampled<{height}, {width}, {sy}, {sx}>({image}, {{0}}, {{1}})", places, shape, torch.float32)
    to = w.new(shape, torch.float32)
    w.along(to, value, list(shape), [list(leaf.at.stride()) for leaf in (to, *leaves_of(value))], "=")
    return to


def _coordinate(value: Value, i: int, shape: tuple[int, ...]) -> Value:
    """Return one entry of the last axis, for every channel."""
    if isinstance(value, NativeLeaf):
        return NativeLeaf(value.name, value.at[..., i].unsqueeze(1).expand(shape), value.dtype)
    return Expr(value.text, [_coordinate(part, i, shape) for part in value.parts], shape, value.dtype)


def _largest(w: KernelScript, node: Node) -> list[NativeLeaf]:
    """The largest entry along an axis, and its number: the first of equal ones; one that is not a number wins."""
    source, axis = (
        w.get(node.args[0], torch.float32),
        int(cast(Any, node.args[1] if len(node.args) > 1 else node.kwargs["dim"])),
    )
    axis %= len(source.shape)
    kept = [d for d in range(len(source.shape)) if d != axis]
    turned = permute_axes(source, [*kept, axis])
    shape = tuple(source.shape[d] for d in kept)
    largest, at = w.new(shape, source.dtype), w.new(shape, torch.int64)
    places = {id(leaf): w.place(leaf, list(leaf.at.stride())) for leaf in leaves_of(turned)}
    best, place = (w.place(leaf, list(leaf.at.stride())) for leaf in (largest, at))
    w.body.lines += [
        *loops(shape),
        "{",
        f"auto most = {C_TYPES[source.dtype]}(0); i64 found = -1;",
        f"for (int i{len(shape)} = 0; i{len(shape)} < {source.shape[axis]}; ++i{len(shape)}) {{",
        f"const auto other = {text_of(turned, places)};",
        f"if (found < 0 || other > most || (other != other && most == most)) most = other, found = i{len(shape)};",
        "}",
        f"{best} = most; {place} = found;",
        "}",
    ]
    wide = [1 if d == axis else n for d, n in enumerate(source.shape)]
    keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return [NativeLeaf(leaf.name, leaf.at.view(wide) if keep else leaf.at, leaf.dtype) for leaf in (largest, at)]


def _parts(w: KernelScript, node: Node) -> list[NativeLeaf]:
    """Views of the parts of an axis."""
    base, sizes = w.leaf(node.args[0]), [part.shape for part in node.meta["val"]]
    axis = int(cast(Any, node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0))) % base.at.dim()
    ends = [sum(shape[axis] for shape in sizes[: i + 1]) for i in range(len(sizes))]
    cuts = zip(ends, sizes, strict=True)
    return [
        NativeLeaf(base.name, base.at.narrow(axis, end - shape[axis], shape[axis]), base.dtype) for end, shape in cuts
    ]


def _number_of_largest(w: KernelScript, node: Node) -> Value:
    if len(node.args) < 2 or node.args[1] is None:
        raise Unsupported("the number of the largest of all entries")
    return _largest(w, node)[1]


SEVERAL: dict[Any, Callable[[KernelScript, Node], list[NativeLeaf]]] = {
    aten.max.dim: _largest,
    aten.split.Tensor: _parts,
    aten.split_with_sizes.default: _parts,
}
LOOKUPS: dict[Any, Callable[[KernelScript, Node], Value]] = {
    aten.embedding.default: _embedding,
    aten.index_put.default: _summed_rows,
    aten.gather.default: _gather,
    aten.scatter.value: _scatter,
    aten.cat.default: _joined_along,
    aten.flip.default: _flip_axes,
    aten.index.Tensor: _rows,
    aten.index_select.default: _rows,
    aten.slice_scatter.default: _put_between,
    aten.constant_pad_nd.default: _pad_entries,
    aten.grid_sampler_2d.default: _sample_images,
    aten.argmax.default: _number_of_largest,
}
