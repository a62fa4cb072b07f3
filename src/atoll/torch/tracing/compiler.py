"""Makes traced programs fast: PyTorch's code generator behind one function, with a fallback if it cannot be used."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

from atoll.core.errors import AtollError
from atoll.native import cpp_compiler, private_cache

from ..images.live import Live
from .fold import fold_constants
from .fuse import fuse_updates, mutated, tidy
from .record import record

__all__ = ["Program", "can_compile", "make_program", "notice", "trace"]

Tensor = torch.Tensor
_NOTICED: set[str] = set()
_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_GIVEN = os.environ.get(_CACHE_VARIABLE)  # read before PyTorch sets it


class Program:
    """A function of a flat list of tensors.

    Attributes:
        graph: the traced operations.
        compiled: whether machine code was generated.
        overwrites: numbers of the inputs that a call may overwrite.
        seconds: time to trace and to compile.
        live: tells native layers of images which rows are real; ``None`` without such layers.
    """

    def __init__(self, graph: GraphModule, call: Callable[[list[Tensor]], Sequence[Any]] | None) -> None:
        self.graph = graph
        self._run: Callable[..., Sequence[Tensor]] = graph.forward
        self._call = call
        self.compiled = call is not None
        self.overwrites: set[int] = set()
        self.seconds = {"trace": 0.0, "compile": 0.0}
        self.live: Live | None = None
        self._ahead: Callable[[list[Tensor]], list[Tensor]] | None = None

    def rewritten(self) -> None:
        """Take over changes to the graph."""
        self.graph.recompile()
        self._run = self.graph.forward

    def split(self, ahead: Callable[[list[Tensor]], list[Tensor]], first: int, rest: GraphModule) -> None:
        """Let another function compute what depends on the inputs from ``first`` on alone; ``rest`` takes all inputs, and its results."""
        self._ahead, self._first, self._run = ahead, first, rest.forward

    def __call__(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        """Run on tensors of the shapes it was traced with, under ``torch.no_grad``; the list may be emptied."""
        if self._ahead is not None:
            inputs = [*inputs, *self._ahead(inputs[self._first :])]
        return self._run(*inputs) if self._call is None else self._call(inputs)


def notice(key: str, text: str) -> None:
    """Warn once in each process."""
    if key not in _NOTICED:
        _NOTICED.add(key)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def can_compile(device: torch.device) -> bool:
    """Tell whether machine code can be generated for this device here."""
    if device.type == "cpu":
        return cpp_compiler() is not None
    if device.type == "cuda":
        return importlib.util.find_spec("triton") is not None
    return False


def make_program(
    fn: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], *, compiled: bool, owned: set[int] | None = None
) -> Program:
    """Trace a function and optionally compile it.

    Args:
        fn: takes and returns flat tensors; tensor operations only.
        inputs: example inputs; shapes, strides and types count, values do not.
        compiled: generate machine code. If that fails the traced operations run one by one, after one notice.
        owned: numbers of the inputs that the program may overwrite.
    """
    with warnings.catch_warnings():
        # PyTorch's tracer and code generator emit warnings that no user can act on.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return _make_program(fn, inputs, compiled=compiled, owned=owned)


def _make_program(
    fn: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], *, compiled: bool, owned: set[int] | None
) -> Program:
    began = time.perf_counter()
    # Tracing tells inputs apart by identity, and one tensor may appear twice (a local model that starts as the global
    # one).
    inputs = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device) for t in inputs]
    gm = by_pytorch(fn, inputs, _generators_table()) if compiled else trace(fn, inputs)
    fuse_updates(gm, owned or set()) if owned else tidy(gm)
    if not compiled and inputs:
        fold_constants(gm, inputs[0].device)
    gm.recompile()
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
            return _make_program(fn, inputs, compiled=False, owned=owned)
    made = Program(gm, call)
    made.seconds = {"trace": traced - began, "compile": time.perf_counter() - traced}
    made.overwrites = mutated(gm)
    return made


def trace(
    fn: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], table: Mapping[Any, Any] | None = None
) -> GraphModule:
    """Return the operations of a function, split up by a table of decompositions."""
    try:
        return record(fn, inputs, table)
    except AtollError:
        raise
    except Exception:  # PyTorch's own tracer decides
        return by_pytorch(fn, inputs, table)


def by_pytorch(
    fn: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], table: Mapping[Any, Any] | None
) -> GraphModule:
    """Do the same with PyTorch's tracer, in the form that its code generator needs; the first call takes a second."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        made: GraphModule = make_fx(fn, decomposition_table=table, tracing_mode="fake")(*inputs)
    return made


def _generators_table() -> Mapping[Any, Any]:
    """Return the decompositions that PyTorch's code generator needs."""
    importlib.import_module("torch._inductor.lowering")
    from torch._inductor.decomposition import select_decomp_table

    table: Mapping[Any, Any] = select_decomp_table()
    return table


@contextmanager
def _own_environment() -> Iterator[None]:
    """Keep generated code in Atoll's cache folder, unless the user has named a place for it.

    If the variable CI is set, PyTorch's generator assumes its own test run and refuses operations that it otherwise
    runs, so the variable is hidden meanwhile.
    """
    wanted = {_CACHE_VARIABLE: _GIVEN or str(private_cache()), "CI": None}
    before = {name: os.environ.get(name) for name in wanted}
    _set_environment(wanted)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _compile(gm: GraphModule, inputs: Sequence[Tensor]) -> Callable[[list[Tensor]], Sequence[Any]]:
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    config: Any = importlib.import_module("torch._inductor.config")
    # Without a shape environment PyTorch would not use its cache of generated code.
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    examples = [mode.from_tensor(tensor, static_shapes=True) for tensor in inputs]
    # Workers are processes with one thread each; use one compile thread, because a fork would copy a pool of compilers.
    settings = {"cpp.threads": 1, "compile_threads": 1, "size_asserts": True}
    # Outputs are the next call's inputs, so their strides must be those that tracing saw.
    output = gm.graph.find_nodes(op="output")[0]
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
    with _own_environment(), config.patch(settings), tracing(TracingContext(mode)), torch.no_grad():
        made: Any = compile_fx_inner(gm, examples)
    # Skip the counters and profiler hooks of the outer object: they cost as much as a small step.
    call: Callable[[list[Tensor]], Sequence[Any]] = getattr(made, "current_callable", None) or made
    return call
