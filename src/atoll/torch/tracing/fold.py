"""Graph pass on traced programs: values that are the same in every call are computed once.

A derivative begins with ones and zeros of fixed shapes, a loss with the numbers of the classes. On small tensors each
of these operations costs as much as a product, so a value that depends on no input is kept as a constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from .fuse import exposed, mutates, tidy

__all__ = ["fold_constants"]

aten = torch.ops.aten
_LARGEST = 1 << 20  # bytes; beyond that, memory costs more than an operation
_FILLED = {aten.ones_like.default, aten.zeros_like.default, aten.full_like.default}
"""Operations that use only their first argument's shape."""


def fold_constants(gm: GraphModule, device: torch.device) -> None:
    """Replace operations that depend on no input by their results.

    Results and overwritten tensors are made again in every call.

    Args:
        gm: a traced program, ATen operations only.
        device: where it runs.
    """
    known: dict[Node, torch.Tensor] = {}
    for node in gm.graph.nodes:
        if _fixed(node, known):
            known[node] = _compute(node, known, device)
    for node, value in known.items():
        if all(user in known for user in node.users):
            continue
        name = f"folded_{node.name}"
        gm.register_buffer(name, value)
        with gm.graph.inserting_before(node):
            constant = gm.graph.get_attr(name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
    tidy(gm)


def _fixed(node: Node, known: dict[Node, torch.Tensor]) -> bool:
    """Tell whether an operation gives the same small tensor in every call and no caller can get hold of it."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if mutates(node) or torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    if not isinstance(value, torch.Tensor) or value.numel() * value.element_size() > _LARGEST:
        return False
    if any(given not in known for given in node.all_input_nodes) and node.target not in _FILLED:
        return False
    return not exposed(node)


def _compute(node: Node, known: dict[Node, torch.Tensor], device: torch.device) -> torch.Tensor:
    def value(given: Node) -> torch.Tensor:
        if given in known:
            return known[given]
        layout = given.meta["val"]
        return torch.empty_strided(layout.size(), layout.stride(), dtype=layout.dtype, device=device)

    target: Any = node.target
    with torch.no_grad():
        made: torch.Tensor = target(*map_arg(node.args, value), **map_arg(node.kwargs, value))
    return made
