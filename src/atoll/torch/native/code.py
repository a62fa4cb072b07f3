"""Local steps of small models as one C++ function: all steps of all clients in a single call.

A step on small tensors takes less time than the dispatch of a library's product, so the traced step is translated as a
whole (`emit`) and run client by client, with everything that a client touches in the cache. PyTorch's own code
generator handles what cannot be translated.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch.fx import GraphModule

from atoll.core.errors import ConfigError
from atoll.native import library_of

from ..tracing.compiler import trace
from ..tracing.fuse import fuse_updates, halves_of
from .image_layers import Live, replace_layers
from .operations import simple_operations
from .orders import Draws, address
from .program import MOST, NativeColumn, emit, program
from .recurrence import recurs
from .writer import Body, Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Beside",
    "MemoryLayout",
    "NativeCode",
    "NativeFunction",
    "PartlyNative",
    "compile",
    "enabled",
    "make_function",
    "simple_graph",
    "small_enough",
]

# The switch that turns native code off.


_VARIABLE = "ATOLL_NATIVE"


def enabled() -> bool:
    """Tell whether native code may be made here: ``ATOLL_NATIVE=0`` in the environment turns it off.

    Raises:
        ConfigError: the variable is neither 0 nor 1.
    """
    given = os.environ.get(_VARIABLE, "1")
    if given not in ("0", "1"):
        raise ConfigError(f"{_VARIABLE}={given!r}", where="the environment", remedy="use 0 (off) or 1 (on)")
    return given == "1"


Tensor = torch.Tensor
_LOG = logging.getLogger(__name__)
_LARGEST = 8 << 20  # bytes that a step may touch: beyond the cache, a library's blocking of products wins
_LONGEST = 64 << 20  # the same with recurrent layers, which pass over their memory in order


@dataclass(frozen=True)
class MemoryLayout:
    """Where the inputs and results of a program lie, for code that runs whole.

    Attributes:
        columns: what lies in memory, and what there is one of for each client, step, row ...
        reads: numbers of the columns that are the inputs of each function.
        writes: for each of its outputs a column's number, and ``"="`` or ``"+="``.
    """

    columns: Sequence[NativeColumn]
    reads: Mapping[str, Sequence[int]]
    writes: Mapping[str, Sequence[tuple[int, str]]]


@dataclass(frozen=True)
class Beside:
    """What of a step native code takes, while PyTorch runs the rest.

    Attributes:
        first: number of the input from which on inputs are rows and keys: what follows from these alone, such as views, can run ahead.
        ahead: whether it does.
        layers: whether layers of images run in native code.
    """

    first: int
    ahead: bool = False
    layers: bool = False


@overload
def compile(graph: Mapping[str, GraphModule], layout: MemoryLayout) -> NativeCode | None: ...  # noqa: A001
@overload
def compile(graph: GraphModule, layout: Beside) -> PartlyNative | None: ...  # noqa: A001
def compile(graph: Any, layout: MemoryLayout | Beside) -> NativeCode | PartlyNative | None:  # noqa: A001 - what it does
    """Translate a traced program to C++ and compile it; ``None`` where that is impossible or would not pay, and PyTorch runs it.

    Args:
        graph: with a `MemoryLayout` the functions of one client, ``start``, ``step`` and ``finish`` or some of them, in simple operations (`simple_graph`); with
            `Beside` a step as traced, which is changed in place.
        layout: where everything lies, or what runs natively beside PyTorch.
    """
    if not enabled():
        return None
    return _compile_parts(graph, layout) if isinstance(layout, Beside) else _compile_whole(graph, layout)


class NativeCode:
    """What clients do: a beginning, steps, and an end, one client after the other.

    Attributes:
        seconds: time to translate and to compile.
        used: for each column whether anything reads or writes it.
    """

    def __init__(self, library: ctypes.CDLL, used: list[bool], seconds: dict[str, float]) -> None:
        self._run, self._needs = library.run, library.room
        self._run.restype = self._needs.restype = ctypes.c_int64
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._run.argtypes = [pointer, pointer, number, *[pointer] * 4, number, pointer, number, number]
        self._needs.argtypes = [ctypes.c_int64] * 2
        self._room = torch.empty(0, dtype=torch.uint8)
        self.used = used
        self.seconds = seconds

    def time_from(self, began: float) -> NativeCode:
        """Return the same, whose seconds of tracing count from a moment before `compile`."""
        self.seconds["trace"] = time.perf_counter() - began - self.seconds["compile"]
        return self

    def __call__(
        self,
        held: Sequence[Tensor | NDArray[Any] | int | None],
        begins: NDArray[np.int64],
        rows: Tensor | Draws,
        active: Tensor | None = None,
        parts: NDArray[np.int64] | None = None,
        threads: int = 1,
    ) -> None:
        """Run.

        Args:
            held: the columns, contiguous, or their addresses; results are written in place. ``None`` for columns of a
                thread.
            begins: client ``c`` takes the steps ``begins[c]:begins[c + 1]``, ``(clients + 1,)``.
            rows: numbers of the pool's rows for each step, ``(steps of all clients, batch)``; or how to draw them.
            active: whether a step is taken, ``(steps of all clients,)``; ``None`` for all.
            parts: part ``p`` has the clients ``parts[p]:parts[p + 1]``, ``(parts + 1,)``; ``None`` for a single one.
                Results depend on it.
            threads: threads that share the parts; all except this one start and end within the call. Results do not
                depend on it.

        Raises:
            IndexError: the model looked up an entry that does not exist.
        """
        # Parts and not threads decide in which order sums are formed, so that results are the same on any number of cores.
        cut = np.array([0, len(begins) - 1]) if parts is None else parts
        threads = max(1, min(threads, MOST, len(cut) - 1))
        drawn = rows if isinstance(rows, Draws) else None
        longest, largest = (0, 0) if drawn is None else (drawn.longest, drawn.largest)
        each = self._needs(longest, largest)
        if self._room.numel() < threads * each + 64:
            self._room = torch.empty(threads * each + 64, dtype=torch.uint8)
        room = (
            -(-self._room.data_ptr() // 64) * 64
        )  # at the start of a cache line, where PyTorch's allocator may not put it
        pointers = (ctypes.c_void_p * len(held))(*map(address, held))
        given = address(rows) if isinstance(rows, Tensor) else None
        draws = None if drawn is None else drawn.structure()
        rest = (address(begins), address(active), draws, longest, address(cut))
        if self._run(pointers, room, each, given, *rest, len(cut) - 1, threads):
            raise IndexError("the model looked up an entry that does not exist")


class NativeFunction:
    """A function of tensors, with new memory for its results."""

    def __init__(self, code: NativeCode, results: Sequence[Tensor]) -> None:
        self._code = code
        self._results = results
        self._row = torch.zeros(1, 1)
        self._begins, self._number = np.arange(2), torch.zeros(1, 1, dtype=torch.int64)
        self.seconds = code.seconds

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the results for inputs in the layout that the function was made for."""
        made = [torch.empty(like.shape, dtype=like.dtype) for like in self._results]
        self._code([*inputs, *made, self._row], self._begins, self._number)
        return made


def small_enough(columns: Sequence[NativeColumn]) -> bool:
    """Tell whether native code pays: beyond the cache, a library's blocking of products wins."""
    return sum(c.example.numel() * c.example.element_size() for c in columns) <= _LARGEST


def simple_graph(fn: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor], owned: int = 0) -> GraphModule:
    """Return a function as simple operations; its first ``owned`` inputs may be updated in place."""
    graph = trace(fn, [torch.empty(t.shape, dtype=t.dtype) for t in examples], simple_operations())
    fuse_updates(graph, set(range(owned)))
    return graph


def _compile_whole(graphs: Mapping[str, GraphModule], layout: MemoryLayout) -> NativeCode | None:
    began = time.perf_counter()
    bodies: dict[str, Body] = {}
    used = [False] * len(layout.columns)
    for name, graph in graphs.items():
        reads, writes = layout.reads[name], layout.writes[name]
        try:
            bodies[name] = emit(graph, [f"x{i}" for i in reads], [(f"x{i}", how) for i, how in writes])
        except Unsupported as why:
            _LOG.debug("%s of a local update is not translated: %s", name, why)
            return None
        for i, node in zip(reads, graph.graph.find_nodes(op="placeholder"), strict=True):
            used[i] |= bool(node.users)
        for i, _ in writes:
            used[i] = True
    # `small_enough` looked at inputs and parameters. What a step keeps between its operations is known only now, and is most of it if batches are wide.
    recurrent = any(recurs(body) for body in bodies.values())
    if sum(body.room for body in bodies.values()) > (_LONGEST if recurrent else _LARGEST):
        return None
    text = program(layout.columns, bodies, used)
    traced = time.perf_counter()
    library = library_of(text)
    if library is None:
        return None
    return NativeCode(library, used, {"trace": traced - began, "compile": time.perf_counter() - traced})


class PartlyNative:
    """A traced step of which native code runs a part.

    Attributes:
        live: which rows of a mini-batch are real, for layers of images; ``None`` without such layers.
        seconds: time to translate and to compile what runs ahead. Layers are libraries that all models share.
    """

    def __init__(self, live: Live | None, first: int) -> None:
        self.live = live
        self.seconds: dict[str, float] = {}
        self._first = first
        self._ahead: NativeFunction | None = None
        self._rest: Callable[..., Sequence[Tensor]]

    def __call__(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        """Run the step."""
        if self._ahead is not None:
            inputs = [*inputs, *self._ahead(inputs[self._first :])]
        return self._rest(*inputs)


def _compile_parts(graph: GraphModule, layout: Beside) -> PartlyNative | None:
    made = PartlyNative(replace_layers(graph) if layout.layers else None, layout.first)
    graph.recompile()
    made._rest = graph.forward
    halves = halves_of(graph, layout.first) if layout.ahead else None
    ahead = None if halves is None else make_function(halves[0])
    if halves is not None and ahead is not None:
        made._ahead, made._rest, made.seconds = ahead, halves[1].forward, ahead.seconds
    return None if made.live is None and ahead is None else made


def make_function(gm: GraphModule) -> NativeFunction | None:
    """Return native code of a traced function, or ``None`` if that is impossible."""
    began = time.perf_counter()
    given = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    outputs: Any = gm.graph.find_nodes(op="output")[0].args[0]
    results = [node.meta["val"] for node in outputs]
    examples = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype) for t in given]
    graph = trace(gm.forward, examples, simple_operations())
    fuse_updates(graph, set())
    columns = [NativeColumn(example, "step") for example in (*given, *results)]
    columns.append(NativeColumn(torch.zeros(1, 1), "row"))
    numbers = range(len(given) + len(results))
    writes = [(i, "=") for i in numbers[len(given) :]]
    code = compile({"step": graph}, MemoryLayout(columns, {"step": numbers[: len(given)]}, {"step": writes}))
    return None if code is None else NativeFunction(code.time_from(began), results)
