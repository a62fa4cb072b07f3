"""Traced programs made fast: PyTorch's code generator behind one function, and what to do when it cannot be used."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import torch

from .backend import cache_folder, cpp_compiler
from .fuse import fuse_updates, tidy

__all__ = ["Program", "can_compile", "make_program", "notice"]

Tensor = torch.Tensor
_NOTICED: set[str] = set()


class Program:
    """A function of a flat list of tensors.

    Attributes:
        graph: the traced operations.
        compiled: whether machine code was generated.
        overwrites: numbers of the inputs that a call may overwrite.
        seconds: time to trace and to compile.
    """

    def __init__(self, graph: GraphModule, call: Callable[[list[Tensor]], Sequence[Any]] | None) -> None:
        self.graph = graph
        self._call = call
        self.compiled = call is not None
        self.overwrites: set[int] = set()
        self.seconds = {"trace": 0.0, "compile": 0.0}

    def __call__(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        """Run on tensors of the shapes it was traced with."""
        with torch.no_grad():
            return self.graph(*inputs) if self._call is None else self._call(inputs)


def notice(key: str, text: str) -> None:
    """Warn once a process."""
    if key not in _NOTICED:
        _NOTICED.add(key)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def can_compile(device: torch.device) -> bool:
    """Whether machine code can be generated for this device here."""
    if device.type == "cpu":
        return cpp_compiler() is not None
    if device.type == "cuda":
        return importlib.util.find_spec("triton") is not None
    return False


def make_program(
    fn: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], *, compiled: bool, owned: set[int] | None = None
) -> Program:
    """Trace a function and, if asked, compile it.

    Args:
        fn: takes and returns flat tensors; tensor operations only.
        inputs: example inputs; shapes, strides and types count, values do not.
        compiled: generate machine code. If that fails the traced operations run one by one, after one notice.
        owned: numbers of the inputs that the program may overwrite.
    """
    began = time.perf_counter()
    # Tracing tells inputs apart by identity, and one tensor may be given twice (a local model that begins as the global one).
    inputs = [torch.clone(tensor, memory_format=torch.preserve_format) for tensor in inputs]
    gm = _trace(fn, inputs, decompose=compiled)
    fuse_updates(gm, owned or set()) if owned else tidy(gm)
    traced = time.perf_counter()
    call = None
    if compiled:
        try:
            call = _compile(gm, inputs)
        except Exception as error:
            notice(
                "compile",
                "compiling the local update failed, so it runs uncompiled and slower "
                f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})",
            )
            return make_program(fn, inputs, compiled=False, owned=owned)
    made = Program(gm, call)
    made.seconds = {"trace": traced - began, "compile": time.perf_counter() - traced}
    from .fuse import mutated

    made.overwrites = mutated(gm)
    return made


def _trace(fn: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], *, decompose: bool) -> GraphModule:
    table = None
    if decompose:
        _point_cache()
        importlib.import_module("torch._inductor.lowering")
        from torch._inductor.decomposition import select_decomp_table

        table = select_decomp_table()
    with torch.no_grad():
        made: GraphModule = make_fx(fn, decomposition_table=table, tracing_mode="fake")(*inputs)
    return made


def _point_cache() -> None:
    """Keep generated code in Atoll's cache folder, unless the user has named a place for it."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder()))


def _compile(gm: GraphModule, inputs: Sequence[Tensor]) -> Callable[[list[Tensor]], Sequence[Any]]:
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses import FakeTensorMode

    config: Any = importlib.import_module("torch._inductor.config")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    examples = [mode.from_tensor(tensor) for tensor in inputs]
    # Workers are processes with one thread each; one compile thread, because a pool of compilers would be forked along.
    settings = {"cpp.threads": 1, "compile_threads": 1}
    with config.patch(settings), tracing(TracingContext(mode)), torch.no_grad():
        made: Callable[[list[Tensor]], Sequence[Any]] = compile_fx_inner(gm, examples)
    return made
