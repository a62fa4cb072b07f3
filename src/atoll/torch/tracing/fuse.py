"""Graph passes on traced programs: the weight update of a linear layer as one matrix product in place.

A step of gradient descent on a linear layer is ``W <- W - lr * (a @ b)``. Done literally, it writes the product to
memory, reads it back, scales it, and writes a new ``W``: on a CPU that traffic costs more than the product.
`fuse_updates` turns it into one ``addmm_`` (``baddbmm_`` for a block of clients) that accumulates into ``W``. Whatever is added to the gradient goes into
``W`` before (`remainder`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from .remainder import parted, summed, written

__all__ = ["exposed", "fuse_updates", "mutated", "mutates", "tidy"]

aten = torch.ops.aten
_SAME = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}
_VIEWS = {
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.as_strided.default,
    *_SAME,
}
_RESHAPES = {aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_PRODUCTS_BY_ENTRY = {aten.mul.Scalar, aten.mul.Tensor}
_PRODUCTS = {aten.mm.default, aten.bmm.default}
_IN_PLACE = {
    (aten.mm.default, True): aten.addmm_.default,
    (aten.mm.default, False): aten.addmm.default,
    (aten.bmm.default, True): aten.baddbmm_.default,
    (aten.bmm.default, False): aten.baddbmm.default,
}
_ENTRIES_IN_PLACE: dict[Any, Any] = {aten.add.Tensor: aten.add_.Tensor, aten.sub.Tensor: aten.sub_.Tensor}


def tidy(gm: GraphModule) -> None:
    """Drop operations that change nothing or whose result is unused. ``recompile`` writes the module's code, once after all passes."""
    for node in list(gm.graph.nodes):
        if _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    for node in reversed(list(gm.graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not mutates(node):
            gm.graph.erase_node(node)


def _changes_nothing(node: Node) -> bool:
    """Tell whether the result is the first argument: a detach, the same shape again, or a product with one that needs no copy."""
    if node.target in (aten.detach.default, aten.alias.default):
        return True
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return False
    given = node.args[0]
    if node.target in _RESHAPES:
        return bool(given.meta["val"].shape == node.meta["val"].shape)
    if node.target not in _PRODUCTS_BY_ENTRY or node.args[1] != 1 or given.meta["val"].dtype != node.meta["val"].dtype:
        return False
    return not exposed(given) and not exposed(node)


def fuse_updates(gm: GraphModule, owned: set[int]) -> int:
    """Fuse ``W ± lr * product`` into an accumulating product; return how many were fused.

    Args:
        gm: a traced program, ATen operations only.
        owned: numbers of the inputs that the program may overwrite.
    """
    graph = gm.graph
    apart = _set_apart(graph)
    order = {node: i for i, node in enumerate(graph.nodes)}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    free = {inputs[i] for i in owned}
    fused = 0

    def last(weight: Node, node: Node) -> bool:
        return weight in free and all(order[u] <= order[node] for u in _readers(weight) if u is not node)

    for node in list(graph.nodes):
        found = _match(node)
        if found is None:
            continue
        weight, product, factor, flip = found
        if weight in apart:
            if last(weight.args[0], weight):  # type: ignore[arg-type]
                weight.target, weight.meta["updates"] = _ENTRIES_IN_PLACE[weight.target], True
            free.add(weight)
        in_place = last(weight, node)
        made = _emit(graph, node, weight, product, factor, flip, in_place)
        order[made] = order[node]
        free.add(made)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        fused += 1
    tidy(gm)
    return fused


def mutated(gm: GraphModule) -> set[int]:
    """Return the numbers of the inputs that a program overwrites."""
    inputs = {node: i for i, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    return {inputs[n.args[0]] for n in gm.graph.nodes if mutates(n) and n.args[0] in inputs}


def mutates(node: Node) -> bool:
    """Tell whether an operation writes to its first argument."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def exposed(node: Node) -> bool:
    """Tell whether the node's memory is written to or returned, also through views."""
    return any(reader.op == "output" or mutates(reader) for reader in _readers(node))


def _readers(node: Node) -> set[Node]:
    """Return everything that reads the node's memory, also through views."""
    found: set[Node] = set()
    waiting = list(node.users)
    while waiting:
        user = waiting.pop()
        if user not in found:
            found.add(user)
            waiting += user.users if _shares(user) else ()
    return found


def _shares(node: Node) -> bool:
    """Tell whether a result may share the memory of an argument."""
    schema = getattr(node.target, "_schema", None)
    views = schema is not None and any(value.alias_info is not None for value in schema.returns)
    return views or node.target in _VIEWS or node.target is operator.getitem


def _set_apart(graph: Graph) -> set[Node]:
    """Write ``W ± lr (P + r)`` as ``(W ± lr r) ± lr P`` where ``P`` is a product; return the nodes of the first halves."""
    made = set()
    for node in list(graph.nodes):
        for weight, gradient, factor in _scaled(node):
            found = parted(gradient, lambda side, weight=weight: _accumulates(side, weight) is not None)  # type: ignore[misc]
            if found is None:
                continue
            (sign, product, rest), target = found, node.target
            with graph.inserting_before(node):
                outer, other = summed(graph, rest)
                first = written(graph, _opposite(target, outer), weight, written(graph, aten.mul.Tensor, other, factor))
                last = written(graph, _opposite(target, sign), first, written(graph, aten.mul.Tensor, product, factor))
            last.meta = dict(node.meta)
            node.replace_all_uses_with(last)
            _erase(graph, node)
            made.add(first)
            break
    return made


def _opposite(target: Any, sign: int) -> Any:
    """Return addition for subtraction and the other way round, if the sign is negative."""
    return target if sign > 0 else (aten.sub.Tensor if target is aten.add.Tensor else aten.add.Tensor)


def _erase(graph: Graph, node: Node) -> None:
    """Erase a node that nothing uses, and whatever only it used."""
    given = [arg for arg in node.all_input_nodes if arg.op == "call_function"]
    graph.erase_node(node)
    for arg in given:
        if not arg.users and not mutates(arg):
            _erase(graph, arg)


def _match(node: Node) -> tuple[Node, Node, tuple[Any, float], bool] | None:
    """Recognise ``W - lr * P`` and ``W + lr * P`` where ``P`` is a product behind views, used nowhere else.

    Returns:
        ``(W, product, (lr, sign), whether W matches the transposed product)``.
    """
    for weight, gradient, factor in _scaled(node):
        found = _accumulates(gradient, weight)
        if found is not None:
            return weight, found[0], (factor, -1.0 if node.target is aten.sub.Tensor else 1.0), found[1]
    return None


def _scaled(node: Node) -> Iterator[tuple[Node, Node, Any]]:
    """Yield ``(W, gradient, lr)`` of ``W - lr * gradient`` and ``W + lr * gradient``."""
    if node.target not in (aten.sub.Tensor, aten.add.Tensor) or len(node.args) < 2 or node.kwargs:
        return
    weight, scaled = node.args[:2]
    if not isinstance(weight, Node) or not isinstance(scaled, Node):
        return
    if scaled.target is not aten.mul.Tensor or len(scaled.users) != 1:
        return
    for gradient, factor in (scaled.args, reversed(scaled.args)):
        if isinstance(gradient, Node) and _is_scalar(factor):
            yield weight, gradient, factor


def _accumulates(gradient: Node, weight: Node) -> tuple[Node, bool] | None:
    """Return the product behind views, and whether it is transposed, if it is used nowhere else and fits the weight."""
    product, views = _through_views(gradient)
    if product.target not in _PRODUCTS or len(product.users) != 1:
        return None
    flip = _orientation(product, views, weight)
    return None if flip is None else (product, flip)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Node):
        return bool(value.meta["val"].dim() == 0)
    return isinstance(value, int | float)


def _through_views(node: Node) -> tuple[Node, list[Node]]:
    views: list[Node] = []
    while node.target in _VIEWS and len(node.users) == 1 and isinstance(node.args[0], Node):
        views.append(node)
        node = node.args[0]
    return node, views[::-1]


def _orientation(product: Node, views: list[Node], weight: Node) -> bool | None:
    """Follow the entries of the product through the views: are they in the weight's order, or transposed?"""
    shape = product.meta["val"].shape
    if weight.meta["val"].dim() != len(shape):
        return None
    entries = torch.arange(product.meta["val"].numel()).reshape(shape)
    seen = entries
    for view in views:
        seen = view.target(seen, *view.args[1:], **view.kwargs)  # type: ignore[operator]
    if seen.shape != weight.meta["val"].shape:
        return None
    if seen.shape == entries.shape and torch.equal(seen, entries):
        return False
    turned = entries.transpose(-2, -1)
    return True if seen.shape == turned.shape and torch.equal(seen, turned) else None


def _emit(
    graph: Graph, node: Node, weight: Node, product: Node, factor: tuple[Any, float], flip: bool, in_place: bool
) -> Node:
    """Write ``addmm(W, ±lr * a, b)``; the factor goes onto the smaller operand."""
    a, b = product.args[:2]
    lr, sign = factor
    with graph.inserting_before(node):
        if isinstance(lr, Node) and sign < 0:
            lr = _call(graph, aten.neg.default, lr)
        elif not isinstance(lr, Node):
            lr = sign * lr
        left_smaller = a.meta["val"].numel() <= b.meta["val"].numel()  # type: ignore[union-attr]
        scaled = _call(graph, aten.mul.Tensor, a if left_smaller else b, lr)
        a, b = (scaled, b) if left_smaller else (a, scaled)
        if flip:
            a, b = (_call(graph, aten.transpose.int, side, -2, -1) for side in (b, a))
        made = graph.call_function(_IN_PLACE[product.target, in_place], (weight, a, b))  # type: ignore[index]
    made.meta = dict(node.meta)
    return made


def _call(graph: Graph, target: Any, first: Any, *args: Any) -> Node:
    """Add an operation and note its layout: that of the first argument, which it scales, negates or transposes."""
    made = graph.call_function(target, (first, *args))
    layout = first.meta["val"]
    made.meta["val"] = layout.transpose(*args) if target is aten.transpose.int else layout
    return made
