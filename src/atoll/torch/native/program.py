"""The program around the translated phases: memory of a client, of a thread and of a part of the clients, and the loop over all clients."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from .elementwise import ELEMENTWISE, PRODUCTS, REDUCTIONS, pointwise, view
from .lookups import LOOKUPS, SEVERAL
from .operations import C_TYPES, POINTWISE, VIEWS, literal
from .orders import ORDERS
from .recurrence import TEMPLATES, recurrent_rules, recurs
from .templates import LOOP, PREAMBLE, TILES
from .writer import (
    Body,
    CodeStatement,
    Expr,
    KernelScript,
    NativeLeaf,
    Unsupported,
    Value,
    dtype_of,
    leaves_of,
    meta,
    plain,
)

__all__ = ["MOST", "NativeColumn", "emit", "program", "share"]

# From a traced step to C++: elementwise chains become one loop, small products become calls of a template.
#
# Only operations that are known to be exact are translated. An operation, a type or a layout outside the tables raises
# `Unsupported`, and PyTorch's own generator compiles the step instead.


Tensor = torch.Tensor
_CONSTANT = 1 << 16  # entries of a constant in the text
_RULES = {**ELEMENTWISE, **REDUCTIONS, **PRODUCTS, **LOOKUPS}


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
        self.module = gm
        self.names = names
        self.targets = targets
        self.script = KernelScript()
        self.done: set[Node] = set()

    def run(self) -> Body:
        inputs = 0
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.script.values[node] = self._input(node, inputs)
                inputs += 1
            elif node.op == "get_attr":
                self.script.values[node] = self._constant(node)
            elif node.op == "call_function":
                self._operation(node)
                self._forget(node)
            elif node.op == "output":
                self._output(node)
            else:
                raise Unsupported(node.op)
        return self.script.body

    def _forget(self, node: Node) -> None:
        """Drop values that are no longer needed, and free their memory."""
        self.done.add(node)
        for arg in node.all_input_nodes:
            if self.done.issuperset(arg.users):
                self.script.values.pop(arg, None)
                self.script.parts = {key: leaf for key, leaf in self.script.parts.items() if key[0] is not arg}
        self.script.release()

    def _input(self, node: Node, number: int) -> NativeLeaf:
        value = node.meta["val"]
        if node.users and (value.dtype not in C_TYPES or not _dense(value)):
            raise Unsupported(f"an input of type {value.dtype} and strides {value.stride()}")
        return NativeLeaf(self.names[number], meta(tuple(value.shape), value.stride()), value.dtype)

    def _constant(self, node: Node) -> Value:
        """Write the entries of a tensor from before the recording into the text."""
        held: Tensor = getattr(self.module, str(node.target))
        if held.dtype not in C_TYPES or held.numel() > _CONSTANT:
            raise Unsupported(f"a constant of {held.numel()} entries of type {held.dtype}")
        entries = [literal(number, held.dtype) for number in held.reshape(-1).tolist()]
        if len(set(entries)) == 1:
            return Expr(entries[0], [], tuple(held.shape), held.dtype)
        name = f"k{len(self.script.body.lines)}"
        self.script.body.lines.append(
            f"static const {C_TYPES[held.dtype]} {name}[{len(entries)}] = {{{', '.join(entries)}}};"
        )
        self.script.body.types[name] = f"const {C_TYPES[held.dtype]}"
        return NativeLeaf(name, meta(tuple(held.shape)), held.dtype)

    def _output(self, node: Node) -> None:
        """Write all outputs, after computing what reads a variable that is overwritten."""
        outputs: Any = node.args[0]
        written = {name for name, _ in self.targets}
        moves: list[tuple[NativeLeaf, Value, str]] = []
        for made, (name, how) in zip(outputs, self.targets, strict=True):
            value = self.script.get(made, dtype_of(made))
            same = [leaf.name == name and plain(leaf, value.shape) for leaf in leaves_of(value)]
            if isinstance(value, NativeLeaf) and all(same) and how == "=":
                continue  # updated in place, or never changed
            apart = [leaf.name not in written for leaf in leaves_of(value)]
            if not all(a or s for a, s in zip(apart, same, strict=True)):
                value = self.script.store(value)
            moves.append((NativeLeaf(name, meta(value.shape), value.dtype), value, how))
        for to, value, how in moves:
            self.script.loop(to, value, how)

    def _operation(self, node: Node) -> None:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            self.script.values[node] = self.script.parts[node.args]  # type: ignore[index]
            return
        several = SEVERAL.get(node.target) or recurrent_rules().get(
            getattr(node.target, "_name", "").removesuffix(".default")
        )
        if several is not None:
            self.script.parts |= {(node, i): leaf for i, leaf in enumerate(several(self.script, node))}
            return
        if not isinstance(value, Tensor) or value.dtype not in C_TYPES:
            raise Unsupported(f"{node.target} of type {getattr(value, 'dtype', type(value))}")
        rule = _RULES.get(node.target)
        if rule is not None:
            made = rule(self.script, node)
        elif node.target in VIEWS:
            made = view(self.script, node, cast(Any, node.target))
        elif node.target in POINTWISE:
            made = pointwise(self.script, node)
        else:
            raise Unsupported(str(node.target))
        if isinstance(made, Expr) and made.parts and len(node.users) > 1:
            made = self.script.store(made)
        self.script.values[node] = made


def _dense(value: Tensor) -> bool:
    """Tell whether the entries lie side by side, in whatever order of axes."""
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    return value.permute(order).is_contiguous()


# Statements that a long program has in several places, as one function each: a compiler's time grows with the text.


# Statements from which on they are shared. A program with fewer compiles in a second or two, and its calls would cost some of its speed. A
# Transformer had 439 statements, of which 168 differ: sharing took its text from 6,358 lines to 3,103, and the compiler from 5.3 s to 2.9.
_LONG = 150
_NAME = re.compile(r"\b[xtk]\d+\b")  # a column, a buffer, a constant


def share(bodies: Mapping[str, Body], columns: Mapping[str, str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return functions, and each body's lines, which call them.

    Two statements are alike if they differ in the buffers alone, or also in the number of entries that they go over. A function's arguments
    are that number, the flag of look-ups outside, and the buffers, which do not overlap. Programs of few statements stay as they are.

    Args:
        bodies: by name.
        columns: types of the columns' entries, by name.
    """
    written = {name: [_Written(line, body.types, columns) for line in body.lines] for name, body in bodies.items()}
    found = Counter(one.key for lines in written.values() for one in lines if one.key is not None)
    functions: dict[tuple[str, ...], str] = {}
    if sum(found.values()) >= _LONG:
        functions = {key: f"same{i}" for i, key in enumerate(key for key, times in found.items() if times > 1)}
    texts = [_function(name, *key) for key, name in functions.items()]
    return texts, {name: [text for one in lines for text in one.lines(functions)] for name, lines in written.items()}


class _Written:
    """A line of a body.

    Attributes:
        key: the text with buffers by their order, and their types; ``None`` if it is not a statement.
    """

    def __init__(self, line: str | CodeStatement, types: Mapping[str, str], columns: Mapping[str, str]) -> None:
        self._line = line
        self.key: tuple[str, ...] | None = None
        if isinstance(line, CodeStatement):
            text = "\n".join(line.general or line.lines)
            self._names = list(dict.fromkeys(_NAME.findall(text)))
            order = {name: f"a{i}" for i, name in enumerate(self._names)}
            kinds = [types.get(name) or columns[name] for name in self._names]
            self.key = (_NAME.sub(lambda found: order[found[0]], text), *kinds)

    def lines(self, functions: Mapping[tuple[str, ...], str]) -> Sequence[str]:
        """Return its text, given the functions by key."""
        if isinstance(self._line, str):
            return [self._line]
        if self.key is None or self.key not in functions:
            return self._line.lines
        return [f"{functions[self.key]}({', '.join([str(self._line.entries), 'bad', *self._names])});"]


def _function(name: str, text: str, *kinds: str) -> str:
    buffers = [f"{kind}* __restrict a{i}" for i, kind in enumerate(kinds)]
    head = f"APART void {name}({', '.join(['int n', 'i64& bad', *buffers])})"
    return f"{head} {{\n(void)n; (void)bad;\n{text}\n}}"


MOST = 64  # threads of one call


@dataclass(frozen=True)
class NativeColumn:
    """Memory that native code reads or writes.

    Attributes:
        example: a tensor with the shape and type of one entry.
        per: one entry in all (``"job"``), one for each ``"client"`` or ``"step"``, or a pool of single rows of which a
            step takes some (``"row"``; the example is one mini-batch, with an axis of one step); one for each
            ``"part"`` of the clients, zero at its beginning; or one for each ``"thread"``, which only the code sees.
            ``"drawn"`` says which rows of a step are real, and is made as they are drawn.
    """

    example: torch.Tensor
    per: str


def program(columns: Sequence[NativeColumn], bodies: dict[str, Body], used: list[bool]) -> str:
    """Return the C++ text, given the columns, the translated phases and which columns they use."""
    sizes = [max(1, math.prod(c.example.shape)) * c.example.element_size() for c in columns]
    pooled = [i for i, c in enumerate(columns) if c.per == "row"]
    batch = columns[pooled[0]].example.shape[1]
    taken = [i for i in pooled if used[i]]
    own = [i for i, c in enumerate(columns) if c.per == "thread"]
    shared, lines = share(bodies, {f"x{i}": _type(c) for i, c in enumerate(columns)})
    scratch, functions = _phases(columns, bodies, lines)
    recurrent = any(recurs(body) for body in bodies.values())
    return "\n".join(
        [
            PREAMBLE,
            f"constexpr bool LONG = {'true' if shared else 'false'};",
            TILES,
            *[TEMPLATES] * recurrent,
            f"constexpr int COUNT = {len(columns)}, MOST = {MOST};",
            *[_table(name, columns, sizes, used) for name in ("CLIENT", "STEP", "PART")],
            "struct Fetched {",
            *[f"alignas(64) char g{i}[{sizes[i]}];" for i in taken],
            "float* weights;",
            "};",
            "struct alignas(64) Scratch {",
            *scratch,
            *[f"alignas(64) char h{i}[{sizes[i]}];" for i in own],
            "Fetched fetched[2];",
            "};",
            f"constexpr i64 BATCH = {batch};",
            "static void fetch(char** given, Fetched& to, const i64* rows, float* weights) {",
            "(void)given; (void)rows;",
            "to.weights = weights;",
            *[_fetch(i, sizes[i] // batch, batch) for i in taken],
            "}",
            "static void expect(char** given, const i64* rows) {",
            "(void)given; (void)rows;",
            *[_expect(i, sizes[i] // batch, batch) for i in taken],
            "}",
            "static void point(char** p, Fetched& from) {",
            "(void)p; (void)from;",
            *[f"p[{i}] = from.g{i};" for i in taken],
            *[f"p[{i}] = (char*)from.weights;" for i, c in enumerate(columns) if c.per == "drawn"],
            "}",
            "static void hold(char** p, Scratch& scratch) {",
            "(void)p; (void)scratch;",
            *[f"p[{i}] = scratch.h{i};" for i in own],
            "}",
            *shared,
            *functions,
            ORDERS,
            LOOP,
        ]
    )


def _table(per: str, columns: Sequence[NativeColumn], sizes: list[int], used: list[bool]) -> str:
    """Return how far apart the entries of each column are, for columns with one entry per client, step or part."""
    made = [
        size if c.per == per.lower() and (u or per != "STEP") else 0
        for c, size, u in zip(columns, sizes, used, strict=True)
    ]
    return f"constexpr i64 PER_{per}[COUNT] = {{{', '.join(map(str, made))}}};"


def _type(column: NativeColumn) -> str:
    """Return the C++ type of a column's entries; only code that reads none of them meets ``char``."""
    return C_TYPES.get(column.example.dtype, "char")


def _phases(
    columns: Sequence[NativeColumn], bodies: dict[str, Body], lines: dict[str, list[str]]
) -> tuple[list[str], list[str]]:
    """Return declarations of the phases' buffers, and their functions."""
    begin = [f"{_type(c)}* __restrict x{i} = ({_type(c)}*)p[{i}]; (void)x{i};" for i, c in enumerate(columns)]
    scratch, functions = [], []
    for name in ("start", "step", "finish"):
        body = bodies.get(name, Body())
        # The phases' buffers follow one another in the scratch memory, so their names must differ.
        scratch += [line.replace(" t", f" {name}_t") for line in body.buffers]
        names = [line.split()[-1].partition("[")[0] for line in body.buffers]
        functions += [
            f"static void {name}(char** p, Scratch& scratch, i64& bad) {{",
            "(void)p; (void)scratch; (void)bad;",
            *(begin if body.lines else []),
            *[f"auto& {t} = scratch.{name}_{t};" for t in names],
            *lines.get(name, []),
            "}",
        ]
    return scratch, functions


def _fetch(i: int, size: int, batch: int) -> str:
    """Copy one mini-batch's rows of a column to where the step reads them."""
    return f"for (int b = 0; b < {batch}; ++b) memcpy(to.g{i} + b * {size}, given[{i}] + rows[b] * {size}, {size});"


def _expect(i: int, size: int, batch: int) -> str:
    """Prefetch a mini-batch's rows of a column, so that they are in the cache when needed."""
    return (
        f"for (int b = 0; b < {batch}; ++b)"
        f" for (i64 at = 0; at < {size}; at += 64) __builtin_prefetch(given[{i}] + rows[b] * {size} + at);"
    )
