"""Where a plan under shares needs no shares: what sites add up before, and which keys a party that all owners trust, or everyone, may read (Volgushev et al. 2019, sections 5.1 to 5.3).

Trust is propagated through the plan. A column of a table *depends on* the columns of sites that its values follow from, and a table's rows on those that say which rows count: conditions, the keys of joins and
of groups. A party may read a column if it is trusted with all that the column and its rows depend on; a public column is one that anyone may read. An operator moves out of the shares

* to the sites, if it is a group of rows of one leaf: each site adds up its own, and the parties merge the groups;
* to everyone, if its keys are public: a *public* join or group;
* to one party, if owners trust it with the keys: a *hybrid* join or group (`atoll.secure.tables.KeyReader`). All hybrid operators of a plan have one reader, so that no two parties put together what they read;
* to the coordinator, if all that a sort at the end would hide is public.

With a ``min_count`` above 1 a party that policies name reads keys, as they say, and everything else stays under shares: what sites would add up and what everyone would match shows how many rows there are of each value, and of
a join of many rows with many all parties see the size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..column_codes import ColumnCode
from ..policy import QueryPolicy
from ..statement import SOURCE
from .extents import Extents
from .operators import (
    Base,
    Expanded,
    Filtered,
    GroupColumn,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Limited,
    Looked,
    Operator,
    PlanLeaf,
    Ranked,
    SecurePlan,
    SharedColumn,
    Stacked,
    Stored,
    rewrite_operators,
    stored_names,
    walk_operators,
)

__all__ = [
    "EVERYONE",
    "ClearExtents",
    "ClearGroups",
    "ClearJoin",
    "ClearLookup",
    "GroupedLeaf",
    "bases_of",
    "move_frontier",
    "readers_of",
]

Bases = frozenset[Base]
_WHOLE = ColumnCode("whole", "BIGINT")
EVERYONE = ""
"""The reader of public keys."""


@dataclass(frozen=True)
class GroupedLeaf(PlanLeaf):
    """A leaf whose rows are groups that each site adds up."""


@dataclass(frozen=True)
class ClearJoin(JoinedRows):
    """A join whose keys a party reads, or everyone.

    Attributes:
        reader: the party; empty for everyone.
        shown: the columns of sites whose values it reads.
        counted: further ones, which decide which rows count: it sees which do.
    """

    reader: str = EVERYONE
    shown: tuple[Base, ...] = ()
    counted: tuple[Base, ...] = ()

    @property
    def many(self) -> bool:
        """Whether only the reader knows how many rows it has."""
        return 1 not in (self.left_most, self.right_most)


@dataclass(frozen=True)
class ClearLookup(Looked):
    """A lookup whose keys a party reads, or everyone; see `ClearJoin`."""

    reader: str = EVERYONE
    shown: tuple[Base, ...] = ()
    counted: tuple[Base, ...] = ()


@dataclass(frozen=True)
class ClearGroups(GroupedRows):
    """Groups whose keys a party reads, or everyone; see `ClearJoin`."""

    reader: str = EVERYONE
    shown: tuple[Base, ...] = ()
    counted: tuple[Base, ...] = ()


class ClearExtents(Extents):
    """How many rows tables have, where only the run tells of some joins: as many as the longer of their tables."""

    @staticmethod
    def pairs(operator: JoinedRows, left: int, right: int) -> int:
        """Rows of a join."""
        if isinstance(operator, ClearJoin) and operator.many:
            return max(left, right)
        return Extents.pairs(operator, left, right)


def readers_of(plan: SecurePlan) -> dict[str, tuple[set[Base], set[Base]]]:
    """Party -> the columns of sites whose values it reads in the clear, and those that decide of which rows; the empty name is everyone."""
    found: dict[str, tuple[set[Base], set[Base]]] = {}
    for one in walk_operators(plan.root):
        if isinstance(one, ClearJoin | ClearLookup | ClearGroups):
            for known, more in zip(found.setdefault(one.reader, (set(), set())), (one.shown, one.counted), strict=True):
                known.update(more)
    return found


def move_frontier(plan: SecurePlan, trusted: str) -> SecurePlan:
    """A plan whose operators leave the shares where policies allow it.

    Args:
        plan: the plan under shares.
        trusted: the party that may read keys; ``"auto"`` for the one that can read those of the most operators, ``"none"`` for none.
    """
    strict = plan.policy.min_count > 1
    # A site's own groups may have few units, and so may the rows of a public value: whoever sees them counts them.
    plan = plan if strict else _aggregate_at_sites(plan)
    origins = _Origins(plan)
    clear = {
        id(one): origins.read_bases(one) for one in walk_operators(plan.root) if _has_clear_form(one, strict=strict)
    }
    if trusted == "auto":
        trusted = _choose_reader(plan.policy, [keys | rows for keys, rows in clear.values()])

    def moved(old: Operator, new: Operator) -> Operator:
        if id(old) not in clear:
            return new
        keys, rows = clear[id(old)]
        reader = next((one for one in (EVERYONE, trusted) if _may_read(plan.policy, one, keys | rows)), None)
        return new if reader is None else _cleared(new, reader, tuple(sorted(keys)), tuple(sorted(rows - keys)))

    root, *rest = rewrite_operators([plan.root, *([] if plan.withheld is None else [plan.withheld])], moved)
    plan = replace(plan, withheld=rest[0] if rest else None)
    if isinstance(root, Limited) and plan.grouped and _may_read(plan.policy, EVERYONE, origins.shown_bases(plan)):
        return replace(plan, root=root.source, ordered=False, limit=None)
    return replace(plan, root=root)


def _has_clear_form(one: Operator, *, strict: bool) -> bool:
    """Whether a reader can do it: an inner join or a left one of unique keys, a lookup without further conditions, and groups by keys.

    Args:
        one: the operator.
        strict: whether few units must not show: then none whose size only the reader knows, which all see.
    """
    if isinstance(one, JoinedRows):
        if strict and 1 not in (one.left_most, one.right_most):
            return False
        return bool(one.pairs) and (one.side == "inner" or (one.side == "left" and one.condition is None and one.right_most == 1))  # fmt: skip
    if isinstance(one, Looked):
        return bool(one.pairs) and one.condition is None
    return isinstance(one, GroupedRows) and bool(one.keys)


def _cleared(one: Operator, reader: str, shown: tuple[Base, ...], counted: tuple[Base, ...]) -> Operator:
    """An operator with a reader."""
    kind: Any = ClearJoin if isinstance(one, JoinedRows) else ClearLookup if isinstance(one, Looked) else ClearGroups
    text = ", ".join(f"{table}.{column}" for table, column in shown) or "no column"
    who = f"{reader} reads {text}, shuffled" if reader else f"all three read {text}: public"
    given = {field.name: getattr(one, field.name) for field in fields(one)} | {"what": f"{one.what or 'lookup'} ({who})"}  # fmt: skip
    return kind(**given, reader=reader, shown=shown, counted=counted)  # type: ignore[no-any-return]


# ---------------------------------------------------------------- trust


def _may_read(policy: QueryPolicy, party: str, bases: Iterable[Base]) -> bool:
    """Whether a party may read columns; the empty name is everyone. Where few units must not show, policies name it for each."""
    columns = [policy.table(table).column(column) for table, column in bases]
    anyone = policy.min_count == 1
    if not anyone and party in (EVERYONE, "none"):
        return False
    return all((anyone and one.level == "public") or (party != EVERYONE and party in one.trusted) for one in columns)


def _choose_reader(policy: QueryPolicy, operators: Iterable[Bases]) -> str:
    """The party that can read the keys of the most operators that not everyone may read, the first by name of several."""
    votes: Counter[str] = Counter()
    for bases in operators:
        if not _may_read(policy, EVERYONE, bases):
            known = {party for table, column in bases for party in policy.table(table).column(column).trusted}
            votes.update(party for party in known if _may_read(policy, party, bases))
    return min(votes, key=lambda name: (-votes[name], name), default="none")


class _Origins:
    """What rows and columns of a plan's tables depend on.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: SecurePlan) -> None:
        self._plan = plan
        self._known: dict[int, tuple[Bases, Mapping[str, Bases]]] = {}
        self._leaves = [_leaf_origins(plan, leaf) for leaf in plan.leaves]
        self._find(plan.root)

    def read_bases(self, one: Operator) -> tuple[Bases, Bases]:
        """What a reader of an operator's keys reads, and what decides of which rows."""
        if isinstance(one, JoinedRows | Looked):
            sides = (one.left, one.right) if isinstance(one, JoinedRows) else (one.source, one.inner)
            (rows, mine), (more, other) = (self._find(side) for side in sides)
            return self._union(one.pairs, {**mine, **other}), rows | more
        rows, columns = self._find(one.source)  # type: ignore[attr-defined]
        return self._union(one.keys, columns), rows  # type: ignore[attr-defined]

    def shown_bases(self, plan: SecurePlan) -> Bases:
        """What the last table's rows and shown columns depend on."""
        rows, columns = self._find(plan.root)
        return rows | self._union((plan.key_columns, *(one.parts for one in plan.outputs)), columns)

    @staticmethod
    def _union(node: Any, columns: Mapping[str, Bases]) -> Bases:
        return frozenset[Base]().union(*(columns[name] for name in stored_names(node)))

    def _find(self, one: Operator) -> tuple[Bases, Mapping[str, Bases]]:
        """What decides which rows count, and what each column follows from."""
        if id(one) not in self._known:
            self._known[id(one)] = self._found(one)
        return self._known[id(one)]

    def _found(self, one: Operator) -> tuple[Bases, Mapping[str, Bases]]:
        if isinstance(one, LeafRows):
            return self._leaves[one.place]
        if isinstance(one, Stacked):
            parts = [self._find(source) for source in one.sources]
            rows = frozenset[Base]().union(*(known for known, _ in parts))
            made = {column.name: frozenset[Base]().union(*(self._union(row[k], columns) for row, (_, columns) in zip(one.inputs, parts, strict=True))) for k, column in enumerate(one.columns)}  # fmt: skip
            return rows, made | dict.fromkeys(one.flags, frozenset())
        if isinstance(one, JoinedRows | Looked):
            return self._of_join(one)
        rows, columns = self._find(one.source)  # type: ignore[attr-defined]
        if isinstance(one, GroupedRows):
            rows = rows | self._union(one.keys, columns)
            return rows, {key.name: columns[key.name] for key in one.keys} | {made.column.name: rows | self._union((made.value, made.where), columns) for made in one.columns}  # fmt: skip
        if isinstance(one, Expanded):
            return rows, {**columns, **{column.name: self._union(value, columns) for column, value in one.columns}}
        if isinstance(one, Ranked):
            read = rows | self._union((one.partition, one.order), columns)
            return rows, {**columns, **{made.column.name: read | self._union(made.value, columns) for made in one.columns}}  # fmt: skip
        # A filter's condition decides which rows count, and so does the order of the first rows.
        decides = one.condition if isinstance(one, Filtered) else one.order  # type: ignore[attr-defined]
        return rows | self._union(decides, columns), columns

    def _of_join(self, one: JoinedRows | Looked) -> tuple[Bases, Mapping[str, Bases]]:
        sides = (one.left, one.right) if isinstance(one, JoinedRows) else (one.source, one.inner)
        (rows, mine), (more, other) = (self._find(side) for side in sides)
        both = {**mine, **other}
        read = rows | more | self._union((one.pairs, one.condition), both)
        if isinstance(one, JoinedRows):
            # A row without a match has NULL in the columns of the other table.
            missing = {"inner": {}, "left": other, "full": both}[one.side]
            return read, {name: bases | read if name in missing else bases for name, bases in both.items()}
        return rows, {**mine, one.flag: read, **{column.name: other[column.name] | read for column in one.columns}}


def _leaf_origins(plan: SecurePlan, leaf: PlanLeaf) -> tuple[Bases, Mapping[str, Bases]]:
    """What a leaf's rows and columns follow from: the columns of sites in its local SQL."""
    rows = bases_of(plan, "1", leaf.body, whole=True)
    return rows, {column.name: bases_of(plan, column.text, leaf.body, whole=False) for column in leaf.columns}


def bases_of(plan: SecurePlan, text: str, body: str, *, whole: bool) -> Bases:
    """The columns of sites that an expression names, or all of its SELECT does; where a name is that of a subquery or of WITH, all that the statement reads."""
    import sqlglot
    from sqlglot import exp

    every = frozenset((table, column.lower()) for table, columns in plan.sources.items() for column in columns)
    tree = sqlglot.parse_one(f"SELECT {text} {body}", dialect="duckdb")
    tables: dict[str, set[str]] = {}
    for table in tree.find_all(exp.Table):
        if not table.name.startswith(SOURCE):
            return every
        tables.setdefault(table.alias_or_name, set()).add(table.name.removeprefix(SOURCE))
    found: set[Base] = set()
    for column in (tree if whole else tree.expressions[0]).find_all(exp.Column):
        known = {(table, column.name.lower()) for table in tables.get(column.table, ())} & every
        if not known:
            return every
        found |= known
    return frozenset(found)


# ---------------------------------------------------------------- at the sites


def _aggregate_at_sites(plan: SecurePlan) -> SecurePlan:
    """The plan with groups of one leaf's rows added up at each site before they are shared."""
    used: Counter[int] = Counter()
    operators = list({id(one): one for one in walk_operators(plan.root)}.values())
    for one in operators:
        for name in (field.name for field in fields(one)):
            value = getattr(one, name)
            used.update(inner.place for inner in (value if isinstance(value, tuple) else (value,)) if isinstance(inner, LeafRows))  # fmt: skip
    leaves = list(plan.leaves)

    def merged(old: Operator, new: Operator) -> Operator:
        if not isinstance(old, GroupedRows) or not old.keys or not isinstance(old.source, LeafRows) or used[old.source.place] != 1:  # fmt: skip
            return new
        made = _merge_of(leaves[old.source.place], old)
        if made is None:
            return new
        leaves[old.source.place], columns = made
        return replace(old, columns=columns, what=f"{old.what}, of each site's own groups")

    (root,) = rewrite_operators([plan.root], merged)
    return replace(plan, root=root, leaves=tuple(leaves))


def _merge_of(leaf: PlanLeaf, groups: GroupedRows) -> tuple[GroupedLeaf, tuple[GroupColumn, ...]] | None:
    """A leaf of groups, and what the parties make of their columns; ``None`` if a site cannot add them up alone."""
    known = {column.name: column for column in leaf.columns}
    if not leaf.size or any(key.number or key.name not in known for key in groups.keys):
        return None
    keys = [known[key.name] for key in dict.fromkeys(groups.keys)]
    shared, columns = list(keys), []
    for k, one in enumerate(groups.columns):
        value = one.value
        if one.distinct or one.where is not None or not (value is None or (isinstance(value, Stored) and value.name in known)):  # fmt: skip
            return None
        local = None if value is None else known[value.name]
        if local is not None and one.operation in ("min", "max") and local.code.kind == "text":
            return None
        number = one.operation in ("count", "sum")
        if one.operation == "count":
            text, code = f"count({'*' if local is None else local.text})", _WHOLE
        elif local is not None and number:
            text, code = f"CAST(sum({local.text}) AS BIGINT)", one.column.code
        elif local is not None:
            text, code = f"{one.operation}({local.text})", one.column.code
        else:
            return None
        made = SharedColumn(f"g{k}.{leaf.columns[0].name}", text, code, number, local is not None and local.bounded)
        shared.append(made)
        operation = "sum" if number else one.operation
        columns.append(replace(one, operation=operation, value=Stored(code, one.column.bases, made.name, number)))
    texts = ", ".join(column.text for column in keys)
    size = f"SELECT count(*) FROM (SELECT DISTINCT {texts} {leaf.size.removeprefix('SELECT count(*) ')})"
    return GroupedLeaf(leaf.name, tuple(shared), f"{leaf.body} GROUP BY {texts}", size, leaf.lone, leaf.claims), tuple(columns)  # fmt: skip
