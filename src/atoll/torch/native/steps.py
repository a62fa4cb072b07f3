"""Local steps of small models as one C++ function: all steps of all clients in a single call.

A step on small tensors takes less time than the dispatch of a library's product, so the traced step is translated as a
whole (`emit`) and run client by client, with everything that a client touches in the cache. PyTorch's own code
generator handles what cannot be translated.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import GraphModule

from atoll.native import library_of

from ..tracing.compiler import trace
from ..tracing.fuse import fuse_updates
from .emit import emit
from .ops import simple_operations
from .orders import Draws, address
from .program import MOST, NativeColumn, program
from .recurrence import recurs
from .switch import enabled
from .values import Body, Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "NativeCode",
    "NativeFunction",
    "NativeSteps",
    "Phase",
    "make_code",
    "make_function",
    "make_native",
    "simple_graph",
    "small_enough",
]

Tensor = torch.Tensor
_LOG = logging.getLogger(__name__)
_LONGEST = 64 << 20  # the same with recurrent layers, which pass over their memory in order
_LARGEST = 8 << 20  # bytes that a step may touch: beyond the cache, a library's blocking of products wins


@dataclass(frozen=True)
class Phase:
    """A function of one client.

    Attributes:
        graph: its operations.
        reads: numbers of the columns that are its inputs.
        writes: for each output a column's number, and ``"="`` or ``"+="``.
    """

    graph: GraphModule
    reads: Sequence[int]
    writes: Sequence[tuple[int, str]]


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
        cut = np.array([0, len(begins) - 1]) if parts is None else parts
        threads = max(1, min(threads, MOST, len(cut) - 1))
        drawn = rows if isinstance(rows, Draws) else None
        longest, largest = (0, 0) if drawn is None else (drawn.longest, drawn.largest)
        each = self._needs(longest, largest)
        if self._room.numel() < threads * each + 64:
            self._room = torch.empty(threads * each + 64, dtype=torch.uint8)
        room = -(-self._room.data_ptr() // 64) * 64
        pointers = (ctypes.c_void_p * len(held))(*map(address, held))
        given = address(rows) if isinstance(rows, Tensor) else None
        draws = None if drawn is None else drawn.structure()
        rest = (address(begins), address(active), draws, longest, address(cut))
        if self._run(pointers, room, each, given, *rest, len(cut) - 1, threads):
            raise IndexError("the model looked up an entry that does not exist")


class NativeSteps:
    """All local steps of a block of clients."""

    def __init__(self, code: NativeCode) -> None:
        self._code = code
        self.seconds = code.seconds

    def __call__(
        self,
        local: list[Tensor],
        shared: list[Tensor],
        pool: list[Tensor],
        rows: Tensor,
        data: list[Tensor],
        active: Tensor | None,
    ) -> Tensor:
        """Train a block in place.

        Args:
            local: leaves of the local states with a leading client axis, contiguous; overwritten.
            shared: leaves that all clients share: the broadcast and frozen parameters.
            pool: columns of rows, of which mini-batches are made.
            rows: their numbers, ``(clients, steps, batch)``.
            data: further columns, ``(clients, steps, ...)``.
            active: whether a client takes a step, ``(clients, steps)``; ``None`` when all take all.

        Returns:
            The sum of the losses of each client.
        """
        clients, steps = rows.shape[:2]
        losses = torch.zeros(clients, dtype=torch.float32)
        held: list[Tensor | None] = [*local, *(t.contiguous() for t in (*shared, *pool, *data)), losses]
        begins = np.arange(clients + 1) * steps
        self._code(held, begins, rows.contiguous(), None if active is None else active.contiguous())
        return losses


def make_native(
    step: Callable[..., Sequence[Tensor]],
    local: list[Tensor],
    shared: list[Tensor],
    batch: list[Tensor],
    data: list[Tensor],
) -> NativeSteps | None:
    """Translate and compile one client's step, or return ``None`` if that is impossible or would not pay.

    Args:
        step: ``local, shared, batch, data -> local, loss`` of one client and one step.
        local: examples of one client's leaves.
        shared: examples of what all clients share.
        batch: examples of the columns that are taken from a pool of rows, with an axis of one step: ``(1, batch,
            ...)``.
        data: examples of one step's further columns, with an axis of one step.
    """
    kinds = ((local, "client"), (shared, "job"), (batch, "row"), (data, "step"), ([torch.zeros(())], "client"))
    columns = [NativeColumn(example, per) for examples, per in kinds for example in examples]
    if not enabled() or not small_enough(columns) or any(t.dtype != torch.float32 for t in local):
        return None
    began = time.perf_counter()
    inputs, last = [*range(len(columns) - 1)], len(columns) - 1
    graph = simple_graph(step, [columns[i].example for i in inputs], len(local))
    phase = Phase(graph, inputs, [*((i, "=") for i in range(len(local))), (last, "+=")])
    code = make_code(columns, {"step": phase}, began)
    return None if code is None else NativeSteps(code)


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


def make_function(gm: GraphModule) -> NativeFunction | None:
    """Translate and compile a traced function, or return ``None`` if that is impossible."""
    if not enabled():
        return None
    began = time.perf_counter()
    given = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    outputs: Any = gm.graph.find_nodes(op="output")[0].args[0]
    results = [node.meta["val"] for node in outputs]
    examples = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype) for t in given]
    graph = trace(gm.forward, examples, simple_operations())
    fuse_updates(graph, set())
    columns = [NativeColumn(example, "step") for example in (*given, *results)]
    numbers = range(len(columns))
    phase = Phase(graph, numbers[: len(given)], [(i, "=") for i in numbers[len(given) :]])
    code = make_code([*columns, NativeColumn(torch.zeros(1, 1), "row")], {"step": phase}, began)
    return None if code is None else NativeFunction(code, results)


def small_enough(columns: Sequence[NativeColumn]) -> bool:
    """Tell whether native code pays: beyond the cache, a library's blocking of products wins."""
    return sum(c.example.numel() * c.example.element_size() for c in columns) <= _LARGEST


def simple_graph(fn: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor], owned: int = 0) -> GraphModule:
    """Return a function as simple operations; its first ``owned`` inputs may be updated in place."""
    graph = trace(fn, [torch.empty(t.shape, dtype=t.dtype) for t in examples], simple_operations())
    fuse_updates(graph, set(range(owned)))
    return graph


def make_code(columns: Sequence[NativeColumn], phases: dict[str, Phase], began: float) -> NativeCode | None:
    """Translate and compile phases named ``start``, ``step`` and ``finish``; ``None`` if something cannot be translated."""
    bodies: dict[str, Body] = {}
    used = [False] * len(columns)
    for name, phase in phases.items():
        try:
            targets = [(f"x{i}", how) for i, how in phase.writes]
            bodies[name] = emit(phase.graph, [f"x{i}" for i in phase.reads], targets)
        except Unsupported as why:
            _LOG.debug("%s of a local update is not translated: %s", name, why)
            return None
        for i, node in zip(phase.reads, phase.graph.graph.find_nodes(op="placeholder"), strict=True):
            used[i] |= bool(node.users)
        for i, _ in phase.writes:
            used[i] = True
    recurrent = any(recurs(body) for body in bodies.values())
    if sum(body.room for body in bodies.values()) > (_LONGEST if recurrent else _LARGEST):
        return None
    text = program(columns, bodies, used)
    traced = time.perf_counter()
    library = library_of(text)
    if library is None:
        return None
    seconds = {"trace": traced - began, "compile": time.perf_counter() - traced}
    return NativeCode(library, used, seconds)
