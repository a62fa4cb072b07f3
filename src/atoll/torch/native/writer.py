"""C++ text: values and their places in memory, statements and loops, and lanes of a vector register."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from .operations import C_TYPES, literal

__all__ = [
    "GUARD",
    "Body",
    "CodeStatement",
    "Expr",
    "KernelScript",
    "LaneRow",
    "Mixed",
    "NativeLeaf",
    "Unsupported",
    "Value",
    "dtype_of",
    "leaves_of",
    "lift_matrix",
    "loops",
    "merge_axes",
    "meta",
    "nest",
    "permute_axes",
    "plain",
    "text_of",
]

# Values of a step in translation: entries of buffers, and pending expressions over them.


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


def lift_matrix(leaf: NativeLeaf) -> NativeLeaf:
    """Return a matrix as a stack of one."""
    return NativeLeaf(leaf.name, leaf.at.unsqueeze(0), leaf.dtype)


def dtype_of(arg: Any) -> torch.dtype:
    """Return the type of a node's entries."""
    made: torch.dtype = arg.meta["val"].dtype
    return made


def leaves_of(value: Value) -> list[NativeLeaf]:
    """Return all entries that an expression reads, in order."""
    return [value] if isinstance(value, NativeLeaf) else [leaf for part in value.parts for leaf in leaves_of(part)]


def permute_axes(value: Value, order: list[int]) -> Value:
    """Return the value with its axes in another order."""
    if isinstance(value, NativeLeaf):
        return NativeLeaf(value.name, value.at.permute(order), value.dtype)
    shape = tuple(value.shape[d] for d in order)
    return Expr(value.text, [permute_axes(part, order) for part in value.parts], shape, value.dtype)


def plain(leaf: NativeLeaf, shape: tuple[int, ...]) -> bool:
    """Tell whether the entries are all of a variable's, in order."""
    return leaf.shape == shape and leaf.at.is_contiguous() and leaf.at.storage_offset() == 0


def text_of(value: Value, places: dict[int, str]) -> str:
    """Return the expression in C++, given where each leaf's entry is."""
    if isinstance(value, NativeLeaf):
        return places[id(value)]
    return value.text.format(*[text_of(part, places) for part in value.parts])


def merge_axes(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
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


# The text of a step while it is written: buffers, expressions that are not computed yet, and loops over them.


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
        made = self.store(permute_axes(value, order))
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
        self.along(to, value, *merge_axes(to.shape, [leaf.at.stride() for leaf in leaves]), how)

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
            lambda: [*loops(sizes[:-1]), "{", *row.move_lanes(to, value, how), "}"], nest(sizes, [text]), sizes, general
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


# Elementwise expressions over a vector of lanes, for processors whose loads and stores can leave lanes out.
#
# A row of ten entries is then one vector with six idle lanes, where a compiler would take eight entries together and two
# separately. Expressions that mix types, or look entries up, are left to the compiler.


GUARD = "#if defined(__AVX512F__) && defined(__AVX512VL__)"
_SAME = (
    *(f"({{0}} {sign} {{1}})" for sign in ("+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=")),
    *(f"{name}({{0}}, {{1}})" for name in ("larger", "smaller")),
    *(f"{name}({{0}})" for name in ("relu", "f_exp", "f_log", "f_sigmoid", "f_tanh", "f_erf", "f_sqrt")),
    "(-{0})", "(1.0f / {0})", "(1.0f / f_sqrt({0}))", "({0})", "({0} * {0})", "({0} * {0} * {0})",
)  # fmt: skip
_TEXTS = {**{text: text for text in _SAME}, "({0} ? {1} : {2})": "pick({0}, {1}, {2})"}
_SOME = "some"
_SHORTEST = 4  # entries of a row; shorter ones are left to the compiler


class Mixed(Exception):  # noqa: N818 - not an error: the caller goes another way
    """The expression has something that is not a plain operation on floats."""


class LaneRow:
    """The innermost loop of a statement.

    Args:
        places: the C++ of each leaf's entry, by the leaf's `id`.
        steps: each leaf's stride along the row.
        sizes: of all loops.
    """

    def __init__(self, places: dict[int, str], steps: dict[int, int], sizes: Sequence[int]) -> None:
        self._places = places
        self._steps = steps
        self._sizes = list(sizes)
        self._count = self._sizes[-1] if self._sizes else 1
        self._axis = f"i{len(self._sizes) - 1}"

    def move_lanes(self, to: NativeLeaf, value: Value, how: str) -> list[str]:
        """``to[i] = value[i]`` or ``to[i] += value[i]``.

        Raises:
            Mixed: the value is not an expression over floats that lie side by side.
        """
        if to.dtype != torch.float32 or self._steps[id(to)] != 1:
            raise Mixed
        return self._along(lambda part: self._move_part(to, value, how, part))

    def _move_part(self, to: NativeLeaf, value: Value, how: str, part: str) -> str:
        there = f"&{self._places[id(to)]}"
        before = f"{_name_function('load', part)}({there}) + " if how == "+=" else ""
        return f"{_name_function('store', part)}({there}, {before}{self._wide(value, part)});"

    def any(self, to: NativeLeaf, value: Value, how: str) -> list[str]:
        """Do what `move_lanes` does, over ``n`` entries instead of the row's own number."""
        if to.dtype != torch.float32 or self._steps[id(to)] != 1 or self._count < _SHORTEST:
            raise Mixed
        whole, rest = (self._move_part(to, value, how, part) for part in ("", _SOME))
        return [
            f"int {self._axis} = 0;",
            f"for (; {self._axis} + L <= n; {self._axis} += L) {{ {whole} }}",
            f"if ({self._axis} < n) {{ const Some some(n - {self._axis}); {rest} }}",
        ]

    def fold_axes(self, to: NativeLeaf, place: str, value: Value, split: int, name: str) -> list[str]:
        """Fold everything from the axis ``split`` on into one entry; see `move_lanes`."""
        if to.dtype != torch.float32:
            raise Mixed
        first, step, end = _FOLDS[name]

        def line(part: str) -> str:
            made = self._wide(value, part)
            return f"acc = {step.format(f'only{part}({made}, {first})' if part else made)};"

        around = loops(self._sizes[split:-1], split)
        return [f"V acc = wide({first});", *around, "{", *self._along(line), "}", f"{place} = {end}(acc);"]

    def stack_axes(self, to: NativeLeaf, place: str, value: Value, split: int, name: str) -> list[str]:
        """Fold the axes before ``split`` entry by entry of a row; see `move_lanes`."""
        if to.dtype != torch.float32:
            raise Mixed
        first, step, _ = _FOLDS[name]

        def line(part: str) -> str:
            inner = [*loops(self._sizes[:split]), f"acc = {step.format(self._wide(value, part))};"]
            return " ".join([f"V acc = wide({first});", *inner, f"store{part}(&{place}, acc);"])

        return self._along(line)

    def _along(self, line: Callable[[str], str]) -> list[str]:
        """Handle whole vectors, then the rest."""
        n, axis = self._count, self._axis
        if n < _SHORTEST:
            raise Mixed
        return [
            f"for (int {axis} = 0; {axis} + L <= {n}; {axis} += L) {{ {line('')} }}",
            f"if constexpr ({n} % L > 0) {{ constexpr int {axis} = {n} - {n} % L; {line(f'_part<{n} % L>')} }}",
        ]

    def _wide(self, value: Value, part: str) -> str:
        """Return the expression as a vector."""
        text, wide = self._text(value, part)
        return text if wide else f"wide({text})"

    def _text(self, value: Value, part: str) -> tuple[str, bool]:
        """Return the expression, and whether it is a vector or the same for the whole row."""
        if isinstance(value, NativeLeaf):
            place = self._places[id(value)]
            if not self._steps[id(value)]:
                return place, False
            if value.dtype != torch.float32 or self._steps[id(value)] != 1 or not value.name:
                raise Mixed
            return f"{_name_function('load', part)}(&{place})", True
        parts = [self._text(some, part) for some in value.parts]
        texts = [text for text, _ in parts]
        if not any(wide for _, wide in parts):
            return value.text.format(*texts), False
        text = value.text if value.text.startswith("sampled<") else _TEXTS.get(value.text)
        if text is None:
            raise Mixed
        return text.format(*texts), True


def _name_function(verb: str, part: str) -> str:
    """Return the name of a function for a part of a vector: ``""`` for all lanes, ``"_part<T>"`` for ``T``, or those that `Some` holds."""
    return f"some.{verb}" if part == _SOME else f"{verb}{part}"


def loops(sizes: Sequence[int | str], first: int = 0) -> list[str]:
    """Return the heads of nested loops over ``i<first>``, ``i<first + 1>``, ..."""
    return [f"for (int i{d} = 0; i{d} < {n}; ++i{d})" for d, n in enumerate(sizes, first)]


def nest(sizes: Sequence[int | str], inner: list[str]) -> list[str]:
    """Return nested loops, of which the last may run in any order."""
    heads = loops(sizes)
    return [*heads[:-1], *(["#pragma omp simd", heads[-1]] if heads else []), "{", *inner, "}"]


_FOLDS = {
    "amax": ("-INF", "larger(acc, {0})", "largest"),
    "amin": ("INF", "smaller(acc, {0})", "smallest"),
    "sum": ("0.0f", "acc + {0}", "total"),
    "mean": ("0.0f", "acc + {0}", "total"),
}
