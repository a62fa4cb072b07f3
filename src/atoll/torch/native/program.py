"""The program around the translated phases: memory of a client, of a thread and of a part of the clients, and the loop over all clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .cpp.loop import LOOP
from .cpp.preamble import PREAMBLE
from .cpp.tiles import TILES
from .ops import C_TYPES
from .orders import ORDERS
from .recurrence import TEMPLATES, recurs
from .sharing import share
from .values import Body

__all__ = ["MOST", "NativeColumn", "program"]

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
