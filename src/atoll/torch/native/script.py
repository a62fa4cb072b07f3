"""The text of a step while it is written: buffers, expressions that are not computed yet, and loops over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx import Node

from .lanes import GUARD, LaneRow, Mixed, loops, nest
from .ops import C_TYPES, literal
from .values import (
    Body,
    CodeStatement,
    Expr,
    NativeLeaf,
    Unsupported,
    Value,
    leaves_of,
    merged,
    meta,
    permuted,
    text_of,
)

__all__ = ["KernelScript"]


class KernelScript:
    """Writes statements and keeps the values of a graph's nodes.

    Attributes:
        body: the text so far.
        values: the nodes that are still needed.
    """

    def __init__(self) -> None:
        self.body = Body()
        self.values: dict[Node, Value] = {}
        self.parts: dict[tuple[Node, int], NativeLeaf] = {}  # of operations with several results
        self._forms: dict[str, tuple[torch.dtype, int]] = {}  # of the scratch memory, by name
        self._free: dict[tuple[torch.dtype, int], list[str]] = {}

    def get(self, arg: Any, dtype: torch.dtype) -> Value:
        """Return the value of a node, or a number in the given type."""
        if isinstance(arg, Node):
            return self.values[arg]
        if isinstance(arg, bool | int | float):
            return Expr(literal(arg, dtype), [], (), dtype)
        raise Unsupported(f"an argument of type {type(arg).__name__}")

    def leaf(self, arg: Any) -> NativeLeaf:
        """Return the value of a node in memory."""
        value = self.get(arg, torch.float32)
        return value if isinstance(value, NativeLeaf) and value.name else self.store(value)

    def operand(self, arg: Any) -> NativeLeaf:
        """Return a value that a product may read in any order: a transposed expression is stored in memory order."""
        value = self.get(arg, torch.float32)
        if isinstance(value, NativeLeaf) or not value.parts:
            return self.leaf(arg)
        strides = max((leaf.at.stride() for leaf in leaves_of(value)), key=lambda s: sum(n > 0 for n in s))
        order = sorted(range(len(strides)), key=lambda d: -strides[d])
        made = self.store(permuted(value, order))
        return NativeLeaf(made.name, made.at.permute([order.index(d) for d in range(len(order))]), made.dtype)

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> NativeLeaf:
        """Return scratch memory that no value is in."""
        form = (dtype, max(1, math.prod(shape)))
        if self._free.get(form):
            return NativeLeaf(self._free[form].pop(), meta(shape), dtype)
        name = f"t{len(self.body.buffers)}"
        self._forms[name] = form
        self.body.buffers.append(f"alignas(64) {C_TYPES[dtype]} {name}[{form[1]}];")
        self.body.types[name] = C_TYPES[dtype]
        self.body.room += -(-form[1] * dtype.itemsize // 64) * 64
        return NativeLeaf(name, meta(shape), dtype)

    def release(self) -> None:
        """Let memory be used again that no value is in any more; call it between operations."""
        held = (*self.values.values(), *self.parts.values())
        needed = {leaf.name for value in held for leaf in leaves_of(value)}
        self._free = {}
        for name, form in self._forms.items():
            if name not in needed:
                self._free.setdefault(form, []).append(name)

    def store(self, value: Value) -> NativeLeaf:
        """Compute a value into new memory."""
        made = self.new(value.shape, value.dtype)
        self.loop(made, value)
        return made

    def settle(self, but: Collection[Node] = ()) -> None:
        """Compute pending values, except some, before memory that they may read is overwritten."""
        for node, value in self.values.items():
            if node not in but and isinstance(value, Expr) and value.parts:
                self.values[node] = self.store(value)

    def spread(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Return the value over a larger shape; costly expressions are computed once before."""
        if value.shape == shape:
            return value
        if isinstance(value, NativeLeaf):
            return NativeLeaf(value.name, value.at.expand(shape), value.dtype)
        if value.parts and math.prod(value.shape) < math.prod(shape):
            return self.spread(self.store(value), shape)
        return Expr(value.text, [self.spread(part, shape) for part in value.parts], shape, value.dtype)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Return the value in another type."""
        if value.dtype == dtype:
            return value
        text = "uint8_t(({0}) != 0)" if dtype == torch.bool else f"{C_TYPES[dtype]}({{0}})"
        return Expr(text, [value], value.shape, dtype)

    def loop(self, to: NativeLeaf, value: Value, how: str = "=") -> None:
        """``to[i] = value[i]`` for all i, over as few axes as the strides allow."""
        value = self.spread(value, to.shape)
        leaves = [to, *leaves_of(value)]
        self.along(to, value, *merged(to.shape, [leaf.at.stride() for leaf in leaves]), how)

    def along(self, to: NativeLeaf, value: Value, sizes: list[int], strides: list[list[int]], how: str) -> None:
        """Write that statement in loops of these sizes, given the strides of ``to`` and of the value's leaves."""
        leaves = [to, *leaves_of(value)]
        places = {id(leaf): self.place(leaf, steps) for leaf, steps in zip(leaves, strides, strict=True)}
        text = f"{places[id(to)]} {how} {text_of(value, places)};"
        row = LaneRow(
            places, {id(leaf): (steps or [0])[-1] for leaf, steps in zip(leaves, strides, strict=True)}, sizes
        )
        general: list[str] = []
        if len(sizes) == 1:
            general = _either(lambda: row.any(to, value, how), nest(["n"], [text]))
        self.write(
            lambda: [*loops(sizes[:-1]), "{", *row.moved(to, value, how), "}"], nest(sizes, [text]), sizes, general
        )

    def write(
        self, lanes: Callable[[], list[str]], plain: list[str], sizes: Sequence[int] = (), general: Sequence[str] = ()
    ) -> None:
        """Write a statement as vector code if the processor and the table support it, else as plain code.

        Args:
            lanes: returns the vector code.
            plain: the plain code.
            sizes: of the loops.
            general: the same for any number of entries, if there is one loop.
        """
        entries = sizes[0] if general else 0
        self.body.lines.append(CodeStatement(tuple(_either(lanes, plain)), entries, tuple(general)))

    def place(self, leaf: NativeLeaf, strides: list[int]) -> str:
        """Return the C++ of a leaf's entry in loops over ``i0``, ``i1``, ... with these strides."""
        terms = [f"i{d}*{step}" if step != 1 else f"i{d}" for d, step in enumerate(strides) if step]
        offset = int(leaf.at.storage_offset())
        index = " + ".join([*terms, *([str(offset)] if offset or not terms else [])])
        return f"{leaf.name}[{index}]" if leaf.name else f"i64({index})"


def _either(lanes: Callable[[], list[str]], plain: list[str]) -> list[str]:
    """Return vector code for processors that support it and plain code for the others, or plain code alone."""
    try:
        return [GUARD, *lanes(), "#else", *plain, "#endif"]
    except Mixed:
        return plain
