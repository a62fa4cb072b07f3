"""Passes over a traced step: updates in place, fused operations, constants, and the part that needs the rows alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

__all__ = [
    "Terms",
    "exposed",
    "find_mutated",
    "fold_constants",
    "fuse_updates",
    "halves_of",
    "mutates",
    "part_sum",
    "tidy",
    "write_node",
    "write_sum",
]

# Gradients with something added: the product is set apart from the rest, so that it can accumulate into the weight.
#
# SCAFFOLD steps along ``G + s``, FedDyn along ``G - g + alpha (W - W0)``, with ``G`` a product. ``W <- W - lr (G + r)`` as written makes ``G`` in memory
# of its own, and passes over it twice more. As ``W <- (W - lr r) - lr G``, one pass over ``W`` and ``r`` remains, and ``G`` is never made.


aten = torch.ops.aten
_SIGNS = {aten.add.Tensor: 1, aten.sub.Tensor: -1}
Terms = list[tuple[int, Node]]
"""Summands with their signs."""


def part_sum(toward: Node, is_product: Callable[[Node], bool]) -> tuple[int, Node, Terms] | None:
    """Return the sign and the node of the only product in a sum, and the other summands; ``None`` if there is no sum, no product, or several.

    Several products, as of a recurrent layer's steps, stay one sum: each would round the weight once more.

    Args:
        toward: the sum, used once.
        is_product: recognises the product, behind views.
    """
    terms = _terms(toward, 1)
    products = [(sign, node) for sign, node in terms if is_product(node)]
    if len(terms) < 2 or len(products) != 1:
        return None
    return *products[0], [term for term in terms if term[1] is not products[0][1]]


def _terms(node: Node, sign: int) -> Terms:
    """Return the summands of a sum, in order; of anything else the node itself."""
    sides = node.args
    if node.target not in _SIGNS or node.kwargs or len(node.users) != 1 or not all(isinstance(s, Node) for s in sides):
        return [(sign, node)]
    left, right = sides
    return [*_terms(left, sign), *_terms(right, sign * _SIGNS[node.target])]  # type: ignore[arg-type]


def write_sum(graph: Graph, terms: Terms) -> tuple[int, Node]:
    """Write the sum of terms before the insertion point; return its sign and its node."""
    terms = sorted(terms, key=lambda term: -term[0])  # one that is added first, if there is any
    outer, made = terms[0]
    for sign, node in terms[1:]:
        made = write_node(graph, aten.add.Tensor if sign == outer else aten.sub.Tensor, made, node)
    return outer, made


def write_node(graph: Graph, target: Any, *args: Any) -> Node:
    """Add an operation before the insertion point, and note the layout of its result."""
    made = graph.call_function(target, args)
    # A term may be smaller than the weight, such as a number.
    made.meta["val"] = max((a.meta["val"] for a in args if isinstance(a, Node)), key=lambda value: value.numel())
    return made


# Graph passes on traced programs: the weight update of a linear layer as one matrix product in place.
#
# A step of gradient descent on a linear layer is ``W <- W - lr * (a @ b)``. Done literally, it writes the product to
# memory, reads it back, scales it, and writes a new ``W``: on a CPU that traffic costs more than the product.
# `fuse_updates` turns it into one ``addmm_`` (``baddbmm_`` for a block of clients) that accumulates into ``W``. Whatever is added to the gradient goes into
# ``W`` before (`remainder`).


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


def find_mutated(gm: GraphModule) -> set[int]:
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
        for weight, gradient, factor in _find_scaled(node):
            found = part_sum(gradient, lambda side, weight=weight: _accumulates(side, weight) is not None)  # type: ignore[misc]
            if found is None:
                continue
            (sign, product, rest), target = found, node.target
            with graph.inserting_before(node):
                outer, other = write_sum(graph, rest)
                first = write_node(
                    graph, _opposite(target, outer), weight, write_node(graph, aten.mul.Tensor, other, factor)
                )
                last = write_node(
                    graph, _opposite(target, sign), first, write_node(graph, aten.mul.Tensor, product, factor)
                )
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
    for weight, gradient, factor in _find_scaled(node):
        found = _accumulates(gradient, weight)
        if found is not None:
            return weight, found[0], (factor, -1.0 if node.target is aten.sub.Tensor else 1.0), found[1]
    return None


def _find_scaled(node: Node) -> Iterator[tuple[Node, Node, Any]]:
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


# Graph pass on traced programs: values that are the same in every call are computed once.
#
# A derivative begins with ones and zeros of fixed shapes, a loss with the numbers of the classes. On small tensors each
# of these operations costs as much as a product, so a value that depends on no input is kept as a constant.


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


# A traced step in two: what follows from its rows and random keys alone, such as views of them, and the rest.
#
# The first part needs no parameters, so it can run in another way than the products and convolutions of the rest.


_FEWEST = 30  # operations that are worth a program of their own


def halves_of(gm: GraphModule, first: int) -> tuple[GraphModule, GraphModule] | None:
    """Return the part that depends on the inputs from number ``first`` on alone, and the rest; ``None`` if the first is small.

    The first part takes those inputs, and returns what the rest needs. The rest takes all inputs, and those results after them.
    """
    given = [node for node in gm.graph.nodes if node.op == "placeholder"]
    own: set[Node] = set(given[first:])
    fixed: set[Node] = set()
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "get_attr") or mutates(node):
            continue
        before = node.all_input_nodes
        if fixed.issuperset(before):
            fixed.add(node)
        elif own.union(fixed).issuperset(before):
            own.add(node)
    made = own.difference(given)
    if len(made) < _FEWEST or any(mutates(user) for node in own for user in node.users):
        return None
    results = [
        node
        for node in gm.graph.nodes
        if node in made and isinstance(node.meta.get("val"), torch.Tensor) and not made.issuperset(node.users)
    ]
    ahead, rest = (
        _Copy(gm, given[first:], made | fixed),
        _Copy(gm, [*given, *results], set(gm.graph.nodes) - made - set(given)),
    )
    return ahead.returning(results), rest.module()


class _Copy:
    """A graph with some of the nodes of another one.

    Args:
        gm: the other one.
        inputs: nodes that become inputs, in order.
        nodes: further nodes to copy.
    """

    def __init__(self, gm: GraphModule, inputs: list[Node], nodes: set[Node]) -> None:
        self._gm, self._graph = gm, Graph()
        self._known: dict[Node, Node] = {}
        for i, node in enumerate(inputs):
            self._known[node] = self._graph.placeholder(f"x{i}")
            self._known[node].meta = dict(node.meta)
        for node in gm.graph.nodes:
            if node in nodes and node not in self._known:
                self._known[node] = self._graph.node_copy(node, lambda old: self._known[old])

    def returning(self, results: list[Node]) -> GraphModule:
        """Return the module that returns some nodes."""
        self._graph.output(tuple(self._known[node] for node in results))
        return self.module()

    def module(self) -> GraphModule:
        """Return the module."""
        self._graph.eliminate_dead_code()
        return GraphModule(self._gm, self._graph)
