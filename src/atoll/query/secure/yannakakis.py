"""Groups of joined rows without the join: tables are added up along a join tree before they meet (Yannakakis 1981; under secure computation Wang, Yi 2021, "Secure Yannakakis").

``SELECT sum(a.x * b.y) FROM a JOIN b ON a.k = b.k`` needs no pair of rows: ``b`` becomes one row a key, with the sum of ``y`` and the number of rows, and each row of ``a`` finds that row. So nothing is larger than
a table, however often keys repeat, and no policy has to bound how often (`at_most`).

The tables of an inner join are a hypergraph: each has the columns that joins compare, equal ones being one node. If ears can be taken off until one table is left (Graham; Yu, Özsoyoğlu 1979), the joins are
*acyclic* and the tables form a tree, in which those that share a node are connected. From its leaves up, a table below another one becomes

* a *semijoin*, a bit beside each row above, if the answer needs only that there is a match: ``count(DISTINCT a.x)``, ``max(a.x)``, DISTINCT;
* else a *group* by the columns that both share, with what the aggregates need of it: a number of rows, sums, the least and the largest value. Numbers add up below and multiply above, so each aggregate is one over a
  semiring: ``(+, *)`` for COUNT, SUM and what is made of them, and ``min`` and ``max`` in place of ``+`` for MIN and MAX. A sum of products over several tables is a sum of products of sums; NULL is what no row of a table adds to.

A table whose keys are unique (`key`) is attached as before. The tables at the root stay rows: those with columns of GROUP BY, with a condition on several tables, or with a value that cannot be divided among tables.
If there are several, they are joined at the end. Joins of a cycle stay as they are, and `EXPLAIN` says which tables it has.

This is an optimisation of the planner and no rule: nobody has to ask for it, and it opens nothing that the join would not have opened. It is made of the operators that there are, and is
taken where it is less work (`measure_work`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from ..column_codes import ColumnCode
from .extents import measure_work
from .limits.sensitivity import count_key_rows
from .operators import (
    ChosenValue,
    Compared,
    Computed,
    Connected,
    Expanded,
    Filtered,
    Fixed,
    Flag,
    GroupColumn,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Looked,
    MatchedRows,
    MissingValue,
    NearPairs,
    Negated,
    Operator,
    Ranked,
    RowCondition,
    SecurePlan,
    Stacked,
    Stored,
    Value,
    rewrite_operators,
    stored_names,
    walk_operators,
)

__all__ = ["aggregate_early", "find_cycle"]

_WHOLE = ColumnCode("whole", "BIGINT")
_GUESSED = 768
"""Rows of a table, of all sites, for which the work of two plans is compared."""
_COLUMN = re.compile(r'"[^"]+"\."[^"]+"')
_MOST_TERMS = 16
"""Most products that a sum is written out to."""


def aggregate_early(plan: SecurePlan) -> SecurePlan:
    """The plan with groups of acyclic joins made along a join tree, where that is less work.

    A plan that few units must not show in (``min_count`` above 1) stays: it counts the units of each table in every row of the join.
    """
    if plan.policy.min_count > 1 or any(isinstance(one, MatchedRows | NearPairs) for one in walk_operators(plan.root)):
        return plan
    names = (f"y{k}" for k in itertools.count())

    def changed(old: Operator, new: Operator) -> Operator:
        del old
        if type(new) is not GroupedRows:
            return new
        block = _flatten(plan, new.source)
        return new if len(block.relations) < 2 else _replace_groups(plan, new, block, names)

    return replace(plan, root=rewrite_operators([plan.root], changed)[0])


def _replace_groups(plan: SecurePlan, groups: GroupedRows, block: _JoinBlock, names: Iterator[str]) -> Operator:
    """Groups of joined rows made early, if the joins are acyclic and it is less work."""
    tree = _JoinTree(plan, groups, block)
    if tree.cycle:
        return replace(groups, what=f"{groups.what} (the joins of {', '.join(tree.cycle)} form a cycle, so that their rows are not added up before)")  # fmt: skip
    totals = [_GUESSED if leaf.size else 1 for leaf in plan.leaves]

    def work(root: Operator) -> float:
        return measure_work(replace(plan, root=root), totals, lambda op: None)

    made = [_EarlyGroups(tree, needed, names).make() for needed in tree.choices]
    best = min(made, key=work)
    return best if work(best) < work(groups) else groups


# ---------------------------------------------------------------- the tables of a join


def _conjuncts(condition: RowCondition | None) -> list[RowCondition]:
    if condition is None:
        return []
    if isinstance(condition, Connected) and condition.every:
        return [one for part in condition.parts for one in _conjuncts(part)]
    return [condition]


def _all_of(conditions: Sequence[RowCondition]) -> RowCondition | None:
    return None if not conditions else conditions[0] if len(conditions) == 1 else Connected(True, tuple(conditions))


def _column_names(plan: SecurePlan, op: Operator) -> set[str]:
    """The names of a table's columns, bits too."""
    if isinstance(op, LeafRows):
        return {one.name for one in plan.leaves[op.place].columns}
    if isinstance(op, JoinedRows):
        return _column_names(plan, op.left) | _column_names(plan, op.right)
    if isinstance(op, Stacked):
        return {one.name for one in op.columns} | set(op.flags)
    if isinstance(op, GroupedRows):
        return {one.name for one in op.keys} | {one.column.name for one in op.columns}
    made = _column_names(plan, op.source)  # type: ignore[attr-defined]
    if isinstance(op, Expanded):
        return made | {one.name for one, _ in op.columns}
    if isinstance(op, Looked):
        return made | {op.flag, *(one.name for one in op.columns)}
    return made | {one.column.name for one in op.columns} if isinstance(op, Ranked) else made


@dataclass
class _JoinBlock:
    """An inner join of several tables, written out.

    Attributes:
        relations: the tables, each with the conditions and columns that read it alone.
        pairs: values that are equal.
        conditions: further conditions, which read several tables.
        derived: columns that are computed from several tables, or from none.
        homes: name of a column -> its table.
    """

    relations: list[Operator]
    pairs: list[tuple[Value, Value]] = field(default_factory=list)
    conditions: list[RowCondition] = field(default_factory=list)
    derived: dict[str, tuple[Stored, Value]] = field(default_factory=dict)
    homes: dict[str, int] = field(default_factory=dict)

    def reads(self, node: Any) -> frozenset[int]:
        """The tables whose columns values or conditions read."""
        found: set[int] = set()
        for name in stored_names(node):
            if name in self.derived:
                found |= self.reads(self.derived[name][1])
            elif name in self.homes:
                found.add(self.homes[name])
        return frozenset(found)

    def written_out(self, node: Any) -> Any:
        """Values or conditions with derived columns in full."""
        if isinstance(node, Stored):
            return self.derived[node.name][1] if node.name in self.derived else node
        if isinstance(node, tuple):
            return tuple(self.written_out(one) for one in node)
        if is_dataclass(node) and not isinstance(node, type | ColumnCode):
            return replace(node, **{one.name: self.written_out(getattr(node, one.name)) for one in fields(node)})
        return node

    def keep(self, conditions: Sequence[RowCondition], what: str = "") -> None:
        """Have conditions hold: at the table that they read alone, or of the joined rows."""
        for one in conditions:
            full = self.written_out(one)
            read = self.reads(full)
            if len(read) == 1:
                (k,) = read
                self.relations[k] = Filtered(self.relations[k], full, what=what)
            else:
                self.conditions.append(full)

    def add(self, op: Expanded) -> None:
        """Add columns: to the table that they read alone, or to the joined rows."""
        for column, value in op.columns:
            full = self.written_out(value)
            read = self.reads(full)
            if len(read) == 1:
                (k,) = read
                self.relations[k] = Expanded(self.relations[k], ((column, full),), what=op.what)
                self.homes[column.name] = k
            else:
                self.derived[column.name] = column, full

    def look(self, op: Looked) -> bool:
        """Add a lookup to the table that alone decides about it; whether there is one."""
        asked = self.written_out((tuple(value for value, _ in op.pairs), op.condition))
        read = self.reads(asked)
        if not op.pairs or len(read) != 1:
            return False
        (k,) = read
        pairs = tuple((self.written_out(value), other) for value, other in op.pairs)
        self.relations[k] = replace(op, source=self.relations[k], pairs=pairs, condition=asked[1])
        self.homes |= dict.fromkeys((op.flag, *(one.name for one in op.columns)), k)
        return True


def _flatten(plan: SecurePlan, op: Operator) -> _JoinBlock:
    """The tables that inner joins bring together; one table alone, if the operator is none."""
    if type(op) is JoinedRows and op.side == "inner":
        left, right = _flatten(plan, op.left), _flatten(plan, op.right)
        n = len(left.relations)
        made = _JoinBlock([*left.relations, *right.relations], [*left.pairs, *right.pairs, *op.pairs], [*left.conditions, *right.conditions], left.derived | right.derived, left.homes | {name: n + k for name, k in right.homes.items()})  # fmt: skip
        made.keep(_conjuncts(op.condition), op.what)
        return made
    if isinstance(op, Expanded | Filtered | Looked):
        made = _flatten(plan, op.source)
        if len(made.relations) > 1:
            if isinstance(op, Expanded):
                made.add(op)
                return made
            if isinstance(op, Filtered):
                made.keep(_conjuncts(op.condition), op.what)
                return made
            if made.look(op):
                return made
    return _JoinBlock([op], homes=dict.fromkeys(_column_names(plan, op), 0))


# ---------------------------------------------------------------- the join tree


def find_cycle(edges: Sequence[frozenset[int]]) -> list[int]:
    """The tables whose joins form a cycle, by their places; none if joins are acyclic (the ear removal of Graham, and of Yu and Özsoyoğlu 1979).

    Args:
        edges: the columns of each table that joins compare; equal ones are one number.
    """
    left = list(range(len(edges)))
    while len(left) > 1:
        for k in left:
            others = [j for j in left if j != k]
            shared = edges[k] & frozenset().union(*(edges[j] for j in others))
            if any(shared <= edges[j] for j in others):
                left = others
                break
        else:
            return left
    return []


def _span(edges: Sequence[frozenset[int]], inner: frozenset[int]) -> list[set[int]]:
    """The neighbors of each table in a join tree of acyclic joins: a spanning tree in which neighbors share as many columns as can be (Bernstein, Goodman 1981). Of equal trees one that keeps some tables together."""
    n = len(edges)
    links = sorted(itertools.combinations(range(n), 2), key=lambda two: (-len(edges[two[0]] & edges[two[1]]), -len(inner & set(two)), two))  # fmt: skip
    parts, neighbors = list(range(n)), [set[int]() for _ in range(n)]
    for a, b in links:
        if parts[a] != parts[b]:
            parts = [parts[a] if one == parts[b] else one for one in parts]
            neighbors[a].add(b)
            neighbors[b].add(a)
    return neighbors


class _JoinTree:
    """The joins of a group, and which of its tables must stay rows.

    Args:
        plan: the plan.
        groups: the group.
        block: the joined tables.

    Attributes:
        cycle: the tables whose joins form a cycle, in words; none if they are acyclic.
        choices: the tables that stay rows; several choices, if it is free.
    """

    def __init__(self, plan: SecurePlan, groups: GroupedRows, block: _JoinBlock) -> None:
        self.plan, self.groups, self.block = plan, groups, block
        self.values: list[dict[int, Value]] = [{} for _ in block.relations]
        """Of each table its columns that joins compare, by the number that equal ones have."""
        self._number_columns()
        self.edges = [frozenset(own) for own in self.values]
        self.cycle = [self.name(k) for k in find_cycle(self.edges)]
        kept = block.reads((groups.keys, tuple(block.conditions)))
        for one in groups.columns:
            kept |= self._kept_by(one)
        self.choices = [kept] if kept else [frozenset([k]) for k in range(len(block.relations))]

    def name(self, k: int) -> str:
        """A table in words."""
        leaves = [one for one in walk_operators(self.block.relations[k]) if isinstance(one, LeafRows)]
        return " and ".join(dict.fromkeys(self.plan.leaves[one.place].name for one in leaves))

    def _number_columns(self) -> None:
        block, numbers = self.block, dict[Value, int]()
        for pair in block.pairs:
            one, other = block.written_out(pair)
            homes = [block.reads(one), block.reads(other)]
            if any(len(home) != 1 for home in homes) or homes[0] == homes[1]:
                block.keep([Compared(True, one, other)])
                continue
            known = [numbers.setdefault(value, len(numbers)) for value in (one, other)]
            numbers = {value: known[0] if k == known[1] else k for value, k in numbers.items()}
        for value, k in numbers.items():
            (home,) = block.reads(value)
            if k in self.values[home]:  # two columns of one table that equal a third one
                block.keep([Compared(True, self.values[home][k], value)])
            else:
                self.values[home][k] = value

    def _kept_by(self, one: GroupColumn) -> frozenset[int]:
        """The tables that an aggregate keeps as rows."""
        block, made = self.block, frozenset[int]()
        for part in _conjuncts(block.written_out(one.where)):
            made |= block.reads(part) if len(block.reads(part)) > 1 else frozenset()
        if one.value is None:
            return made
        value = block.written_out(one.value)
        if one.distinct or (one.operation in ("min", "max") and len(block.reads(value)) > 1):
            return made | block.reads(value)
        return made if one.operation in ("min", "max") or self.terms(value) is not None else made | block.reads(value)

    def terms(self, value: Value) -> list[tuple[int, tuple[Value, ...]]] | None:
        """A value as a sum of products of values that each read one table, with their signs; ``None`` if it is none."""
        if len(self.block.reads(value)) < 2:
            return [(1, (value,))]
        if not isinstance(value, Computed):
            return None
        left, right = self.terms(value.left), self.terms(value.right)
        if left is None or right is None:
            return None
        if value.operation == "*":
            made = [(s * t, (*a, *b)) for s, a in left for t, b in right]
        else:
            made = [*left, *((s if value.operation == "+" else -s, a) for s, a in right)]
        return made if len(made) <= _MOST_TERMS else None

    def is_unique(self, k: int, above: int) -> bool:
        """Whether a table has one row for each row of another one, as policies say."""
        keys = [self.values[k][one] for one in sorted(self.edges[k] & self.edges[above])]
        return bool(keys) and count_key_rows(self.plan, self.block.relations[k], keys) == 1


# ---------------------------------------------------------------- groups along the tree


@dataclass(eq=False)
class _Region:
    """Tables that are rows together: those at the root, or one with those that are attached by a unique key; and what is added up below.

    Attributes:
        top: the table that meets the one above.
        members: all of them.
        attached: table -> those that are attached to it.
        below: table -> the regions that it meets added up.
        columns: what is needed of its groups, each once.
    """

    top: int
    members: set[int]
    attached: dict[int, list[int]] = field(default_factory=dict)
    below: dict[int, list[_Region]] = field(default_factory=dict)
    columns: dict[Any, GroupColumn] = field(default_factory=dict)

    @property
    def regions(self) -> list[_Region]:
        """All regions below."""
        return [one for own in self.below.values() for one in own]

    @property
    def every(self) -> set[int]:
        """Its tables, and all below."""
        return self.members.union(*(one.every for one in self.regions))


class _EarlyGroups:
    """The operators of a group along a join tree.

    Args:
        tree: the joins.
        kept: the tables at the root that stay rows.
        names: names of new columns.
    """

    def __init__(self, tree: _JoinTree, kept: frozenset[int], names: Iterator[str]) -> None:
        self._tree, self._block, self._names = tree, tree.block, names
        self._neighbors = _span(tree.edges, kept)
        inner = set(range(len(self._neighbors)))
        while len(inner) > 1 and (ends := [k for k in inner if k not in kept and len(self._neighbors[k] & inner) == 1]):
            inner.remove(ends[0])
        self._inner = inner
        self._root = self._region(min(inner), inner, frozenset())

    def make(self) -> Operator:
        """The groups."""
        groups, zeros = self._tree.groups, list[tuple[Stored, Value]]()
        columns = [self._column(one, zeros) for one in groups.columns]
        op = self._rows(self._root)
        derived = tuple(self._block.derived.values())
        shown = tuple(one for one in derived if self._block.reads(one[1]) <= self._root.members)
        op = Expanded(op, shown, what=groups.what) if shown else op
        condition = _all_of(self._block.conditions)
        op = op if condition is None else Filtered(op, condition, what="conditions on several tables")
        made = GroupedRows(op, groups.keys, tuple(columns), what=groups.what)
        return Expanded(made, tuple(zeros), what="counts of no row are 0") if zeros else made

    # ------------------------------------------------------------------ which tables meet as rows

    def _region(self, top: int, members: set[int], above: frozenset[int]) -> _Region:
        made = _Region(top, set(members))
        waiting = list(members)
        while waiting:
            k = waiting.pop(0)
            for other in sorted(self._neighbors[k] - made.members - above):
                if self._tree.is_unique(other, k):
                    made.attached.setdefault(k, []).append(other)
                    made.members.add(other)
                    waiting.append(other)
                else:
                    made.below.setdefault(k, []).append(self._region(other, {other}, frozenset([k])))
        return made

    # ------------------------------------------------------------------ what is added up

    def _column(self, one: GroupColumn, zeros: list[tuple[Stored, Value]]) -> GroupColumn:
        """An aggregate over the rows at the root, each of which stands for the rows of the join that it is in."""
        block = self._block
        gates = _conjuncts(block.written_out(one.where))
        value = None if one.value is None else block.written_out(one.value)
        if one.distinct or one.operation in ("min", "max"):
            least, conditions = self._least(self._root, one, value, gates)
            return replace(one, value=least, where=_all_of(conditions))
        terms = [(1, tuple[Value, ...]())] if value is None else self._terms(value)
        if one.operation == "count":
            gates += [
                Negated(MissingValue(part)) for part in dict.fromkeys(part for _, parts in terms for part in parts)
            ]
            number, conditions = self._product(self._root, (), gates)
            if number is None:
                return replace(one, value=None, where=_all_of(conditions))
            if self._tree.groups.keys and not gates:
                return GroupColumn(one.column, "sum", number)
            inner = replace(one.column, name=next(self._names))
            zeros.append((one.column, ChosenValue(_WHOLE, cases=((MissingValue(inner), Fixed(_WHOLE, value=0)),), default=inner)))  # fmt: skip
            return GroupColumn(inner, "sum", number, _all_of(conditions))
        if len(terms) > 1:
            gates += [
                Negated(MissingValue(part)) for part in dict.fromkeys(part for _, parts in terms for part in parts)
            ]
        made: Value | None = None
        conditions = list[RowCondition]()
        for sign, parts in terms:
            product, conditions = self._product(self._root, parts, gates)
            made = _added(made, sign, product if product is not None else Fixed(_WHOLE, value=1))
        return GroupColumn(one.column, "sum", made, _all_of(conditions))

    def _terms(self, value: Value) -> list[tuple[int, tuple[Value, ...]]]:
        found = None if self._block.reads(value) <= self._root.members else self._tree.terms(value)
        return [(1, (value,))] if found is None else found

    def _product(self, region: _Region, parts: Sequence[Value], gates: Sequence[RowCondition]) -> tuple[Value | None, list[RowCondition]]:  # fmt: skip
        """The sum of a product over the rows of the join that a row stands for; ``None`` for 1. It is NULL if conditions hold for none of them.

        Args:
            region: the tables whose rows these are, with all below.
            parts: the factors.
            gates: the conditions.

        Returns:
            It, and the conditions on the row itself.
        """
        made: Value | None = None
        for part in parts:
            if self._is_own(region, part):
                made = _multiplied(made, part)
        for one in region.regions:
            made = _multiplied(made, self._summed(one, parts, gates))
        return made, [gate for gate in gates if self._is_own(region, gate)]

    def _is_own(self, region: _Region, node: Any) -> bool:
        """Whether values or conditions read a region's own rows; constants are the root's."""
        read = self._block.reads(node)
        return read <= region.members if read else region is self._root

    def _summed(self, region: _Region, parts: Sequence[Value], gates: Sequence[RowCondition]) -> Stored:
        """The column of a region's groups that has the sum of a product."""
        product, conditions = self._product(region, parts, gates)
        where = _all_of(conditions)
        if product is None and where is None:
            return self._needed(region, "count", None, None, _WHOLE)
        scale = 0 if product is None else product.code.scale
        return self._needed(region, "sum", product or Fixed(_WHOLE, value=1), where, ColumnCode("whole", "HUGEINT", scale))  # fmt: skip

    def _needed(self, region: _Region, operation: str, value: Value | None, where: RowCondition | None, code: ColumnCode) -> Stored:  # fmt: skip
        key = operation, value, where
        if key not in region.columns:
            column = Stored(code, frozenset() if value is None else value.bases, next(self._names), operation in ("count", "sum"))  # fmt: skip
            region.columns[key] = GroupColumn(column, operation, value, where)
        return region.columns[key].column

    def _least(self, region: _Region, one: GroupColumn, value: Value | None, gates: Sequence[RowCondition]) -> tuple[Value | None, list[RowCondition]]:  # fmt: skip
        """The least or the largest value of the rows of the join that a row stands for, or a value of the row itself; and when there is one."""
        conditions = [gate for gate in gates if self._is_own(region, gate)]
        found = value if value is None or self._is_own(region, value) else None
        for inner in region.regions:
            if value is not None and found is None and self._block.reads(value) <= inner.every:
                below, where = self._least(inner, one, value, gates)
                found = self._needed(inner, one.operation, below, _all_of(where), value.code)
            elif theirs := [gate for gate in gates if self._block.reads(gate) & inner.every]:
                conditions.append(Negated(MissingValue(self._summed(inner, (), theirs))))
        return found, conditions

    # ------------------------------------------------------------------ operators

    def _rows(self, region: _Region) -> Operator:
        """The rows of a region."""
        if region is not self._root:
            return self._member(region, region.top)
        done, op = {region.top}, self._member(region, region.top)
        while done < self._inner:
            k, near = next((b, a) for a in sorted(done) for b in sorted(self._neighbors[a]) if b in self._inner - done)
            other, pairs = self._member(region, k), self._pairs(near, k)
            most = [count_key_rows(self._tree.plan, rows, keys) for rows, keys in ((op, [a for a, _ in pairs]), (other, [b for _, b in pairs]))]  # fmt: skip
            op = JoinedRows(op, other, pairs, most[0], most[1], what=self._join_text(k, pairs))
            done.add(k)
        return op

    def _member(self, region: _Region, k: int) -> Operator:
        """The rows of a table that have a match in all that hang from it."""
        op = self._block.relations[k]
        for other in region.attached.get(k, ()):
            pairs = self._pairs(k, other)
            op = JoinedRows(op, self._member(region, other), pairs, 0, 1, what=self._join_text(other, pairs))
        for below in region.below.get(k, ()):
            op = self._reduced(op, k, below)
        return op

    def _reduced(self, op: Operator, k: int, below: _Region) -> Operator:
        """Rows with what is added up below them, or as far as there is a match."""
        inner, pairs = self._rows(below), self._pairs(k, below.top)
        name = self._tree.name(below.top)
        if not below.columns:
            flag, what = next(self._names), f"keep rows with a match: semijoin {self._join_text(below.top, pairs)}"
            return Filtered(Looked(op, inner, pairs, flag, what=what), Flag(flag))
        if not pairs:
            count = self._needed(below, "count", None, None, _WHOLE)
            one = GroupedRows(inner, (), tuple(below.columns.values()), what=f"add up {name}")
            return JoinedRows(
                op, Filtered(one, Compared(False, Fixed(_WHOLE, value=0), count)), (), what=f"{name} beside each row"
            )
        keys = [value if isinstance(value, Stored) and not value.number else Stored(value.code, value.bases, next(self._names)) for _, value in pairs]  # fmt: skip
        words = tuple((key, value) for key, (_, value) in zip(keys, pairs, strict=True) if key is not value)
        inner = Expanded(inner, words) if words else inner
        shown = ", ".join(self._text(value) for _, value in pairs)
        groups = GroupedRows(
            inner, tuple(keys), tuple(below.columns.values()), what=f"add up {name} by {shown}, before it is joined"
        )
        meets = tuple((value, key) for (value, _), key in zip(pairs, keys, strict=True))
        return JoinedRows(op, groups, meets, 0, 1, what=self._join_text(below.top, pairs))

    def _pairs(self, k: int, other: int) -> tuple[tuple[Value, Value], ...]:
        values = self._tree.values
        return tuple(
            (values[k][one], values[other][one]) for one in sorted(self._tree.edges[k] & self._tree.edges[other])
        )

    def _join_text(self, k: int, pairs: Sequence[tuple[Value, Value]]) -> str:
        on = " and ".join(f"{self._text(a)} = {self._text(b)}" for a, b in pairs) or "all pairs"
        return f"join {self._tree.name(k)} on {on}"

    def _text(self, value: Value) -> str:
        """The column that a value is, in words."""
        names = set(stored_names(value))
        texts = {column.text for leaf in self._tree.plan.leaves for column in leaf.columns if column.name in names}
        read = {one for text in texts for one in _COLUMN.findall(text)}
        return read.pop() if len(read) == 1 == len(names) else "a computed value"


def _multiplied(one: Value | None, other: Value) -> Value:
    if one is None:
        return other
    return Computed(ColumnCode("whole", "HUGEINT", one.code.scale + other.code.scale), one.bases | other.bases, "*", left=one, right=other)  # fmt: skip


def _added(one: Value | None, sign: int, other: Value) -> Value:
    if one is None:
        return other if sign > 0 else _multiplied(other, Fixed(_WHOLE, value=-1))
    code = ColumnCode("whole", "HUGEINT", max(one.code.scale, other.code.scale))
    return Computed(code, one.bases | other.bases, "+" if sign > 0 else "-", left=one, right=other)
