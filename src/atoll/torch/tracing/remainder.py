"""Gradients with something added: the product is set apart from the rest, so that it can accumulate into the weight.

SCAFFOLD steps along ``G + s``, FedDyn along ``G - g + alpha (W - W0)``, with ``G`` a product. ``W <- W - lr (G + r)`` as written makes ``G`` in memory
of its own, and passes over it twice more. As ``W <- (W - lr r) - lr G``, one pass over ``W`` and ``r`` remains, and ``G`` is never made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

__all__ = ["Terms", "parted", "summed", "written"]

aten: Any = torch.ops.aten
_SIGNS = {aten.add.Tensor: 1, aten.sub.Tensor: -1}
Terms = list[tuple[int, Node]]
"""Summands with their signs."""


def parted(toward: Node, is_product: Callable[[Node], bool]) -> tuple[int, Node, Terms] | None:
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


def summed(graph: Graph, terms: Terms) -> tuple[int, Node]:
    """Write the sum of terms before the insertion point; return its sign and its node."""
    terms = sorted(terms, key=lambda term: -term[0])  # one that is added first, if there is any
    outer, made = terms[0]
    for sign, node in terms[1:]:
        made = written(graph, aten.add.Tensor if sign == outer else aten.sub.Tensor, made, node)
    return outer, made


def written(graph: Graph, target: Any, *args: Any) -> Node:
    """Add an operation before the insertion point, and note the layout of its result."""
    made = graph.call_function(target, args)
    # A term may be smaller than the weight, such as a number.
    made.meta["val"] = max((a.meta["val"] for a in args if isinstance(a, Node)), key=lambda value: value.numel())
    return made
