"""Plans of statements over relations that stay shared: what is below one is planned as the statement means it, and the parties take the rows as they kept them.

``WITH stays AS MATERIALIZED (SELECT …) SELECT …`` is what is signed and checked. Each ``AS MATERIALIZED`` is a *barrier* of the plan (`KeptRows`): nothing of the statement around it moves below it, so that the relation has
the same columns, words and rows in every statement that reads it. Levels of columns, units and bounds of numbers are followed through the barrier, for what is below stays in the plan.

A barrier hides from the planner what it could have moved below. So the same text is planned without barriers too, as if nothing were kept, and what that plan refuses is refused (`make_kept_plan`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atoll.core.errors import CompositionError, ConfigError
from atoll.secure.shares import Trio
from atoll.secure.tables import SharedTable

from ..databases.silo import quote
from ..policy import QueryPolicy
from ..scopes import merge_derived
from ..statement import SOURCE, Catalog, SqlStatement, shadow
from .names import JoinPart, SelectNames, refuse
from .operators import (
    KeptRows,
    Operator,
    PlanLeaf,
    Quotient,
    SecurePlan,
    Stored,
    Value,
    inputs_of,
    list_leaves,
)
from .plan import SecurePlanner, make_row_plan
from .tables import SecureTables
from .yannakakis import aggregate_early

__all__ = [
    "KeptTables",
    "define_relation",
    "held_relations",
    "kept_layout",
    "kept_planner",
    "make_kept_plan",
    "makes_relation",
    "tables_below",
    "to_kept",
]


# ---------------------------------------------------------------- what a plan says


def makes_relation(plan: SecurePlan) -> bool:
    """Whether the parties keep what a plan makes, and open nothing."""
    return isinstance(plan.root, KeptRows) and not plan.root.held and not plan.key_columns and not plan.outputs


def held_relations(plan: SecurePlan) -> list[KeptRows]:
    """The relations that the parties take as they kept them, each once."""
    found: dict[str, KeptRows] = {}

    def visit(op: Operator) -> None:
        if isinstance(op, KeptRows) and op.held:
            found.setdefault(op.relation, op)
            return
        for inner in inputs_of(op):
            visit(inner)

    for root in (plan.root, plan.withheld):
        if root is not None:
            visit(root)
    return list(found.values())


def tables_below(plan: SecurePlan, op: Operator) -> list[str]:
    """The tables of sites that a part of a plan reads."""
    texts = [_text_of(plan.leaves[place]) for place in list_leaves(op)]
    return [table for table in plan.catalog.tables if any(quote(SOURCE + table) in text for text in texts)]


def _text_of(leaf: PlanLeaf) -> str:
    return f"{leaf.text} {leaf.size}"


def kept_layout(op: KeptRows, widths: Mapping[str, int]) -> dict[str, int | None]:
    """The columns of a relation as the parties keep it, by their numbers.

    Args:
        op: the relation.
        widths: words of its columns of text, as ``relation@number``.
    """
    made: dict[str, int | None] = {}
    for k, column in enumerate(op.columns):
        words = {f"{k}": None} if column.number else {f"{k}.{w}": 64 for w in range(widths.get(f"{op.relation}@{k}", 1))}  # fmt: skip
        made |= {**words, f"{k}?": 1}
    return made


@functools.lru_cache(maxsize=256)
def define_relation(text: str, relation: str) -> str:
    """What a statement's WITH says that a relation is: a digest of its query, and of those that it reads.

    Raises:
        ConfigError: the statement defines no such relation.
    """
    import sqlglot

    tree = sqlglot.parse_one(text, dialect="duckdb")
    common = tree.args.get("with_")
    defined = {one.alias.lower(): one.this for one in common.expressions} if common else {}
    if relation not in defined:
        raise _undefined(relation)
    found: dict[str, str] = {}

    def visit(name: str) -> None:
        for table in defined[name].find_all(sqlglot.exp.Table):
            inner = table.name.lower()
            if inner in defined and inner != name and inner not in found:
                visit(inner)
        found[name] = defined[name].sql("duckdb")

    visit(relation)
    return hashlib.blake2b(repr(list(found.items())).encode(), digest_size=16).hexdigest()


def _undefined(relation: str) -> ConfigError:
    return ConfigError(f"the statement does not say what {relation} is", where="sql", remedy="write WITH … AS MATERIALIZED (SELECT …) before it, as CREATE TEMP TABLE does")  # fmt: skip


# ---------------------------------------------------------------- the planner


@functools.lru_cache(maxsize=64)
def kept_planner(held: tuple[str, ...], creates: str) -> Callable[..., SecurePlan]:
    """What makes the plan of a statement that reads kept relations, or makes one; always the same one, so that plans are made once."""
    return functools.partial(make_kept_plan, held=held, creates=creates)


def make_kept_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy, *, held: Sequence[str], creates: str = "") -> SecurePlan:  # fmt: skip
    """Plan a statement over relations that parties kept, or one whose relation they will keep.

    Args:
        statement: the statement, with all relations written out.
        catalog: the tables.
        policy: what all sites allow.
        held: the relations that are taken as they were kept.
        creates: the relation that is to be kept; then the statement is ``WITH … SELECT * FROM`` it, and nothing is opened.

    Raises:
        PolicyError: the statement that is written out is not allowed.
        CompositionError: the parties cannot answer it.
    """
    if not creates:
        make_row_plan(statement, catalog, policy)  # refuses what is refused where nothing is kept
    named = QueryPolicy(policy.min_count, policy.seconds, policy.memory, {t: policy.table(t) for t in catalog.tables}, unrecorded=policy.unrecorded)  # fmt: skip
    with shadow(catalog) as connection:
        try:
            return aggregate_early(KeptPlanner(statement, catalog, named, connection, frozenset(held), creates).plan())
        except CompositionError as error:
            if not held:
                raise
            # What is written out can be answered: sites would compute it from their own tables.
            raise CompositionError(error.what, where=error.where, remedy=f"put it into the relation ({', '.join(held)}) as a column or condition of its own, or write the relation into the statement: WITH … AS (SELECT …)") from error  # fmt: skip


class KeptPlanner(SecurePlanner):
    """One planning of a statement with barriers; see the module."""

    def __init__(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy, connection: Any, held: frozenset[str], creates: str) -> None:  # fmt: skip
        self.held, self.creates = held, creates
        common = statement.tree.args.get("with_")
        defined = {one.alias: one for one in common.expressions} if common else {}
        self.barriers = frozenset(name for name, one in defined.items() if one.args.get("materialized"))
        missing = next((name for name in sorted({*held, *filter(None, [creates])}) if name not in self.barriers), None)
        if missing is not None:
            raise _undefined(missing)
        apart = set(self.barriers)
        for name, one in defined.items():  # a WITH reads those before it alone
            if any(table.name in apart for table in one.find_all(_tables())):
                apart.add(name)
        self.apart_names = frozenset(apart)
        self.known: dict[str, tuple[Operator, list[tuple[str, Value]], frozenset[Value] | None, list[Stored]]] = {}
        super().__init__(statement, catalog, policy, connection)

    @property
    def unrecorded(self) -> str:
        """What may choose rows where no site sees which: of relations that are taken as they were kept, the statement that is written out has decided."""
        return "anything" if self.held else super().unrecorded

    def merged(self, tree: Any) -> Any:
        """A copy of the statement with derived tables merged, none over a barrier."""
        whole = tree.copy()
        common = whole.args.get("with_")
        kept = [one for one in common.expressions if one.alias in self.barriers] if common else []
        order = {one.alias: k for k, one in enumerate(common.expressions)} if common else {}
        for one in kept:
            one.pop()
        if common is not None and not common.expressions:
            whole.set("with_", None)
        made = self.pushed(merge_derived(whole))
        for one in kept:
            one.set("this", self.pushed(merge_derived(one.this)))
        rest = made.args["with_"].expressions if made.args.get("with_") else []
        made.set("with_", self.exp.With(expressions=sorted([*kept, *rest], key=lambda one: order[one.alias])))
        return made

    def plan(self) -> SecurePlan:
        """All of it; of a relation that is to be kept, its rows."""
        if not self.creates:
            return self._with_sources(super().plan())
        self.scopes.require_readable()
        self.common = self.write_common()
        names, item = SelectNames(self.tree, self.scopes.root, None), self.tree.args.get("from_")
        if item is None or item.this.name != self.creates or self.tree.args.get("joins"):
            raise ConfigError(f"the statement is to make {self.creates}, and selects something else", where="sql", remedy="write CREATE TEMP TABLE … AS SELECT …")  # fmt: skip
        part = self._part(item.this, names)
        return self._with_sources(self._made(part.operator, [], [], "", grouped=False))

    def _with_sources(self, plan: SecurePlan) -> SecurePlan:
        """The plan, which reads no table for rows alone that are kept."""
        roots = [plan.root, *([] if plan.withheld is None else [plan.withheld])]
        texts = [_text_of(plan.leaves[place]) for root in roots for place in list_leaves(root, live=True)] + [plan.common]  # fmt: skip
        for table in list(plan.sources):
            if not any(quote(SOURCE + table) in text for text in texts):
                del plan.sources[table]
        return plan

    # ------------------------------------------------------------------ what no site computes

    def _is_apart(self, query: Any) -> bool:
        return any(table.name in self.apart_names for table in query.find_all(self.exp.Table))

    def is_local_scope(self, scope: Any) -> bool:
        """Whether each site can make the rows of a query by itself: none of a kept relation."""
        return not self._is_apart(scope.expression) and super().is_local_scope(scope)

    def is_local_query(self, query: Any) -> bool:
        """Whether a subquery sees the same rows at a site as over all sites."""
        return not self._is_apart(query) and super().is_local_query(query)

    def _is_local_from(self, scope: Any) -> bool:
        return not self._is_apart(scope.expression) and super()._is_local_from(scope)

    def _part(self, item: Any, names: SelectNames) -> JoinPart:
        if not isinstance(item, self.exp.Table) or item.name not in self.barriers or item.db:
            return super()._part(item, names)
        alias, relation = item.alias_or_name, item.name
        source = self.scopes.sources_of(names.scope)[alias][1]
        if relation not in self.known:
            operator, outputs, unique = self.query(source.expression, source, None)
            self._require_columns(relation, outputs)
            self.known[relation] = operator, outputs, unique, list(self.query_units.get(id(source.expression.unnest()), ()))  # fmt: skip
        operator, outputs, unique, units = self.known[relation]
        values = [*(value for _, value in outputs), *units]
        columns = [Stored(value.code, value.bases, self.new_name("k"), value.arithmetic) for value in values]
        for column, value in zip(columns, values, strict=True):
            self.origins[column.name] = value
        held = relation in self.held
        made = KeptRows((operator,), (tuple(values),), tuple(columns), relation=relation, held=held, what=f"{'take' if held else 'make'} the rows of {relation}")  # fmt: skip
        renamed = item.args["alias"].columns if item.args.get("alias") is not None else []
        shown = [renamed[k].name if k < len(renamed) else name for k, (name, _) in enumerate(outputs)]
        by_name = {name.lower(): column for name, column in zip(shown, columns, strict=False)}
        names.sources[alias] = dict(by_name)
        names.units[alias] = columns[len(outputs) :]
        if unique is not None:
            names.uniques[alias] = frozenset(name.lower() for name, (_, value) in zip(shown, outputs, strict=True) if value in unique)  # fmt: skip
            if len(names.uniques[alias]) < len(unique):
                del names.uniques[alias]
        return JoinPart(made, {alias})

    def _require_columns(self, relation: str, outputs: Sequence[tuple[str, Value]]) -> None:
        """Refuse columns that a statement could not name, and quotients, which parties do not store."""
        seen: set[str] = set()
        for name, value in outputs:
            if name.startswith("_col_") or name.lower() in seen:
                what = f"column {name.removeprefix('_col_')} of {relation} has no name" if name.startswith("_col_") else f"two columns of {relation} are called {name}"  # fmt: skip
                raise ConfigError(what, where="sql", remedy="give each column a name of its own: count(*) AS n")
            if isinstance(value, Quotient):
                raise refuse(f"column {name} of {relation} is an average or a quotient", "keep SUM and COUNT, and divide in the statement that reads it")  # fmt: skip
            seen.add(name.lower())


def _tables() -> Any:
    from sqlglot import exp

    return exp.Table


# ---------------------------------------------------------------- the tables of the parties


class KeptTables(SecureTables):
    """The tables of a plan over kept relations.

    Args:
        trio: the three parties.
        leaves: the shared rows of each leaf; of one that nobody shares, anything.
        stored: the rows of each relation, as they were kept.
        most: rows of a join at most.
    """

    def __init__(self, trio: Trio, leaves: Sequence[Any], stored: Mapping[str, SharedTable], most: int = 1 << 31) -> None:  # fmt: skip
        super().__init__(trio, leaves, None, most)
        self._stored = dict(stored)

    async def _table_of(self, op: Operator) -> SharedTable:
        if isinstance(op, KeptRows) and op.held:
            table = self._stored[op.relation]
            return SharedTable(_renamed(table, [f"{k}" for k in range(len(op.columns))], [one.name for one in op.columns]), table.valid)  # fmt: skip
        return await super()._table_of(op)


def to_kept(op: KeptRows, table: SharedTable) -> SharedTable:
    """The rows of a relation with the numbers of its columns as their names."""
    return SharedTable(_renamed(table, [one.name for one in op.columns], [f"{k}" for k in range(len(op.columns))]), table.valid)  # fmt: skip


def _renamed(table: SharedTable, old: Sequence[str], new: Sequence[str]) -> dict[str, Any]:
    names = dict(zip(old, new, strict=True))
    made = {}
    for name, column in table.columns.items():
        stem = name.removesuffix("?") if name in names or name.endswith("?") else name.rpartition(".")[0]
        made[names[stem] + name[len(stem) :]] = column
    return made
