"""Local steps of small models as one C++ function: all steps of all clients in a single call.

A step on small tensors is over sooner than a library's product has been dispatched, so the traced step is translated as a whole
(`native_emit`) and run client by client, with everything that a client touches in the cache. What cannot be translated is left
to PyTorch's own code generator.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .backend import cache_folder, cpp_compiler
from .compiler import trace
from .fuse import fuse_updates
from .native_emit import emit
from .native_ops import C_TYPES, simple_operations
from .native_source import EPILOGUE, PREAMBLE
from .native_values import Body, Unsupported

__all__ = ["NativeSteps", "make_native"]

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
    "-shared",
)
_LARGEST = 8 << 20  # bytes that a step may touch: past the cache, a library's blocking of products wins
_TIMEOUT = 300.0


class NativeSteps:
    """All local steps of a block of clients.

    Attributes:
        seconds: time to trace and to compile.
    """

    def __init__(self, run: Any, room: int, seconds: dict[str, float]) -> None:
        self._run = run
        self._room = torch.empty(room + 64, dtype=torch.uint8)
        self.seconds = seconds

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
        held = [*local, *(t.contiguous() for t in (*shared, *pool, *data)), losses]
        rows = rows.contiguous()
        mask = None if active is None else active.contiguous()
        pointers = (ctypes.c_void_p * len(held))(*[t.data_ptr() for t in held])
        room = -(-self._room.data_ptr() // 64) * 64
        bad = self._run(pointers, room, _pointer(rows), _pointer(mask), clients, steps)
        if bad:
            raise IndexError("the model looked up an entry that is not there")
        return losses


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


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
    inputs = [torch.empty(t.shape, dtype=t.dtype) for t in (*local, *shared, *batch, *data)]
    floats = all(t.dtype == torch.float32 for t in local)
    if not floats or sum(t.numel() * t.element_size() for t in inputs) > _LARGEST:
        return None
    began = time.perf_counter()
    graph = trace(step, inputs, simple_operations())
    fuse_updates(graph, set(range(len(local))))
    try:
        body = emit(graph, len(local))
    except Unsupported as why:
        _LOG.debug("a local step is not translated: %s", why)
        return None
    if body.room > _LARGEST:
        return None
    counts = (len(local), len(shared), len(batch), len(data))
    traced = time.perf_counter()
    library = _library(_source(body, inputs, counts))
    if library is None:
        return None
    run = library.run
    run.restype = ctypes.c_int64
    run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2
    seconds = {"trace": traced - began, "compile": time.perf_counter() - traced}
    room = body.room + sum(64 + t.numel() * t.element_size() for t in batch)
    return NativeSteps(run, room, seconds)


def _source(body: Body, inputs: list[Tensor], counts: tuple[int, int, int, int]) -> str:
    a, b, c, d = counts
    pooled = range(a + b, a + b + c)
    sizes = [max(1, math.prod(t.shape)) * t.element_size() for t in inputs]
    per_client = [*sizes[:a], *[0] * (b + c + d), 4]
    per_step = [*[0] * (a + b + c), *sizes[a + b + c :], 0]
    batch = inputs[a + b].shape[1]
    held = [f"alignas(64) char g{i}[{sizes[i]}];" for i in pooled]
    fetch = [_fetch(i, sizes[i] // batch, batch) for i in pooled]
    names = [C_TYPES.get(t.dtype, "char") for t in inputs] + ["float"]
    begin = [f"{t}* __restrict x{i} = ({t}*)p[{i}]; (void)x{i};" for i, t in enumerate(names)]
    scratch = [
        f"auto& {line.split()[-1].partition('[')[0]} = scratch.{line.split()[-1].partition('[')[0]};"
        for line in body.buffers
    ]
    return "\n".join(
        [
            PREAMBLE,
            f"constexpr int COUNT = {len(names)};",
            f"constexpr i64 PER_CLIENT[COUNT] = {{{', '.join(map(str, per_client))}}};",
            f"constexpr i64 PER_STEP[COUNT] = {{{', '.join(map(str, per_step))}}};",
            "struct Scratch {",
            *body.buffers,
            *held,
            "};",
            f"constexpr i64 BATCH = {batch};",
            "static void fetch(char** p, Scratch& scratch, const i64* rows) {",
            *fetch,
            "}",
            "static void step(char** p, Scratch& scratch, i64& bad) {",
            *begin,
            *scratch,
            *body.lines,
            "}",
            EPILOGUE,
        ]
    )


def _fetch(i: int, size: int, batch: int) -> str:
    """Copy one mini-batch's rows of a column to where the step reads them."""
    copy = f"std::memcpy(scratch.g{i} + b * {size}, p[{i}] + rows[b] * {size}, {size});"
    return f"for (int b = 0; b < {batch}; ++b) {copy} p[{i}] = scratch.g{i};"


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
