"""From a traced step to C++: elementwise chains become one loop, small products become calls of a template.

Only operations that are known to be exact are translated. An operation, a type or a layout outside the tables raises
`Unsupported`, and PyTorch's own generator compiles the step instead.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from .elementwise import ELEMENTWISE, pointwise, view
from .lookups import LOOKUPS, SEVERAL
from .ops import C_TYPES, POINTWISE, VIEWS, literal
from .products import PRODUCTS
from .recurrence import recurrent_rules
from .reductions import REDUCTIONS
from .script import KernelScript
from .values import Body, Expr, NativeLeaf, Unsupported, Value, dtype_of, leaves_of, meta, plain

__all__ = ["emit"]

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
