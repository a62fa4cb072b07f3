"""By how many rows one unit moves the tables of a plan, as far as policies bound it: what noise on their sizes must hide.

A *unit* is a row of a table, or all rows of one value of the column that the policy names (``unit: patient``), at one site. Take a unit away, and rows of a table go, come or change their values
(`Moves`). What follows from a policy:

* ``at_most`` of the unit's column bounds the rows of a unit in its table; without a unit it is one.
* ``key`` and ``at_most`` of columns bound how many rows a row is joined with: ``r`` rows that move on one side of a join move ``r * most`` pairs, with ``most`` rows of the other side for one key.
* A row that changes its group changes two groups, and a row that comes or goes one.
* A row moves the ranks and sums beside all rows of its partition, so that ``most`` rows of the partition move.

These are stabilities of relational operators, as in McSherry 2009 ("Privacy integrated queries", section 2) and Johnson, Near, Song 2018. Where nothing bounds the number, the size is not told. What policies
claim of columns of joins and partitions is checked under shares, before a size rests on it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from atoll.core.errors import CompositionError

from ...plan import split_conditions
from ...statement import SOURCE
from ..operators import (
    Expanded,
    Filtered,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Limited,
    Looked,
    Operator,
    PlanLeaf,
    Ranked,
    SecurePlan,
    Stacked,
    Stored,
    Value,
    number_operators,
    walk_operators,
)

__all__ = [
    "KeyClaim",
    "Moves",
    "SizeCut",
    "bound_joins",
    "count_key_rows",
    "count_moves",
    "find_size_cuts",
    "leaf_filters",
]

Claim = tuple[str, str, int]
_NAMES = {"INT": "INTEGER", "TEXT": "VARCHAR", "INT128": "HUGEINT"}
"""What sqlglot calls types that the catalog calls otherwise."""
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")


@dataclass(frozen=True)
class Moves:
    """What becomes of a table's rows if one unit is taken away.

    Attributes:
        rows: rows that come or go.
        values: rows that change.
    """

    rows: int = 0
    values: int = 0

    def __add__(self, other: Moves) -> Moves:
        return Moves(self.rows + other.rows, self.values + other.values)

    def times(self, factor: int) -> Moves:
        """As often."""
        return Moves(factor * self.rows, factor * self.values)

    @property
    def total(self) -> int:
        """By how much the number of rows can change, after any filter."""
        return self.rows + self.values


@dataclass(frozen=True, eq=False)
class KeyClaim:
    """How many rows of an operator's table have equal values, as policies claim.

    Attributes:
        operator: the operator.
        values: the values.
        most: how many rows.
        missing: whether missing values count as one value, as in a partition.
    """

    operator: Operator
    values: tuple[Value, ...]
    most: int
    missing: bool = False


@dataclass(frozen=True, eq=False)
class SizeCut:
    """A table whose size may be told with noise.

    Attributes:
        operator: the operator that makes it.
        number: the operator's number in the plan.
        moves: by how many rows one unit moves it at most.
        claims: what that rests on and the parties check.
    """

    operator: Operator
    number: int
    moves: int
    claims: tuple[KeyClaim, ...]


def find_size_cuts(plan: SecurePlan) -> tuple[tuple[SizeCut, ...], tuple[Claim, ...], tuple[str, ...]]:
    """The tables whose sizes one unit moves by few rows, and that others are made of; none of the last one, which is opened.

    Args:
        plan: the plan.

    Returns:
        The tables in order; table, column and rows of one value that each site checks for itself; and of other tables why not.
    """
    kinds = _unit_kinds(plan)
    numbers, reasons = number_operators(plan.root), []
    cuts, checked = [], dict[Claim, None]()
    for op in _candidates(plan.root):
        if isinstance(op, LeafRows) and not leaf_filters(plan, plan.leaves[op.place]):
            continue
        claims, most = [], 0
        try:
            for kind in kinds:
                found = _UnitMoves(plan, kind)
                moves = found.of(op.source if isinstance(op, GroupedRows) else op)
                most = max(most, moves.total)
                claims += found.claims
                checked |= dict.fromkeys(found.checked)
        except CompositionError as error:
            reasons.append(f"{op.what or 'a table'}: {error.what}")
            continue
        if most:
            unique = {(id(one.operator), one.values, one.most, one.missing): one for one in claims}
            cuts.append(SizeCut(op, numbers[id(op)], most, tuple(unique.values())))
    return tuple(cuts), tuple(checked), tuple(reasons)


def count_moves(plan: SecurePlan, op: Operator) -> tuple[int, tuple[KeyClaim, ...], tuple[Claim, ...]]:
    """By how much one unit moves a count of an operator's rows; what that rests on.

    Raises:
        CompositionError: nothing bounds it.
    """
    most, claims, checked = 0, [], dict[Claim, None]()
    for kind in _unit_kinds(plan):
        found = _UnitMoves(plan, kind)
        most = max(most, found.of(op).total)
        claims += found.claims
        checked |= dict.fromkeys(found.checked)
    return most, tuple(claims), tuple(checked)


def _unit_kinds(plan: SecurePlan) -> list[str]:
    """The tables of which a unit is a row; and ``""`` for the units of all tables that name one."""
    divided = [name for leaf in plan.leaves for name in plan.sources if _LeafTables(plan, leaf).reads(name) and plan.policy.table(name).mode != "replicated"]  # fmt: skip
    return list(dict.fromkeys("" if plan.policy.table(name).unit else name for name in divided))


def _candidates(root: Operator) -> Iterator[Operator]:
    """Tables that may be much smaller than they seem, each after all that makes it smaller still."""
    users: dict[int, list[Operator]] = {}
    every = {id(one): one for one in walk_operators(root)}
    for op in every.values():
        for source in _sources(op):
            users.setdefault(id(source), []).append(op)
    last: Operator = root
    final = {id(last)}
    while isinstance(last, Expanded | Filtered):
        last = last.source
        final.add(id(last))
    for key, op in every.items():
        if key in final or not isinstance(op, LeafRows | Filtered | JoinedRows | GroupedRows):
            continue
        if isinstance(op, GroupedRows) and not op.keys:
            continue
        at: Operator = op
        while len(users[id(at)]) == 1 and isinstance(users[id(at)][0], Expanded):
            at = users[id(at)][0]
        if not (len(users[id(at)]) == 1 and isinstance(users[id(at)][0], Filtered)):
            yield op


def _sources(op: Operator) -> tuple[Operator, ...]:
    if isinstance(op, LeafRows):
        return ()
    if isinstance(op, JoinedRows):
        return op.left, op.right
    if isinstance(op, Looked):
        return op.source, op.inner
    return op.sources if isinstance(op, Stacked) else (op.source,)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- what sites compute


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    """Local SQL as a tree, which nobody changes."""
    import sqlglot

    return sqlglot.parse_one(text, read="duckdb")


class _LeafTables:
    """The tables of a leaf, by its local SQL."""

    def __init__(self, plan: SecurePlan, leaf: PlanLeaf) -> None:
        from sqlglot import exp

        self._policy, self._leaf, self._exp, self._catalog = plan.policy, leaf, exp, plan.catalog.tables
        tree = _parse(f"SELECT 1 {leaf.body}")
        items = [tree.args["from_"].this, *(join.this for join in tree.args.get("joins") or ())]
        self.tables = {one.alias_or_name: one.name.removeprefix(SOURCE) for one in items if isinstance(one, exp.Table)}
        inner = [table for query in tree.find_all(exp.Query) if query is not tree for table in query.find_all(exp.Table)]  # fmt: skip
        self._plain = len(self.tables) == len(items) and not any(join.side for join in tree.args.get("joins") or ())
        self._plain = self._plain and all(one.name.startswith(SOURCE) for one in items)
        self._plain = self._plain and all(one.name.startswith(SOURCE) and self._policy.table(one.name.removeprefix(SOURCE)).mode == "replicated" for one in inner)  # fmt: skip
        self._read = {table.name.removeprefix(SOURCE) for table in tree.find_all(exp.Table)}
        parts = split_conditions(exp, tree.args.get("where"))
        for join in tree.args.get("joins") or ():
            on = join.args.get("on")
            parts += [] if on is None else list(on.flatten()) if isinstance(on, exp.And) else [on]
        self.sliced = tree.args.get("limit") is not None
        self._links: list[tuple[Any, Any]] = []
        self.filters: list[Any] = []
        """The conditions that join no two tables."""
        while parts:
            part = parts.pop(0).unnest()
            if isinstance(part, exp.And):
                parts += list(part.flatten())
                continue
            sides: list[Any] = [x.unnest() for x in (part.left, part.right)] if isinstance(part, exp.EQ) else []
            if sides and all(isinstance(x, exp.Column) for x in sides) and sides[0].table != sides[1].table:
                self._links += [(sides[0], sides[1]), (sides[1], sides[0])]
            else:
                self.filters.append(part)

    def reads(self, table: str) -> bool:
        """Whether a table occurs in it; a table behind a WITH may."""
        return table in self._read or not self._plain

    def most(self, alias: str, column: str) -> int | None:
        """How many rows may have one value of a column."""
        return self._policy.table(self.tables[alias]).column(column).at_most

    def unit_rows(self, kind: str) -> tuple[int, list[Claim]]:
        """How many of the leaf's rows one unit has.

        Raises:
            CompositionError: nothing bounds it.
        """
        if not self._plain:
            raise _unbounded(f"nothing bounds how many rows of {self._leaf.name} one unit moves: sites make them by a subquery, a WITH or an outer join", "read tables, and join them by equal columns")  # fmt: skip
        total, claims = 0, list[Claim]()
        for alias, table in self.tables.items():
            policy = self._policy.table(table)
            if not self._has_unit(table, kind):
                continue
            rows = policy.column(policy.unit).at_most if policy.unit else 1
            if rows is None:
                raise _unbounded(f"nothing bounds how many rows of {table} one {policy.unit} has", f"let the policies declare {policy.unit}: {{at_most: 9}}, or no unit, to hide single rows")  # fmt: skip
            if policy.unit:
                claims.append((table, policy.unit, rows))
            times, more = self.reach(alias)
            total += rows * times
            claims += more
        return total, claims

    def has_units(self, kind: str) -> bool:
        """Whether units of a kind may have rows of it."""
        return not self._plain or any(self._has_unit(table, kind) for table in self.tables.values())

    def _has_unit(self, table: str, kind: str) -> bool:
        policy = self._policy.table(table)
        return policy.mode != "replicated" and (table == kind and not policy.unit if kind else bool(policy.unit))

    def reach(self, alias: str) -> tuple[int, list[Claim]]:
        """How many of the leaf's rows one row of a table is in.

        Raises:
            CompositionError: nothing bounds it.
        """
        reached, most, claims = {alias}, 1, list[Claim]()
        while len(reached) < len(self.tables):
            steps = [(b, found) for a, b in self._links if a.table in reached and b.table not in reached and (found := self.most(b.table, b.name))]  # fmt: skip
            if not steps:
                missing = next(name for name in self.tables if name not in reached)
                raise _unbounded(f"nothing bounds how many rows of {self.tables[missing]} one row of {self.tables[alias]} is joined with", "let the policies declare key: true or at_most: 9 of the columns that join them")  # fmt: skip
            column, found = min(steps, key=lambda step: step[1])
            reached.add(column.table)
            most *= found
            claims.append((self.tables[column.table], column.name.lower(), found))
        return most, claims

    def key_rows(self, text: str) -> int:
        """How many of its rows may have one value of a shared column; 0 if policies do not say."""
        column, casts = _parse(text).unnest(), list[str]()
        while isinstance(column, self._exp.Cast):
            cast = column.to.sql("duckdb")
            casts.append(_NAMES.get(cast, cast))
            column = column.this.unnest()
        if not self._plain or not isinstance(column, self._exp.Column) or column.table not in self.tables:
            return 0
        types = {name.lower(): kind for name, kind in self._catalog[self.tables[column.table]].items()}
        kind = types[column.name.lower()]
        # A cast may make values equal, but not one to the same type or a wider one.
        if any(cast != kind and not (kind in _INTEGERS and cast in _INTEGERS[_INTEGERS.index(kind) :]) for cast in casts):  # fmt: skip
            return 0
        try:
            return (self.most(column.table, column.name) or 0) * self.reach(column.table)[0]
        except CompositionError:
            return 0


def leaf_filters(plan: SecurePlan, leaf: PlanLeaf) -> list[Any]:
    """The conditions by which sites keep rows of a leaf's tables, beside those that join them, as sqlglot has them."""
    return _LeafTables(plan, leaf).filters


def _unbounded(what: str, remedy: str) -> CompositionError:
    return CompositionError(what, where="shrinkwrap", remedy=remedy)


# ---------------------------------------------------------------- what the parties compute


@dataclass(eq=False)
class _UnitMoves:
    """How the tables of a plan move with units of one kind.

    Attributes:
        plan: the plan.
        kind: a table of which a unit is a row, or ``""`` for the units that policies name.
        claims: what the parties must check.
        checked: what each site must check for itself.
    """

    plan: SecurePlan
    kind: str
    claims: list[KeyClaim] = field(default_factory=list)
    checked: list[Claim] = field(default_factory=list)

    def of(self, op: Operator) -> Moves:
        """What one unit moves of an operator's table.

        Raises:
            CompositionError: nothing bounds it.
        """
        if isinstance(op, LeafRows):
            return self._of_leaf(op)
        if isinstance(op, JoinedRows):
            return self._of_join(op)
        if isinstance(op, Looked):
            return self._of_lookup(op)
        if isinstance(op, Stacked):
            return sum((self.of(one) for one in op.sources), Moves())
        moves = self.of(op.source)  # type: ignore[attr-defined]
        if isinstance(op, GroupedRows):
            return Moves(0, moves.rows + 2 * moves.values if op.keys else min(1, moves.total))
        if isinstance(op, Limited) and op.rows is not None:
            return Moves(0, moves.total)
        if isinstance(op, Ranked) and moves.total:
            most = count_key_rows(self.plan, op.source, op.partition)
            if not most:
                raise _unbounded(f"nothing bounds how many rows of a partition one row moves: {op.what}", "let the policies declare at_most of a column of PARTITION BY")  # fmt: skip
            self.claims.append(KeyClaim(op.source, op.partition, most, missing=True))
            return Moves(moves.rows, moves.rows * most + 2 * moves.values * most)
        return moves

    def _of_leaf(self, op: LeafRows) -> Moves:
        leaf = self.plan.leaves[op.place]
        tables = _LeafTables(self.plan, leaf)
        if leaf.lone or not tables.has_units(self.kind):
            return Moves()
        if not leaf.size:  # each site has one row of aggregates
            return Moves(0, 1)
        rows, claims = tables.unit_rows(self.kind)
        self.checked += claims
        return Moves(0, rows) if tables.sliced else Moves(rows)  # another row takes the place of one that goes

    def _of_join(self, op: JoinedRows) -> Moves:
        left, right = self.of(op.left), self.of(op.right)
        mine = [value for value, _ in op.pairs]
        other = [value for _, value in op.pairs]
        made = Moves()
        outer = 1 if op.side == "inner" else 2
        if left.total:
            most = self._most(op.right, other, op.right_most, op.what)
            made += left.times(most) if op.side == "inner" else Moves(0, outer * left.total * max(1, most))
        if right.total:
            most = self._most(op.left, mine, op.left_most, op.what)
            made += right.times(most) if op.side == "inner" else Moves(0, outer * right.total * max(1, most))
        return made

    def _of_lookup(self, op: Looked) -> Moves:
        moves, inner = self.of(op.source), self.of(op.inner)
        if not inner.total:
            return moves
        most = self._most(op.source, [value for value, _ in op.pairs], op.source_most, op.what)
        return moves + Moves(0, most * (inner.rows + 2 * inner.values))

    def _most(self, op: Operator, values: Sequence[Value], claimed: int, what: str) -> int:
        """How many rows of a table have one key of a join."""
        if isinstance(op, GroupedRows) and not op.keys:
            return 1
        found = [one for one in (claimed, count_key_rows(self.plan, op, values)) if one]
        if not values or not found:
            raise _unbounded(f"nothing bounds how many rows one row is joined with: {what}", "let the policies declare key: true or at_most: 9 of the columns that join")  # fmt: skip
        most = min(found)
        self.claims.append(KeyClaim(op, tuple(values), most))
        return most


# ---------------------------------------------------------------- keys


def count_key_rows(plan: SecurePlan, op: Operator, values: Sequence[Value]) -> int:
    """How many rows of an operator's table may have equal values, as far as policies say; 0 if they do not.

    Args:
        plan: the plan.
        op: the operator.
        values: the values; missing ones equal nothing.
    """
    names = {one.name for one in values if isinstance(one, Stored)}
    if isinstance(op, LeafRows):
        leaf = plan.leaves[op.place]
        tables = _LeafTables(plan, leaf)
        found = [tables.key_rows(one.text) for one in leaf.columns if one.name in names]
        return min((one for one in found if one), default=0)
    if isinstance(op, Expanded):
        copied = [value for column, value in op.columns if column.name in names]
        return count_key_rows(plan, op.source, [*values, *copied])
    if isinstance(op, GroupedRows):
        inner = {key.name for key in op.keys}
        return 1 if inner <= names else count_key_rows(plan, op.source, [one for one in values if isinstance(one, Stored) and one.name in inner])  # fmt: skip
    if isinstance(op, Filtered | Ranked | Limited | Looked):
        return count_key_rows(plan, op.source, values)
    if isinstance(op, JoinedRows) and op.side == "inner":
        sides = (op.left, [a for a, _ in op.pairs], op.left_most), (op.right, [b for _, b in op.pairs], op.right_most)
        for (one, _, _), (other, keys, most) in (sides, sides[::-1]):
            rows, times = count_key_rows(plan, one, values), most or count_key_rows(plan, other, keys)
            if rows and times:
                return rows * times
    return 0


def bound_joins(plan: SecurePlan) -> SecurePlan:
    """The plan with joins no larger than policies allow, also of derived tables that pass a column on: ``FROM (SELECT patient, … FROM diagnoses …) d JOIN …``.

    The parties notice if a join has more rows than that.
    """
    made: dict[int, Operator] = {}

    def bounded(op: Operator) -> Operator:
        if id(op) in made:
            return made[id(op)]
        new = op
        for name in ("left", "right", "source", "inner"):
            if hasattr(op, name):
                new = _with(new, name, bounded(getattr(op, name)))
        if isinstance(op, Stacked):
            new = _with(new, "sources", tuple(bounded(one) for one in op.sources))
        pairs = op.pairs if isinstance(op, JoinedRows | Looked) else ()
        for k, (side, most) in enumerate(_BOUNDED.get(type(op), ()) if pairs else ()):
            if not getattr(op, most):
                new = _with(new, most, count_key_rows(plan, getattr(new, side), [pair[k] for pair in pairs]))
        made[id(op)] = new
        return new

    root, withheld = bounded(plan.root), None if plan.withheld is None else bounded(plan.withheld)
    return plan if root is plan.root and withheld is plan.withheld else replace(plan, root=root, withheld=withheld)


_BOUNDED: dict[type, tuple[tuple[str, str], ...]] = {
    JoinedRows: (("left", "left_most"), ("right", "right_most")),
    Looked: (("source", "source_most"), ("inner", "inner_most")),
}
"""Of an operator its tables, and where the rows of one key stand."""


def _with(op: Operator, name: str, value: Any) -> Operator:
    old = getattr(op, name)
    same = all(map(operator.is_, old, value)) if isinstance(value, tuple) else old is value or (isinstance(value, int) and old == value)  # fmt: skip
    return op if same else replace(op, **{name: value})
