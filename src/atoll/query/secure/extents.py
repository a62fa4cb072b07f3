"""How many rows the tables of a plan have, how large their numbers may become, and how much work they are: all of it follows from the sizes of the leaves.

How many of these rows count nobody can tell before rows are read (`expect_rows`): an equality keeps a tenth and its opposite the rest, another comparison a third, a join has as many rows as its larger side
(Selinger et al. 1979, table 1). Work (`measure_work`) is in rows times steps of a sort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atoll.core.errors import CompositionError

from .limits.sensitivity import leaf_filters
from .operators import (
    ChosenValue,
    Compared,
    Computed,
    Connected,
    Expanded,
    Filtered,
    Fixed,
    Flag,
    GroupedRows,
    JoinedRows,
    KeptRows,
    LeafRows,
    Limited,
    Looked,
    MatchedRows,
    MissingValue,
    NearPairs,
    Negated,
    Operator,
    Quotient,
    Ranked,
    RowCondition,
    SecurePlan,
    Stacked,
    Stored,
    ToldJoin,
    TruthValue,
    Value,
    inputs_of,
    walk_operators,
)

__all__ = ["Extents", "bound_pairs", "expect_rows", "fill_up", "measure_work", "too_many_rows"]

_LARGEST = 1 << 62
"""Numbers stay below it, so that differences of two have a sign in 64 bits."""


Bound = dict[tuple[str, ...], int]
"""Columns of leaves that are multiplied -> a factor: a number is at most the sum of these products."""
ColumnBounds = dict[str, Bound]


class Extents:
    """How many rows each table of a plan has, and how large its numbers may become.

    A number is at most a sum of products of columns that sites share, with factors that follow from constants and numbers of rows. Each of the products gets an equal part of 64 bits, and each of its
    columns an equal share of the part: so follows how large a column may be (`largest_of`).

    Args:
        sizes: rows of each leaf, of all sites together.
        shrink: of an operator and its rows how many are left, where tables are cut.

    Attributes:
        largest: rows of the largest table.
        side: rows of the larger side of a matching; 0 without one.
        told: pairs of joins whose size is opened, by their number, where others have as many as their longer table; ``None`` takes all pairs that could be.
        kept: rows of relations that the parties kept, by name, where they are not as many as what is below would make.
    """

    told: Mapping[int, int] | None = None
    kept: Mapping[str, int] | None = None

    def __init__(self, sizes: Sequence[int], shrink: Callable[[Operator, int], int] | None = None) -> None:
        self._shrink = shrink
        self._sizes, self.largest, self.side = list(sizes), max(sizes, default=1), 0
        self._known: dict[int, tuple[int, ColumnBounds]] = {}
        self._seen: list[Bound] = []

    def rows(self, operator: Operator) -> int:
        """Rows of a table."""
        return self._measure(operator)[0]

    def size_of(self, operator: Operator) -> int:
        """Rows that the parties work on to make an operator's table: those of it, or of what it is made of, or pairs that it looks at."""
        below = sum(self.rows(one) for one in inputs_of(operator))
        before, self.largest = self.largest, 0
        self._known.pop(id(operator), None)
        self.rows(operator)
        own, self.largest = self.largest, max(before, self.largest)
        return max(1, own, below)

    def largest_of(self, column: str) -> int:
        """How large the numbers of a leaf's column may be.

        Raises:
            CompositionError: no bound is enough.
        """
        found = _LARGEST
        for bound in self._seen:
            for product, factor in bound.items():
                if factor * len(bound) >= _LARGEST:
                    raise CompositionError("a number of the answer might leave 64 bits", where="smcql", remedy="divide or round the values in the statement")  # fmt: skip
                if column in product and factor:  # what is multiplied by 0 may be of any size
                    found = min(found, int((_LARGEST // (factor * len(bound))) ** (1 / len(product))))
        return found

    def find_large(self, most: Mapping[str, int]) -> frozenset[str] | None:
        """The columns of leaves that make a number which might leave 64 bits, if there is one.

        Args:
            most: column -> the largest number of it.
        """
        for bound in self._seen:
            if sum(factor * math.prod(most.get(name, 1) for name in product) for product, factor in bound.items()) >= _LARGEST:  # fmt: skip
                return frozenset(name for product in bound for name in product)
        return None

    def _measure(self, operator: Operator) -> tuple[int, ColumnBounds]:
        known = self._known.get(id(operator))
        if known is None:
            rows, bounds = self._measured(operator)
            self.largest = max(self.largest, rows)
            known = self._known[id(operator)] = (rows if self._shrink is None else self._shrink(operator, rows)), bounds
        return known

    def _measured(self, operator: Operator) -> tuple[int, ColumnBounds]:
        if isinstance(operator, LeafRows):
            return self._sizes[operator.place], {}
        makers: dict[type, Callable[[Any], tuple[int, ColumnBounds]]] = {Stacked: self._of_stack, JoinedRows: self._of_join, Looked: self._of_join, MatchedRows: self._of_matching, NearPairs: self._of_near}  # fmt: skip
        make = next((method for kind, method in makers.items() if isinstance(operator, kind)), None)
        if make is not None:
            return make(operator)
        n, known = self._measure(operator.source)  # type: ignore[attr-defined]
        if isinstance(operator, GroupedRows):
            return self._of_groups(operator, n, known)
        if isinstance(operator, Filtered):
            self._check(operator.condition, known)
        elif isinstance(operator, Expanded):
            known = known | {column.name: self._bound(value, known) for column, value in operator.columns}
        elif isinstance(operator, Ranked):
            known = known | self._of_windows(operator, n, known)
        elif isinstance(operator, Limited) and operator.rows is not None:
            return max(1, min(n, operator.rows)), known
        return n, known

    def _of_stack(self, operator: Stacked) -> tuple[int, ColumnBounds]:
        before = self.largest
        found = [self._measure(one) for one in operator.sources]
        if isinstance(operator, KeptRows) and operator.held:  # nobody makes the tables below
            self.largest = before
            found = [(rows if self.kept is None else self.kept[operator.relation], known) for rows, known in found]
        bounds = {}
        for k, column in enumerate(operator.columns):
            parts = [self._bound(row[k], known) for row, (_, known) in zip(operator.inputs, found, strict=True)]
            bounds[column.name] = _widest(parts)
        return sum(rows for rows, _ in found), bounds

    def _of_join(self, operator: JoinedRows | Looked) -> tuple[int, ColumnBounds]:
        looked = isinstance(operator, Looked)
        (n, mine), (m, other) = [self._measure(one) for one in ((operator.source, operator.inner) if isinstance(operator, Looked) else (operator.left, operator.right))]  # fmt: skip
        both = mine | other
        for one, two in operator.pairs:
            self._compare(one, two, both)
        if operator.condition is not None:
            self._check(operator.condition, both)
        if isinstance(operator, ToldJoin) and self.told is not None:
            pairs = max(1, self.told.get(operator.number, max(n, m)))
            return pairs + {"inner": 0, "left": 0 if operator.condition is None else n, "full": n + m}[operator.side], both  # fmt: skip
        if isinstance(operator, JoinedRows):
            return self.pairs(operator, n, m), both
        if looked and operator.condition is not None:
            self.largest = max(self.largest, bound_pairs(n, m, operator.source_most, operator.inner_most))
        return n, mine | {column.name: _of(other, column.name) for column in operator.columns}

    def _of_matching(self, operator: MatchedRows) -> tuple[int, ColumnBounds]:
        (n, mine), (m, other) = self._measure(operator.left), self._measure(operator.right)
        both = mine | other
        self.largest, self.side = max(self.largest, n * m), max(self.side, n, m)
        self._keep(_times(self._bound(operator.weight, both), 8 * (n + m + 1)))
        return n, both

    def _of_near(self, operator: NearPairs) -> tuple[int, ColumnBounds]:
        return self._measure(operator.left)[0] * self._measure(operator.right)[0], {}

    def _of_groups(self, operator: GroupedRows, n: int, known: ColumnBounds) -> tuple[int, ColumnBounds]:
        made = {key.name: _of(known, key.name) for key in operator.keys}
        for one in operator.columns:
            bound: Bound = {(): 1} if one.operation == "count" or one.value is None else self._bound(one.value, known)
            made[one.column.name] = self._keep(_times(bound, n if one.operation in ("count", "sum") else 1))
            if one.where is not None:
                self._check(one.where, known)
        return n if operator.keys else 1, made

    def _of_windows(self, operator: Ranked, n: int, known: ColumnBounds) -> ColumnBounds:
        made = {}
        for one in operator.columns:
            bound: Bound = {(): 1} if one.value is None or one.operation == "count" else self._bound(one.value, known)
            made[one.column.name] = self._keep(_times(bound, 1 if one.operation in ("min", "max", "lag") else n))
        return made

    @staticmethod
    def pairs(operator: JoinedRows, left: int, right: int) -> int:
        """Rows of a join."""
        if operator.side == "left" and operator.condition is None:
            choices = [left * right, left * operator.right_most, right * operator.left_most + left if operator.left_most else 0]  # fmt: skip
            return min(one for one in choices if one)
        found = bound_pairs(left, right, operator.left_most, operator.right_most)
        return found + (0 if operator.side == "inner" else left if operator.side == "left" else left + right)

    def _keep(self, bound: Bound) -> Bound:
        self._seen.append(bound)
        return bound

    def _bound(self, value: Value, known: Mapping[str, Bound]) -> Bound:
        if isinstance(value, Stored):
            return _of(known, value.name)
        if isinstance(value, Fixed):
            return {(): abs(value.value) if isinstance(value.value, int) else 1}
        if isinstance(value, Computed):
            left, right = self._bound(value.left, known), self._bound(value.right, known)
            if value.operation == "*":
                return self._keep(_product(left, right))
            return self._keep(_sum(*(_times(bound, 10 ** (value.code.scale - side.code.scale)) for bound, side in ((left, value.left), (right, value.right)))))  # fmt: skip
        if isinstance(value, ChosenValue):
            for condition, _ in value.cases:
                self._check(condition, known)
            parts = [*(one for _, one in value.cases), value.default]
            return self._keep(_widest([_times(self._bound(one, known), 10 ** max(0, value.code.scale - one.code.scale)) for one in parts]))  # fmt: skip
        if isinstance(value, TruthValue):
            self._check(value.condition, known)
        return {(): 1}

    def _check(self, condition: RowCondition, known: Mapping[str, Bound]) -> None:
        if isinstance(condition, Connected):
            for part in condition.parts:
                self._check(part, known)
        elif isinstance(condition, Negated):
            self._check(condition.part, known)
        elif isinstance(condition, MissingValue):
            self._bound(condition.value, known)
        elif isinstance(condition, Compared):
            self._compare(condition.left, condition.right, known)

    def _compare(self, left: Value, right: Value, known: Mapping[str, Bound]) -> None:
        if not (left.arithmetic or right.arithmetic):
            return
        (x, under), (y, other) = [(one.over, one.under) if isinstance(one, Quotient) else (one, None) for one in (left, right)]  # fmt: skip
        scale = max(x.code.scale, y.code.scale)
        a, b = (_times(self._bound(one, known), 10 ** (scale - one.code.scale)) for one in (x, y))
        self._keep(_sum(a if other is None else _product(a, self._bound(other, known)), b if under is None else _product(b, self._bound(under, known))))  # fmt: skip


def fill_up(count: int) -> int:
    """The rows up to which so many are filled: the next power of two."""
    return 1 << max(0, count - 1).bit_length()


def too_many_rows(rows: int, most: int) -> CompositionError:
    """The refusal of a table that the parties cannot hold."""
    return CompositionError(f"a table of {rows:,} rows, filled up, and parties hold {most:,}", where="smcql", remedy="let policies say how many rows may have one key: key: true, or at_most: 7; let them declare join: local where it is so; or ask for fewer rows")  # fmt: skip


def bound_pairs(left: int, right: int, left_most: int, right_most: int) -> int:
    """Most pairs of rows with equal keys: all, or as many as the rows that may have one key allow."""
    choices = [left * right, left * right_most, right * left_most]
    return min(one for one in choices if one)


def _of(known: Mapping[str, Bound], name: str) -> Bound:
    """The bound of a column: one that nothing is known of is a leaf's own."""
    return known.get(name, {(name,): 1})


def _times(bound: Bound, factor: int) -> Bound:
    return {product: factor * one for product, one in bound.items()}


def _sum(one: Bound, other: Bound) -> Bound:
    return {product: one.get(product, 0) + other.get(product, 0) for product in {**one, **other}}


def _product(one: Bound, other: Bound) -> Bound:
    found: Bound = {}
    for a, p in one.items():
        for b, q in other.items():
            key = tuple(sorted((*a, *b)))
            found[key] = found.get(key, 0) + p * q
    return found


def _widest(bounds: Sequence[Bound]) -> Bound:
    """The bound of a value that is one of several."""
    return {product: max(one.get(product, 0) for one in bounds) for product in {k: 1 for one in bounds for k in one}}


# ---------------------------------------------------------------- how many rows count, and how much work they are


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
