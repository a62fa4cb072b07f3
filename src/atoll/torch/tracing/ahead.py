"""A traced step in two: what follows from its rows and random keys alone, such as views of them, and the rest.

The first part needs no parameters, so it can run in another way than the products and convolutions of the rest.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node

from .fuse import mutates

__all__ = ["halves_of"]

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
