"""Local steps of small models as one C++ function: all steps of all clients in a single call.

A step on small tensors is over sooner than a library's product has been dispatched, so the traced step is translated as a whole
(`native_emit`) and run client by client, with everything that a client touches in the cache. What cannot be translated is left
to PyTorch's own code generator.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.fx import GraphModule

from .backend import cache_folder, cpp_compiler
from .compiler import trace
from .fuse import fuse_updates
from .native_emit import emit
from .native_ops import simple_operations
from .native_program import MOST, Column, program
from .native_values import Body, Unsupported

__all__ = ["NativeCode", "NativeSteps", "Phase", "make_code", "make_native", "simple_graph", "small_enough"]

Tensor = torch.Tensor
_LOG = logging.getLogger(__name__)
# Without math-errno and trapping-math loops with comparisons become vector code; results stay IEEE, NaN and infinity included.
_FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-pthread",
    "-shared",
)
_LARGEST = 8 << 20  # bytes that a step may touch: past the cache, a library's blocking of products wins
_TIMEOUT = 300.0


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
        self._run = library.run
        self._run.restype = ctypes.c_int64
        self._run.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 2
        self._size = ctypes.c_int64.in_dll(library, "ROOM").value  # of the scratch memory of a thread
        self._room = torch.empty(0, dtype=torch.uint8)
        self.used = used
        self.seconds = seconds

    def __call__(
        self,
        held: list[Tensor | None],
        rows: Tensor,
        begins: Tensor,
        active: Tensor | None = None,
        parts: Tensor | None = None,
        threads: int = 1,
    ) -> None:
        """Run.

        Args:
            held: the columns, contiguous; what is written is written in place. ``None`` for those of a thread.
            rows: numbers of the pool's rows for each step, ``(steps of all clients, batch)``.
            begins: client ``c`` takes the steps ``begins[c]:begins[c + 1]``, ``(clients + 1,)``.
            active: whether a step is taken, ``(steps of all clients,)``; ``None`` for all.
            parts: part ``p`` has the clients ``parts[p]:parts[p + 1]``, ``(parts + 1,)``; ``None`` for a single one. Results depend on it.
            threads: that share the parts; all but this one begin and end within the call. Results do not depend on it.

        Raises:
            IndexError: the model looked up an entry that is not there.
        """
        cut = torch.tensor([0, len(begins) - 1]) if parts is None else parts
        threads = max(1, min(threads, MOST, len(cut) - 1))
        if len(self._room) < threads * self._size + 64:
            self._room = torch.empty(threads * self._size + 64, dtype=torch.uint8)
        room = -(-self._room.data_ptr() // 64) * 64
        pointers = (ctypes.c_void_p * len(held))(*[_address(t) for t in held])
        given = (rows, begins, active, cut)
        bad = self._run(pointers, room, *[_address(t) for t in given], len(cut) - 1, threads)
        if bad:
            raise IndexError("the model looked up an entry that is not there")


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
            shared: leaves that all clients see: the broadcast and what is frozen.
            pool: columns of rows, of which mini-batches are made.
            rows: their numbers, ``(clients, steps, batch)``.
            data: further columns, ``(clients, steps, ...)``.
            active: whether a client takes a step, ``(clients, steps)``; ``None`` when all take all.

        Returns:
            The sum of the losses, one a client.
        """
        clients, steps = rows.shape[:2]
        losses = torch.zeros(clients, dtype=torch.float32)
        held: list[Tensor | None] = [*local, *(t.contiguous() for t in (*shared, *pool, *data)), losses]
        begins = torch.arange(clients + 1) * steps
        self._code(held, rows.contiguous(), begins, None if active is None else active.contiguous())
        return losses


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def make_native(
    step: Callable[..., Sequence[Tensor]],
    local: list[Tensor],
    shared: list[Tensor],
    batch: list[Tensor],
    data: list[Tensor],
) -> NativeSteps | None:
    """Translate and compile one client's step, or return ``None`` where that cannot be done or would not pay.

    Args:
        step: ``local, shared, batch, data -> local, loss`` of one client and one step.
        local: examples of one client's leaves.
        shared: examples of what all clients see.
        batch: examples of the columns that are taken from a pool of rows, with an axis of one step: ``(1, batch, ...)``.
        data: examples of one step's further columns, with an axis of one step.
    """
    kinds = ((local, "client"), (shared, "job"), (batch, "row"), (data, "step"), ([torch.zeros(())], "client"))
    columns = [Column(example, per) for examples, per in kinds for example in examples]
    if not small_enough(columns) or any(t.dtype != torch.float32 for t in local):
        return None
    began = time.perf_counter()
    inputs, last = [*range(len(columns) - 1)], len(columns) - 1
    graph = simple_graph(step, [columns[i].example for i in inputs], len(local))
    phase = Phase(graph, inputs, [*((i, "=") for i in range(len(local))), (last, "+=")])
    code = make_code(columns, {"step": phase}, began)
    return None if code is None else NativeSteps(code)


def small_enough(columns: Sequence[Column]) -> bool:
    """Whether native code pays: past the cache, a library's blocking of products wins."""
    return sum(c.example.numel() * c.example.element_size() for c in columns) <= _LARGEST


def simple_graph(fn: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor], owned: int = 0) -> GraphModule:
    """A function in simple operations; its first ``owned`` inputs may be updated in place."""
    graph = trace(fn, [torch.empty(t.shape, dtype=t.dtype) for t in examples], simple_operations())
    fuse_updates(graph, set(range(owned)))
    return graph


def make_code(columns: Sequence[Column], phases: dict[str, Phase], began: float) -> NativeCode | None:
    """Translate and compile phases named ``start``, ``step`` and ``finish``; ``None`` where something cannot be translated."""
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
    if sum(body.room for body in bodies.values()) > _LARGEST:
        return None
    text = program(columns, bodies, used)
    traced = time.perf_counter()
    library = _library(text)
    if library is None:
        return None
    seconds = {"trace": traced - began, "compile": time.perf_counter() - traced}
    return NativeCode(library, used, seconds)


def _library(source: str) -> ctypes.CDLL | None:
    """Compile, or take what an earlier run compiled on such a machine."""
    compiler = cpp_compiler()
    if compiler is None or os.name != "posix":
        return None
    stamp = Path(compiler).resolve().stat()
    facts = (source, _FLAGS, compiler, stamp.st_size, stamp.st_mtime_ns, platform.machine(), _processor())
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
    folder = cache_folder() / "native"
    found = folder / f"{name}.so"
    try:
        if not found.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as place:
                text, made = Path(place) / "step.cpp", Path(place) / "step.so"
                text.write_text(source)
                command = [compiler, *_FLAGS, str(text), "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)
                made.replace(found)
        return ctypes.CDLL(str(found))
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    """What the processor can do, since the code is made for this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
