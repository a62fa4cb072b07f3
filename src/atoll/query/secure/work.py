"""How many rows of a plan's tables count, and how much work they are, as far as anybody can tell before rows are read.

Guesses of rows rest on constants and on no row: an equality keeps a tenth and its opposite the rest, another comparison a third, a join has as many rows as its larger side (Selinger et al. 1979, table 1). Work is in rows times steps of a sort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .extents import Extents, bound_pairs
from .operators import (
    Compared,
    Connected,
    Expanded,
    Filtered,
    Flag,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Limited,
    Looked,
    MissingValue,
    Negated,
    Operator,
    RowCondition,
    SecurePlan,
    Stacked,
    walk_operators,
)
from .sensitivity import leaf_filters

__all__ = ["expect_rows", "measure_work"]

_EQUAL, _OTHER, _HALF = 0.1, 1 / 3, 0.5
_MOVED = 6
"""Steps that moving the columns of a row costs, beside those of sorting its keys."""


def expect_rows(plan: SecurePlan, totals: Sequence[int]) -> dict[int, float]:
    """``id`` of each operator -> rows of its table that may count.

    Args:
        plan: the plan.
        totals: rows of each leaf, of all sites together.
    """
    found: dict[int, float] = {}
    for op in walk_operators(plan.root):
        if id(op) not in found:
            found[id(op)] = max(1.0, _expected(plan, totals, op, found))
    return found


def _expected(plan: SecurePlan, totals: Sequence[int], op: Operator, known: Mapping[int, float]) -> float:
    if isinstance(op, LeafRows):
        leaf = plan.leaves[op.place]
        return totals[op.place] * (math.prod(_local_part(one) for one in leaf_filters(plan, leaf)) if leaf.size else 1.0)  # fmt: skip
    if isinstance(op, Stacked):
        return sum(known[id(one)] for one in op.sources)
    if isinstance(op, JoinedRows):
        left, right = known[id(op.left)], known[id(op.right)]
        if not op.pairs:
            return left * right * (1.0 if op.condition is None else _part(op.condition))
        pairs = max(left, right) * (1.0 if op.condition is None else _part(op.condition))
        return pairs if op.side == "inner" else max(pairs, left) if op.side == "left" else left + right
    rows = known[id(op.source)]  # type: ignore[attr-defined]
    if isinstance(op, Filtered):
        return rows * _part(op.condition)
    if isinstance(op, GroupedRows):
        return rows * _OTHER if op.keys else 1.0
    if isinstance(op, Limited) and op.rows is not None:
        return min(rows, op.rows)
    return rows


def _local_part(node: Any) -> float:
    """What part of the rows a site's own condition keeps."""
    kind = type(node).__name__
    if kind == "Not":
        return 1 - _local_part(node.this)
    if kind == "NEQ":
        return 1 - _EQUAL
    return _EQUAL if kind in ("EQ", "Like", "Is") else 2 * _EQUAL if kind == "In" else _OTHER


def _part(condition: RowCondition) -> float:
    """What part of the rows a condition of the parties keeps."""
    if isinstance(condition, Compared):
        return _EQUAL if condition.equal else _OTHER
    if isinstance(condition, Connected):
        parts = [_part(one) for one in condition.parts]
        return math.prod(parts) if condition.every else min(1.0, sum(parts))
    if isinstance(condition, Negated):
        return 1 - _part(condition.part)
    return _HALF if isinstance(condition, Flag) else _EQUAL if isinstance(condition, MissingValue) else 1.0


def measure_work(plan: SecurePlan, totals: Sequence[int], left: Callable[[Operator], float | None]) -> float:
    """The work of a plan, in rows times steps.

    Args:
        plan: the plan.
        totals: rows of each leaf, of all sites together.
        left: how many rows of an operator's table are left, ``None`` for all.
    """
    after: dict[int, int] = {}
    cutting = 0.0

    def shrink(op: Operator, rows: int) -> int:
        nonlocal cutting
        most = left(op)
        if most is not None:
            cutting += rows * _MOVED
        after[id(op)] = rows if most is None else max(1, min(rows, math.ceil(most)))
        return after[id(op)]

    Extents(totals, shrink).rows(plan.root)
    every = {id(one): one for one in walk_operators(plan.root)}
    return cutting + sum(_work(op, after) for op in every.values())


def _work(op: Operator, rows: Mapping[int, int]) -> float:
    if isinstance(op, LeafRows):
        return 0.0
    if isinstance(op, JoinedRows):
        n, m = rows[id(op.left)], rows[id(op.right)]
        pairs = bound_pairs(n, m, op.left_most, op.right_most)
        if (op.right_most == 1 and pairs == n) or (op.left_most == 1 and pairs == m):
            return _sorted(n + m)
        return _sorted(n) + _sorted(n + m) + _sorted(m + pairs) + _sorted(n + pairs)
    if isinstance(op, Looked):
        n, m = rows[id(op.source)], rows[id(op.inner)]
        if op.condition is None:
            return _sorted(n + m) if op.pairs else float(n)
        pairs = bound_pairs(n, m, op.source_most, op.inner_most)
        return _sorted(n) + _sorted(n + m) + _sorted(m + pairs) + 2 * _sorted(n + pairs)
    if isinstance(op, Stacked):
        return float(sum(rows[id(one)] for one in op.sources))
    n = rows[id(op.source)]  # type: ignore[attr-defined]
    return float(n) if isinstance(op, Filtered | Expanded) or (isinstance(op, GroupedRows) and not op.keys) else _sorted(n)  # fmt: skip


def _sorted(n: int) -> float:
    return n * (math.log2(max(2, n)) + _MOVED)
