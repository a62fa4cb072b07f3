"""Values of a step in translation: entries of buffers, and pending expressions over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = [
    "Body",
    "Expr",
    "NativeLeaf",
    "CodeStatement",
    "Unsupported",
    "Value",
    "dtype_of",
    "leaves_of",
    "lifted",
    "merged",
    "meta",
    "permuted",
    "plain",
    "text_of",
]

Tensor = torch.Tensor


class Unsupported(Exception):  # noqa: N818 - not an error: the caller goes another way
    """The step contains something that cannot be translated."""


@dataclass
class Expr:
    """A value that is not computed yet: an expression over entries of buffers.

    Attributes:
        text: C++ with ``{0}``, ``{1}``, ... for the parts.
        parts: leaves or expressions; all have this expression's shape.
        shape: its shape.
        dtype: its type.
    """

    text: str
    parts: list[NativeLeaf | Expr]
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class NativeLeaf:
    """Entries of a buffer, or whole numbers that depend only on the position (``name=""``).

    Attributes:
        name: C++ expression of the buffer's first entry.
        at: shape, strides and offset, as a tensor without memory.
        dtype: type of the entries.
    """

    name: str
    at: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its shape."""
        return tuple(self.at.shape)


Value = NativeLeaf | Expr


@dataclass(frozen=True)
class CodeStatement:
    """What a program may do in many places, with other buffers.

    Attributes:
        lines: its text.
        entries: how many entries it goes over, if that is all that its sizes say.
        general: the same for ``n`` entries, if so.
    """

    lines: tuple[str, ...]
    entries: int = 0
    general: tuple[str, ...] = ()


@dataclass
class Body:
    """The text of a step.

    Attributes:
        lines: text, and statements that can be shared.
        buffers: declarations of the scratch memory.
        types: of the entries of buffers and constants, by name.
        room: size of the scratch memory in bytes.
    """

    lines: list[str | CodeStatement] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    room: int = 0


def meta(shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Tensor:
    """Return a layout: a tensor without memory."""
    made = torch.empty(shape, device="meta", dtype=torch.uint8)
    return made if strides is None else made.as_strided(shape, strides)


def lifted(leaf: NativeLeaf) -> NativeLeaf:
    """Return a matrix as a stack of one."""
    return NativeLeaf(leaf.name, leaf.at.unsqueeze(0), leaf.dtype)


def dtype_of(arg: Any) -> torch.dtype:
    """Return the type of a node's entries."""
    made: torch.dtype = arg.meta["val"].dtype
    return made


def leaves_of(value: Value) -> list[NativeLeaf]:
    """Return all entries that an expression reads, in order."""
    return [value] if isinstance(value, NativeLeaf) else [leaf for part in value.parts for leaf in leaves_of(part)]


def permuted(value: Value, order: list[int]) -> Value:
    """Return the value with its axes in another order."""
    if isinstance(value, NativeLeaf):
        return NativeLeaf(value.name, value.at.permute(order), value.dtype)
    shape = tuple(value.shape[d] for d in order)
    return Expr(value.text, [permuted(part, order) for part in value.parts], shape, value.dtype)


def plain(leaf: NativeLeaf, shape: tuple[int, ...]) -> bool:
    """Tell whether the entries are all of a variable's, in order."""
    return leaf.shape == shape and leaf.at.is_contiguous() and leaf.at.storage_offset() == 0


def text_of(value: Value, places: dict[int, str]) -> str:
    """Return the expression in C++, given where each leaf's entry is."""
    if isinstance(value, NativeLeaf):
        return places[id(value)]
    return value.text.format(*[text_of(part, places) for part in value.parts])


def merged(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """Fuse neighbouring axes that every operand passes with one stride; drop axes of one entry."""
    axes = [d for d, n in enumerate(shape) if n != 1]
    sizes = [shape[d] for d in axes]
    steps = [[s[d] for d in axes] for s in strides]
    d = 0
    while d + 1 < len(sizes):
        if all(s[d] == s[d + 1] * sizes[d + 1] for s in steps):
            sizes[d : d + 2] = [sizes[d] * sizes[d + 1]]
            for s in steps:
                del s[d]
        else:
            d += 1
    return sizes, steps
