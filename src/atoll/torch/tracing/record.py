"""Recording the operations of a function while it runs once.

PyTorch's own tracer does this too, but it first loads the code generator, which takes longer than many small jobs. Here
tensors in a shell that hides their values go through the function on zeros, and a dispatch mode below automatic
differentiation and ``vmap`` records every operation. An operation that depends on a value raises, and the caller uses
PyTorch's tracer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Unrecordable", "record"]

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
    given = [mode.given(tensor, i) for i, tensor in enumerate(inputs)]
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

    def given(self, tensor: Tensor, i: int) -> Tensor:
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
