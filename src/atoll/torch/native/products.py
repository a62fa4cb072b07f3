"""Matrix products, as calls of templates that know every size and stride."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .script import KernelScript
from .values import Expr, NativeLeaf, Unsupported, Value, lifted

__all__ = ["PRODUCTS"]

aten: Any = torch.ops.aten


def _product(w: KernelScript, node: Node) -> Value:
    """``A B``, and ``C + A B`` with or without writing to C."""
    name = node.target._name.removeprefix("aten::")  # type: ignore[union-attr]
    if node.kwargs and any(node.kwargs.get(k, 1) != 1 for k in ("alpha", "beta")):
        raise Unsupported("a scaled product")
    if node.meta["val"].dtype != torch.float32:
        raise Unsupported(f"a product of {node.meta['val'].dtype}")
    shape = tuple(node.meta["val"].shape)
    if name.endswith("mm_"):
        w.settle()
        to = w.leaf(node.args[0])
        if not to.at.is_contiguous():
            raise Unsupported("an update of a view")
    else:
        to = w.new(shape, torch.float32)
        begin = w.get(node.args[0], torch.float32) if "add" in name else Expr("0.0f", [], shape, torch.float32)
        w.loop(to, begin)
    a, b = w.operand(node.args[-2]), w.leaf(node.args[-1])
    a, b, to_at = (leaf if leaf.at.dim() == 3 else lifted(leaf) for leaf in (a, b, to))
    _multiply(w, a, b, to_at)
    return to


def _multiply(w: KernelScript, a: NativeLeaf, b: NativeLeaf, to: NativeLeaf) -> None:
    batch, m, k = a.at.shape
    n = b.at.shape[2]
    if 0 in (batch, m, n, k):
        return
    within = a.at.stride(2) == 1 and b.at.stride(1) == 1 and k >= 8
    if not within and b.at.stride(2) != 1 and n > 1:
        b = w.store(b)
    (ab, am, ak), (bb, bk, bn), (cb, cm, _) = a.at.stride(), b.at.stride(), to.at.stride()
    sides = [f"{leaf.name} + {leaf.at.storage_offset()}" for leaf in (a, b, to)]
    outer = f"outer<{m}, {n}, {k}, {am}, {ak}, {bk}, {cm}>"
    call = f"inner<{m}, {n}, {k}, {am}, {bn}, {cm}>" if within else outer
    places = [f"{side} + z*{step}" if batch > 1 else side for side, step in zip(sides, (ab, bb, cb), strict=True)]
    loop = f"for (int z = 0; z < {batch}; ++z) " if batch > 1 else ""
    w.body.lines.append(f"{loop}{call}({', '.join(places)});")


PRODUCTS: dict[Any, Callable[[KernelScript, Node], Value]] = dict.fromkeys(
    (
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.addmm_.default,
        aten.baddbmm.default,
        aten.baddbmm_.default,
    ),
    _product,
)
