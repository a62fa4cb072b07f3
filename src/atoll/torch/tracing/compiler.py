"""Makes traced programs fast: PyTorch's code generator behind one function, with a fallback if it cannot be used."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from atoll.core.errors import AtollError
from atoll.native import cpp_compiler, private_cache

from .fuse import find_mutated, fold_constants, fuse_updates, tidy

__all__ = ["Program", "Unrecordable", "can_compile", "make_program", "notice", "record", "refuse_loops", "trace"]

# Recording the operations of a function while it runs once.
#
# PyTorch's own tracer does this too, but it first loads the code generator, which takes longer than many small jobs. Here
# tensors in a shell that hides their values go through the function on zeros, and a dispatch mode below automatic
# differentiation and ``vmap`` records every operation. An operation that depends on a value raises, and the caller uses
# PyTorch's tracer.


Tensor = torch.Tensor
_HIDDEN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)


class Unrecordable(Exception):  # noqa: N818 - not an error: the caller goes another way
    """The function does something whose result depends on values, or on a generator."""


def record(
    fn: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], table: Mapping[Any, Any] | None = None
) -> GraphModule:
    """Return the operations of a function as a graph; each node's ``meta["val"]`` is a tensor without memory of the same shape and strides.

    The module's code is not written yet, since passes follow or only the graph is needed: call ``recompile`` before the
    module.

    Args:
        fn: takes and returns flat tensors; tensor operations only.
        inputs: example inputs; shapes, strides and types count, values do not.
        table: operation -> function of simpler ones.

    Raises:
        Unrecordable: a result depends on values.
    """
    mode = _Recorder(table or {})
    given = [mode.make_input(tensor, i) for i, tensor in enumerate(inputs)]
    with torch.no_grad(), mode:
        made = fn(*given)
    mode.graph.output(tuple(mode.node(tensor) for tensor in made))
    return mode.module


class _Shell(torch.Tensor):
    """A tensor whose values cannot be read."""

    inside: Tensor
    node: Node

    @staticmethod
    def around(inside: Tensor, node: Node) -> _Shell:
        """Wrap a tensor that a node makes."""
        made: _Shell = torch.Tensor._make_wrapper_subclass(
            _Shell, inside.size(), strides=inside.stride(), dtype=inside.dtype, device=inside.device
        )
        made.inside, made.node = inside, node
        node.meta["val"] = _layout(inside)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise Unrecordable(f"{func} on a recorded tensor after the recording")


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, table: Mapping[Any, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Made while the graph is empty: writing the code of a whole graph takes as long as its passes.
        self.module = GraphModule({}, Graph())
        self.graph = self.module.graph
        self._table = table
        self._known: dict[int, tuple[Tensor, Node]] = {}  # with the tensor, so that no other tensor gets its identity

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return what avoids loading PyTorch's compiler: there is nothing to guard against it."""
        return False

    def make_input(self, tensor: Tensor, i: int) -> Tensor:
        """Return an input: zeros of its layout."""
        zeros = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device).zero_()
        return _Shell.around(zeros, self.graph.placeholder(f"x{i}"))

    def node(self, tensor: Any) -> Node:
        """Return the node of a tensor; a tensor from before the recording becomes a constant."""
        if isinstance(tensor, _Shell):
            return tensor.node
        if not isinstance(tensor, Tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise Unrecordable(f"a result of type {type(tensor).__name__}")
        if id(tensor) not in self._known:
            name = f"constant{len(self._known)}"
            self.module.register_buffer(name, tensor.detach())
            node = self.graph.get_attr(name)
            node.meta["val"] = _layout(tensor)
            self._known[id(tensor)] = (tensor, node)
        return self._known[id(tensor)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        simpler = self._table.get(func)
        for how in (simpler, func.decompose):
            if how is None:
                continue
            with self:
                made = how(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if any(tag in func.tags for tag in _HIDDEN) and not (_by_numbers(func, args) or _still(func, args, kwargs)):
            raise Unrecordable(f"{func} depends on values")
        return self._write(func, args, kwargs)

    def _write(self, func: Any, args: Any, kwargs: Any) -> Any:
        node = self.graph.call_function(func, *map_aggregate((args, kwargs), self._node_of))
        made = func(*map_aggregate(args, _inside), **map_aggregate(kwargs, _inside))
        if isinstance(made, Tensor):
            first = args[0] if args else None
            if isinstance(first, _Shell) and made is first.inside:  # in place
                first.node = node
                node.meta["val"] = _layout(made)
                return first
            return _Shell.around(made, node)
        if not isinstance(made, tuple | list):
            raise Unrecordable(f"{func} gives a {type(made).__name__}")
        node.meta["val"] = map_aggregate(made, lambda part: _layout(part) if isinstance(part, Tensor) else part)
        return type(made)(
            _Shell.around(part, self.graph.call_function(operator.getitem, (node, i)))
            if isinstance(part, Tensor)
            else part
            for i, part in enumerate(made)
        )

    def _node_of(self, arg: Any) -> Any:
        return self.node(arg) if isinstance(arg, Tensor) else arg


def _by_numbers(func: Any, args: Any) -> bool:
    """Tell whether entries are taken by number; with a mask, their count depends on its values."""
    return func is torch.ops.aten.index.Tensor and all(
        place is None or place.dtype not in (torch.bool, torch.uint8) for place in args[1]
    )


def _still(func: Any, args: Any, kwargs: Any) -> bool:
    """Tell whether an operation that can drop entries at random keeps them all."""
    given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **kwargs}
    return "dropout_p" in {a.name for a in func._schema.arguments} and not given.get("dropout_p", 0.0)


def _inside(arg: Any) -> Any:
    return arg.inside if isinstance(arg, _Shell) else arg


def _layout(tensor: Tensor) -> Tensor:
    """Return the tensor without its memory."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


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
        native: runs it with parts in native code (`atoll.torch.native.code.PartlyNative`); ``None`` if PyTorch runs all of it.
    """

    def __init__(self, graph: GraphModule, call: Callable[[list[Tensor]], Sequence[Any]] | None) -> None:
        self.graph = graph
        self._run: Callable[..., Sequence[Tensor]] = graph.forward
        self._call = call
        self.compiled = call is not None
        self.overwrites: set[int] = set()
        self.seconds = {"trace": 0.0, "compile": 0.0}
        self.native: Any = None

    def __call__(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        """Run on tensors of the shapes it was traced with, under ``torch.no_grad``; the list may be emptied."""
        if self.native is not None:
            made: Sequence[Tensor] = self.native(inputs)
            return made
        return self._run(*inputs) if self._call is None else self._call(inputs)


def notice(key: str, text: str) -> None:
    """Warn once in each process."""
    if key not in _NOTICED:
        _NOTICED.add(key)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


@contextmanager
def refuse_loops() -> Iterator[None]:
    """Raise, at the end, if ``vmap`` looped over an operation for which it has no rule, which is slow.

    The warning is kept until then: if it were an error where PyTorch gives it, inside a backward pass, C++ would print it with a traceback and go on.

    Raises:
        UserWarning: names the operation.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("always", message=f".*{_NO_RULE}.*")
        yield
    slow = [one for one in told if _NO_RULE in str(one.message)]
    for other in told:
        if other not in slow:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    if slow:
        raise UserWarning(str(slow[0].message))


_NO_RULE = "batching rule"


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
    made.overwrites = find_mutated(gm)
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

    logs = logging.getLogger("torch._subclasses.fake_tensor")
    before, logs.disabled = (
        logs.disabled,
        True,
    )  # it logs, with a traceback, what it also raises: the caller says that it goes another way
    try:
        with torch.no_grad():
            made: GraphModule = make_fx(fn, decomposition_table=table, tracing_mode="fake")(*inputs)
    finally:
        logs.disabled = before
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
