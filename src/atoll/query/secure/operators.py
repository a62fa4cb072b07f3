"""What three parties compute on shares of rows: values, conditions and operators, as a tree that every party makes by itself.

A **value** is computed from the columns of one row, a **condition** is true, false or NULL of a row, and an **operator** makes a table of tables. The leaves of the tree are rows that
sites share (`PlanLeaf`). How many rows a table has follows from the sizes of the leaves alone: `atoll.query.secure.extents`.

A column is stored in one of two forms. *Words* ascend as the values do (`atoll.query.column_codes`), so that they sort and compare. *Numbers* are whole multiples of a power of ten modulo
``2^64``, so that they add up and multiply. Beside both stands a bit that is 0 where the value is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from ..aggregates import QueryAggregate
from ..column_codes import ColumnCode
from ..plan import CellSets, Key, Released
from ..policy import QueryPolicy
from ..statement import Catalog, SqlStatement

__all__ = [
    "AggregateOutput", "ChosenValue", "ColumnBound", "Compared", "Computed", "RowCondition", "Connected", "Expanded", "Filtered", "Fixed", "Flag", "GroupColumn", "GroupedRows", "JoinedRows", "SameTruth",
    "KeptRows", "LeafRows", "Limited", "Looked", "MatchedRows", "MissingValue", "NearPairs", "Negated", "Operator", "PlanLeaf", "Quotient", "Ranked", "SecurePlan", "SharedColumn", "Stacked", "Stored", "TOLD", "UNBOUNDED", "ToldJoin", "TruthValue", "Value", "WindowColumn",
    "held_places", "inputs_of", "list_leaves", "number_operators", "prune_held", "rewrite_operators", "stored_names", "walk_operators",
]  # fmt: skip

Base = tuple[str, str]
TOLD = "pairs of join "
"""Before the number of a join whose size is opened."""


# ---------------------------------------------------------------- values


@dataclass(frozen=True)
class Value:
    """What is computed from one row.

    Attributes:
        code: how it becomes words; of a number, its scale.
        bases: columns of tables whose values it shows: a sum or a count shows none.
    """

    code: ColumnCode
    bases: frozenset[Base] = frozenset()

    @property
    def arithmetic(self) -> bool:
        """Whether it is a number, and no words."""
        return False


@dataclass(frozen=True)
class Stored(Value):
    """A column of the table, as words or as a number."""

    name: str = ""
    number: bool = False

    @property
    def arithmetic(self) -> bool:
        """Whether it is a number."""
        return self.number


@dataclass(frozen=True)
class Fixed(Value):
    """A constant, as `ColumnCode.encode` takes it: a coded whole number, a double or text; ``None`` for NULL."""

    value: Any = None


@dataclass(frozen=True)
class Computed(Value):
    """A sum, difference or product of two numbers; NULL if one is.

    Attributes:
        operation: ``"+"``, ``"-"`` or ``"*"``.
        left: the first.
        right: the second one.
    """

    operation: str = "+"
    left: Value = field(kw_only=True)
    right: Value = field(kw_only=True)

    @property
    def arithmetic(self) -> bool:
        """It is a number."""
        return True


@dataclass(frozen=True)
class Quotient(Value):
    """One number by another, which is above 0. It can be compared, and not stored."""

    over: Value = field(kw_only=True)
    under: Value = field(kw_only=True)

    @property
    def arithmetic(self) -> bool:
        """It is a pair of numbers."""
        return True


@dataclass(frozen=True)
class ChosenValue(Value):
    """The value of the first condition that is true, or the last value: CASE."""

    cases: tuple[tuple[RowCondition, Value], ...] = ()
    default: Value = field(kw_only=True)

    @property
    def arithmetic(self) -> bool:
        """Whether it is a number."""
        return any(one.arithmetic for one in (*(value for _, value in self.cases), self.default))


@dataclass(frozen=True)
class TruthValue(Value):
    """A condition as a value."""

    condition: RowCondition = field(kw_only=True)


# ---------------------------------------------------------------- conditions


@dataclass(frozen=True)
class RowCondition:
    """What is true, false or NULL of a row."""


@dataclass(frozen=True)
class Compared(RowCondition):
    """``left = right`` or ``left < right``."""

    equal: bool
    left: Value
    right: Value


@dataclass(frozen=True)
class Connected(RowCondition):
    """All of the parts hold (``every``), or one does."""

    every: bool
    parts: tuple[RowCondition, ...]


@dataclass(frozen=True)
class Negated(RowCondition):
    """NOT."""

    part: RowCondition


@dataclass(frozen=True)
class MissingValue(RowCondition):
    """IS NULL."""

    value: Value


@dataclass(frozen=True)
class Flag(RowCondition):
    """A column of one bit: never NULL."""

    name: str


@dataclass(frozen=True)
class SameTruth(RowCondition):
    """The same for all rows; ``None`` for NULL."""

    value: bool | None


# ---------------------------------------------------------------- operators


@dataclass(frozen=True)
class ColumnBound:
    """How large the values of a shared column may be, whatever rows there are: where few rows must not show, a refusal may not tell how large they are (`atoll.query.secure.limits`).

    Attributes:
        most: for each of ``CAPS`` the largest absolute value of a coded number; empty of text, and where nothing bounds it.
        length: the longest text, as `longest_text` takes it; ``None`` of numbers.
        unranged: columns of tables that it is computed from, without a range.
        capped: those of them whose type has larger values than the first of ``CAPS``, or the second.
        unknown: the part of the expression that nothing bounds; empty if all is known.
        text: the expression, as the statement has it.
    """

    most: tuple[int, ...] = ()
    length: Any = None
    unranged: tuple[Base, ...] = ()
    capped: tuple[Base, ...] = ()
    unknown: str = ""
    text: str = ""

    def times(self, other: ColumnBound) -> ColumnBound:
        """The bound of products of values of two columns."""
        most = tuple(x * y for x, y in zip(self.most, other.most, strict=False))
        return ColumnBound(most, None, tuple(dict.fromkeys(self.unranged + other.unranged)), tuple(dict.fromkeys(self.capped + other.capped)), self.unknown or other.unknown, f"({self.text}) * ({other.text})")  # fmt: skip


UNBOUNDED = ColumnBound()


@dataclass(frozen=True)
class SharedColumn:
    """A column that sites share.

    Attributes:
        name: in the shared table.
        text: local SQL, coded.
        code: how its values become words.
        number: whether it is a number; otherwise words.
        bounded: whether parties compute with it, so that its values must not be too large; numbers are so always.
        row: whether it numbers the rows of a site, to which the site adds its own number.
        bound: how large its values may be, where that must not depend on rows.
    """

    name: str
    text: str
    code: ColumnCode
    number: bool = False
    bounded: bool = False
    row: bool = False
    bound: ColumnBound = UNBOUNDED

    @property
    def checked(self) -> bool:
        """Whether parties compute with it, so that its numbers must not be too large."""
        return (self.number or self.bounded) and not self.row


@dataclass(frozen=True)
class PlanLeaf:
    """A part of the statement that each site computes from its own rows.

    Attributes:
        name: what it is called: the names of its tables.
        columns: what is shared of it.
        body: local SQL of its rows: FROM and WHERE.
        size: local SQL of FROM with its joins, whose number of rows is told, rounded up; empty for one row a site.
        lone: whether every site has all of its rows, so that one shares them.
        claims: tables, their columns, and how many rows may have one value: what policies declare and the plan rests on.
        released: its tables whose units must not show; none if single units may.
        cells: into which sets groups and conditions of the answer divide its rows, as far as it has all of their columns.
    """

    name: str
    columns: tuple[SharedColumn, ...]
    body: str
    size: str
    lone: bool
    claims: tuple[tuple[str, str, int], ...] = ()
    released: tuple[Released, ...] = ()
    cells: CellSets = field(default=CellSets(), kw_only=True)

    @property
    def text(self) -> str:
        """Local SQL of the shared columns."""
        shown = ", ".join(f"{one.text} AS c{k}" for k, one in enumerate(self.columns)) or "1 AS c0"
        return f"SELECT {shown} {self.body}"

    def units_text(self, one: Released) -> str:
        """Local SQL of the units of a table that it keeps rows of, and of which rows; see `CellSets.units_text`."""
        return self.cells.units_text(one, self.body)


@dataclass(frozen=True)
class Operator:
    """Makes a table."""

    what: str = field(default="", kw_only=True, compare=False)
    """In words, for EXPLAIN."""
    shows: str = field(default="", kw_only=True, compare=False)
    """What the parties open on the way, in words; empty for nothing."""


@dataclass(frozen=True)
class LeafRows(Operator):
    """The rows of a leaf."""

    place: int


@dataclass(frozen=True)
class Expanded(Operator):
    """Values as further columns: as words, or as numbers."""

    source: Operator
    columns: tuple[tuple[Stored, Value], ...]


@dataclass(frozen=True)
class Filtered(Operator):
    """The rows for which a condition is true."""

    source: Operator
    condition: RowCondition


@dataclass(frozen=True)
class JoinedRows(Operator):
    """Pairs of rows of two tables.

    Attributes:
        left: a table.
        right: another one.
        pairs: values that are equal; none for all pairs.
        left_most: how many rows of ``left`` may have one key; 0 for any number.
        right_most: the same of ``right``.
        side: ``"inner"``, ``"left"`` or ``"full"``: whose rows stay without a match.
        condition: what else makes two rows match.
    """

    left: Operator
    right: Operator
    pairs: tuple[tuple[Value, Value], ...]
    left_most: int = 0
    right_most: int = 0
    side: str = "inner"
    condition: RowCondition | None = None


@dataclass(frozen=True)
class ToldJoin(JoinedRows):
    """A join of which the parties open how many pairs of rows have equal values, so that its table has no row more.

    Attributes:
        number: which of a plan's joins it is.
    """

    number: int = 0

    @property
    def noted(self) -> str:
        """What its size is noted as; see `atoll.secure.shares.Trio.note`."""
        return f"{TOLD}{self.number}"


@dataclass(frozen=True)
class MatchedRows(Operator):
    """Pairs of rows of two tables, each row in one at most, whose weights add up to as much as can be: a row for each of ``left``.

    Attributes:
        left: a table.
        right: another one.
        weight: a number; pairs without one, or with 0 or less, do not match.
    """

    left: Operator
    right: Operator
    weight: Value


@dataclass(frozen=True)
class NearPairs(Operator):
    """Pairs of rows of two tables whose points are near; see `atoll.secure.tables.near_pairs`. The coordinates are the first two columns of each leaf.

    Attributes:
        left: a table.
        right: the one that is looked in.
        radius: units; ``None`` for any distance.
        k: how many of the nearest; 0 for all within the radius.
        steps: of the search for a row's radius.
        entry: the column that says which pairs have one row of ``left``.
        slack: by how much pairs may be farther away, in units of the coordinates.
    """

    left: LeafRows
    right: LeafRows
    radius: int | None
    k: int
    steps: int
    entry: Stored
    slack: float


@dataclass(frozen=True)
class Looked(Operator):
    """The rows of a table, and a bit that says whether another one has a row that matches.

    Attributes:
        source: the table.
        inner: the other one.
        pairs: values that are equal, of both; none for any row.
        flag: the name of the bit.
        columns: columns of ``inner`` that are copied, of the first match.
        condition: what else makes two rows match.
        source_most: how many rows of ``source`` may have one key; 0 for any number.
        inner_most: the same of ``inner``.
    """

    source: Operator
    inner: Operator
    pairs: tuple[tuple[Value, Value], ...]
    flag: str
    columns: tuple[Stored, ...] = ()
    condition: RowCondition | None = None
    source_most: int = 0
    inner_most: int = 0


@dataclass(frozen=True)
class GroupColumn:
    """What becomes of a group's rows.

    Attributes:
        column: the new column: a number for counts and sums, words for the least and largest.
        operation: ``"count"``, ``"sum"``, ``"min"`` or ``"max"``.
        value: of which value; ``None`` for the rows.
        where: which rows take part.
        distinct: whether equal values count once.
    """

    column: Stored
    operation: str
    value: Value | None = None
    where: RowCondition | None = None
    distinct: bool = False


@dataclass(frozen=True)
class GroupedRows(Operator):
    """One row for each group; with no key one row in all."""

    source: Operator
    keys: tuple[Stored, ...]
    columns: tuple[GroupColumn, ...] = ()


@dataclass(frozen=True)
class WindowColumn:
    """A window function.

    Attributes:
        column: the new column.
        operation: ``"row_number"``, ``"rank"``, ``"dense_rank"``, ``"count"``, ``"sum"``, ``"min"``, ``"max"`` or ``"lag"``.
        value: of which value.
        frame: ``"whole"`` partition, ``"peers"`` up to the last row that is equal in the order, ``"rows"`` up to this row.
        offset: rows above, of ``"lag"``; below, if negative.
    """

    column: Stored
    operation: str
    value: Value | None = None
    frame: str = "whole"
    offset: int = 0


Order = tuple[tuple[Stored, bool, bool], ...]
"""Columns, whether each descends, and whether missing values come first."""


@dataclass(frozen=True)
class Ranked(Operator):
    """The rows of a table, and window functions beside them."""

    source: Operator
    partition: tuple[Stored, ...]
    order: Order
    columns: tuple[WindowColumn, ...]


@dataclass(frozen=True)
class Stacked(Operator):
    """The rows of several tables, one after the other.

    Attributes:
        sources: the tables.
        inputs: of each table the values that become the columns.
        columns: the columns.
        flags: for each table a bit that its rows have; none for no bits.
    """

    sources: tuple[Operator, ...]
    inputs: tuple[tuple[Value, ...], ...]
    columns: tuple[Stored, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeptRows(Stacked):
    """The rows of a relation that stays shared between statements, in columns that do not depend on the statement around it.

    It has one source: what makes the rows, as the statement means it. So all that is asked of a plan (levels, units, bounds) is asked of these too.

    Attributes:
        relation: its name.
        held: whether the parties take the rows as they kept them, and make nothing below.
    """

    relation: str = field(kw_only=True)
    held: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Limited(Operator):
    """Rows in an order; with ``rows`` the first of them, after ``skip`` others."""

    source: Operator
    order: Order
    rows: int | None = None
    skip: int = 0


def inputs_of(operator: Operator) -> list[Operator]:
    """What an operator needs."""
    values = (getattr(operator, one.name) for one in fields(operator))
    return [
        inner
        for value in values
        for inner in (value if isinstance(value, tuple) else (value,))
        if isinstance(inner, Operator)
    ]


def walk_operators(operator: Operator) -> Iterator[Operator]:
    """An operator, after those that it needs."""
    for inner in inputs_of(operator):
        yield from walk_operators(inner)
    yield operator


def list_leaves(root: Operator, *, live: bool = False) -> list[int]:
    """Places of the leaves below an operator, each once, in the order in which it needs them.

    Args:
        root: the operator.
        live: leave out those that are read for rows alone which the parties kept.
    """
    found: dict[int, None] = {}
    seen: set[int] = set()

    def visit(op: Operator) -> None:
        if id(op) in seen:
            return
        seen.add(id(op))
        if isinstance(op, LeafRows):
            found[op.place] = None
        for inner in () if live and isinstance(op, KeptRows) and op.held else inputs_of(op):
            visit(inner)

    visit(root)
    return list(found)


def held_places(plan: SecurePlan) -> frozenset[int]:
    """Places of the leaves that nobody reads or shares, since the parties kept what is made of them."""
    roots = [plan.root, *([] if plan.withheld is None else [plan.withheld])]
    return frozenset(range(len(plan.leaves))) - {place for root in roots for place in list_leaves(root, live=True)}


def prune_held(plan: SecurePlan) -> SecurePlan:
    """The plan without what lies below rows that the parties kept, for people to read: places of leaves are others."""

    def changed(old: Operator, new: Operator) -> Operator:
        del old
        return replace(new, sources=(), inputs=()) if isinstance(new, KeptRows) and new.held else new

    held = held_places(plan)
    leaves = tuple(leaf for place, leaf in enumerate(plan.leaves) if place not in held)
    return replace(plan, leaves=leaves, root=rewrite_operators([plan.root], changed)[0])


def number_operators(root: Operator) -> dict[int, int]:
    """``id`` of each operator -> its number, which is the same at every party: each operator comes after those that it needs."""
    return {key: k for k, key in enumerate(dict.fromkeys(id(one) for one in walk_operators(root)))}


def rewrite_operators(roots: Sequence[Operator], change: Callable[[Operator, Operator], Operator]) -> list[Operator]:
    """Trees with operators changed from the leaves up, ``change(old, new)``; one that stands in several places stays one."""
    made: dict[int, Operator] = {}

    def visit(old: Operator) -> Operator:
        if id(old) not in made:
            parts: dict[str, Any] = {}
            for one in fields(old):
                value = getattr(old, one.name)
                if isinstance(value, Operator):
                    parts[one.name] = visit(value)
                elif isinstance(old, Stacked) and one.name == "sources":
                    parts[one.name] = tuple(visit(inner) for inner in value)
            made[id(old)] = change(old, replace(old, **parts) if parts else old)
        return made[id(old)]

    return [visit(root) for root in roots]


def stored_names(node: Any) -> Iterator[str]:
    """The columns that values and conditions read."""
    if isinstance(node, Stored | Flag):
        yield node.name
    elif isinstance(node, tuple):
        for one in node:
            yield from stored_names(one)
    elif is_dataclass(node) and not isinstance(node, Operator | ColumnCode):
        for one in fields(node):
            yield from stored_names(getattr(node, one.name))


# ---------------------------------------------------------------- the plan


@dataclass(frozen=True)
class AggregateOutput:
    """An aggregate of the answer: it is put together from numbers, or is a column of words.

    Attributes:
        aggregate: what it is.
        parts: its totals, the first of which counts the rows with a value; or one column of words.
        guarded: whether the parts are missing where few units would show.
    """

    aggregate: QueryAggregate
    parts: tuple[Stored, ...]
    guarded: bool = False


@dataclass(frozen=True)
class SecurePlan:
    """How one statement is answered under shares.

    Attributes:
        statement: the statement.
        catalog: the tables.
        policy: what all sites allow.
        leaves: what sites share.
        root: what the parties compute.
        keys: what is shown of rows or groups.
        key_columns: their columns.
        outputs: the aggregates that are shown.
        grouped: whether what is opened are groups.
        ordered: whether the order in which rows are opened is that of the answer.
        limit: how many are opened at most; ``None`` for all.
        sources: tables -> columns that are read.
        common: the statement's own WITH.
        finish: SQL of the result, over the table ``cells``.
        copies: how many rows of the answer each opened row stands for; ``None`` for one.
        withheld: makes a table of one row, ``withheld``: how many groups are left out; ``None`` if none can be.
    """

    statement: SqlStatement
    catalog: Catalog
    policy: QueryPolicy
    leaves: tuple[PlanLeaf, ...]
    root: Operator
    keys: tuple[Key, ...]
    key_columns: tuple[Stored, ...]
    outputs: tuple[AggregateOutput, ...]
    grouped: bool
    ordered: bool
    limit: int | None
    sources: dict[str, tuple[str, ...]] = field(compare=False)
    common: str
    finish: str
    copies: Stored | None = None
    withheld: Operator | None = None

    @property
    def aggregates(self) -> tuple[QueryAggregate, ...]:
        """The aggregates that are shown."""
        return tuple(one.aggregate for one in self.outputs)

    @property
    def shown(self) -> tuple[Stored, ...]:
        """The columns of the answer's rows, as they are opened."""
        parts = (part for one in self.outputs for part in one.parts)
        return (*self.key_columns, *parts, *(() if self.copies is None else (self.copies,)))

    def shown_of(self, names: Iterable[str]) -> list[str]:
        """Of the columns of a table those that are opened: words, numbers, and the bits beside them."""
        shown = {column.name for column in self.shown}
        return [
            name
            for name in names
            if name in shown or name.removesuffix("?") in shown or name.rpartition(".")[0] in shown
        ]
