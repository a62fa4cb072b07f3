"""Names of a statement that is planned under shares: what they stand for, of which type an expression is, and which expressions sites compute by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from atoll.core.errors import CompositionError

from ..column_codes import ColumnCode, code_of
from ..plan import CellSets, Released, guard_node, try_casts
from ..policy import QueryPolicy
from ..quantiles import write_out_quantiles
from ..rules.matching import has_matching
from ..scopes import Scopes, factor_conditions, find_outermost, has_grouping_sets, merge_derived, write_out_quantifiers
from ..statement import Catalog, SqlStatement
from ..strategies.groupings import write_out_grouping_sets
from .limits.selections import find_constant, find_known_choice, push_conditions
from .operators import (
    UNBOUNDED,
    ChosenValue,
    ColumnBound,
    Computed,
    Expanded,
    GroupColumn,
    LeafRows,
    Operator,
    PlanLeaf,
    Quotient,
    RowCondition,
    SharedColumn,
    Stored,
    Value,
)

__all__ = ["LeafDraft", "NamePlanner", "SelectNames", "JoinPart", "refuse"]

_WHOLE = ColumnCode("whole", "BIGINT")


def refuse(what: str, remedy: str) -> CompositionError:
    """What the parties cannot compute."""
    return CompositionError(what, where="smcql", remedy=remedy)


def _items_of(select: Any) -> list[Any]:
    """What FROM and JOIN of a SELECT name."""
    return [one.this for one in (select.args["from_"], *(select.args.get("joins") or ()))]


class LeafDraft:
    """A leaf in the making."""

    def __init__(self, items: Sequence[str], aliases: Iterable[str], lone: bool) -> None:
        self.items, self.aliases, self.lone = list(items), set(aliases), lone
        self.place = -1
        """Its number in the plan, once it is certain that no other leaf takes it up."""
        self.links: list[str] = []
        """Local SQL of equal columns that join its tables."""
        self.kept: list[str] = []
        """Local SQL of further conditions."""
        self.columns: list[SharedColumn] = []
        self.claims: dict[tuple[str, str], int] = {}
        self.released: list[Released] = []
        self.cells = CellSets()
        self.nullable = False
        self.single = False
        """Whether each site shares one row of aggregates."""
        self.first: tuple[str, int] | None = None
        """Local SQL of an order, and how many rows each site shares: no other can be among the first of all."""

    def finish(self) -> PlanLeaf:
        """The leaf as it stands in the plan."""
        source = f"FROM {' CROSS JOIN '.join(self.items)}"
        where = [f"({part})" for part in (*self.links, *self.kept)]
        links = f" WHERE {' AND '.join(f'({one})' for one in self.links)}" if self.links else ""
        size = "" if self.single else f"SELECT count(*) {source}{links}"
        claims = tuple((t, c, most) for (t, c), most in self.claims.items())
        body = source + (f" WHERE {' AND '.join(where)}" if where else "")
        if self.first is not None:
            order, rows = self.first
            size = f"SELECT least(count(*), {rows}) {source}{links}"
            body += f"{f' ORDER BY {order}' if order else ''} LIMIT {rows}"
        return PlanLeaf(
            ", ".join(sorted(self.aliases)),
            tuple(self.columns),
            body,
            size,
            self.lone,
            claims,
            tuple(self.released),
            cells=self.cells,
        )


class JoinPart:
    """Tables of a FROM that are joined already: a leaf whose rows nothing has been done to yet, or an operator."""

    def __init__(self, operator: Operator, aliases: set[str], leaf: LeafDraft | None = None) -> None:
        self.operator, self.aliases, self.leaf = operator, aliases, leaf


class SelectNames:
    """What the names in one SELECT stand for.

    Attributes:
        select: the SELECT.
        scope: sqlglot's scope of it.
        outer: the names around a subquery.
        sources: alias -> a leaf, or the columns of a derived table.
        uniques: alias of a derived table -> the columns of which no two rows have equal values.
        units: alias of a derived table -> the units of its rows, where few must not show.
        represented: of groups, a unit of each; ``None`` of rows.
        operator: the rows so far.
        values: text of an expression that is computed already -> its value.
        flags: id of a subquery's predicate -> its condition.
        grouped: whether the rows are groups, so that only what is computed already has a value.
    """

    def __init__(self, select: Any, scope: Any, outer: SelectNames | None) -> None:
        self.select, self.scope, self.outer = select, scope, outer
        self.sources: dict[str, LeafDraft | dict[str, Value]] = {}
        self.uniques: dict[str, frozenset[str]] = {}
        self.units: dict[str, list[Stored]] = {}
        self.represented: list[Stored] | None = None
        self.operator: Operator = LeafRows(0)
        self.values: dict[str, Value] = {}
        self.grouped = False


class NamePlanner:
    """What the planners of all parts of a statement stand on: names, types, and the columns that sites share."""

    apart_names: frozenset[str] = frozenset()
    """What WITH names that no site can compute by itself."""

    def __init__(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy, connection: Any) -> None:
        from sqlglot import exp

        self.exp, self.statement, self.catalog, self.policy, self.connection = exp, statement, catalog, policy, connection  # fmt: skip
        self._selects = exp.Query  # SELECT and what joins several, not the job of that name
        # A subquery's condition chooses who takes part in a matching, and one around it chooses among its pairs.
        self.strict = policy.min_count > 1
        self._kinds: dict[tuple[int, str], str] = {}
        tree = self._write_sets(statement.tree.copy() if statement.needs else self.merged(statement.tree))
        self.tree = write_out_quantifiers(factor_conditions(tree), strict=self.strict)
        if not self.strict:
            self.tree = write_out_quantiles(self.tree, self._type_in)
        if self.strict:
            try_casts(exp, self.tree)
        self.scopes = Scopes(self.tree, policy)
        self.everywhere = not self.scopes.is_divided(self.scopes.root)
        self.unit_bases: list[tuple[str, str]] = []
        self.apart: set[str] = set()
        """Units that are in one row each, so that counting rows counts them."""
        self.query_units: dict[int, list[Stored]] = {}
        self.leaves: list[LeafDraft] = []
        self._count = 0
        self.origins: dict[str, Value] = {}

    def merged(self, tree: Any) -> Any:
        """A copy of the statement with derived tables merged into the queries around them, where that is safe."""
        return self.pushed(merge_derived(tree))

    def pushed(self, tree: Any) -> Any:
        """The tree with conditions where sites evaluate and record them, if few rows must not show. Changes the tree."""
        return push_conditions(tree, self._type_in) if self.strict else tree

    # ------------------------------------------------------------------ text and types

    def local(self, node: Any) -> str:
        """Local SQL of a part of the tree: tables of the catalog have the names that sites give them."""
        return str(self.scopes.rename_tables(node, self.catalog).sql("duckdb"))

    def guarded(self, node: Any) -> str:
        """Local SQL of an expression, NULL where it fails if few rows must not show."""
        return self.local(node) if not self.strict else self.local(guard_node(self.exp, node))

    def kind(self, node: Any, names: SelectNames) -> str:
        """DuckDB's type of an expression."""
        at = names
        read = {column.table for column in self.columns_of(node, names.scope)}
        while at.outer is not None and read and not read & set(self.scopes.sources_of(at.scope)):
            at = at.outer
        text = node.sql("duckdb")
        key = (id(at.select), text)
        if key not in self._kinds:
            self._kinds[key] = self._type_in(at.select, node, self._items_around(read, at))
        return self._kinds[key]

    def _items_around(self, read: set[str], names: SelectNames) -> list[Any]:
        """The tables around a SELECT that an expression in it reads; an alias means the innermost one."""
        known, at, found = set(self.scopes.sources_of(names.scope)), names.outer, list[Any]()
        while at is not None and read - known:
            found += [one for one in _items_of(at.select) if one.alias_or_name in read - known]
            known |= set(self.scopes.sources_of(at.scope))
            at = at.outer
        return found

    def _type_in(self, select: Any, node: Any, around: Sequence[Any] = ()) -> str:
        """DuckDB's type of an expression in a SELECT."""
        # Types do not depend on how tables are joined.
        body = f"FROM {', '.join(one.sql('duckdb') for one in (*_items_of(select), *around))}"
        if select.args.get("windows"):
            shell = self.exp.Select(windows=[one.copy() for one in select.args["windows"]])
            body += shell.sql("duckdb").removeprefix("SELECT")
        return self.describe(f"{self._with(select)}SELECT {node.sql('duckdb')} AS x {body}")

    def _write_sets(self, tree: Any) -> Any:
        """The tree with a SELECT for each grouping set."""
        for select in tree.find_all(self.exp.Select) if self.strict else ():
            if has_grouping_sets(select):
                raise refuse(f"{select.args['group'].sql('duckdb').strip()}, and min_count is {self.policy.min_count}", "use the strategy sums, or ask for each grouping in a statement of its own")  # fmt: skip
        return write_out_grouping_sets(tree, self._type_in, "smcql")

    def _with(self, select: Any) -> str:
        found: list[str] = []
        at = select
        while at is not None:
            if at.args.get("with_"):
                found = [one.sql("duckdb") for one in at.args["with_"].expressions] + found
            at = at.parent
        return f"WITH {', '.join(dict.fromkeys(found))} " if found else ""

    def describe(self, text: str) -> str:
        """The type of the first column of a SELECT."""
        try:
            return str(self.connection.execute(f"DESCRIBE {text}").fetchone()[1])
        except Exception as error:  # DuckDB's own words: there are no rows
            raise refuse(f"the type of a part of the statement is unknown: {str(error).partition(chr(10))[0]}", "write it in a simpler way") from None  # fmt: skip

    def common_type(self, kinds: Sequence[str]) -> str:
        """The type to which DuckDB casts values that are compared."""
        found = kinds[0]
        for other in kinds[1:]:
            if other != found:
                found = self.describe(f"SELECT CAST(NULL AS {found}) AS x UNION ALL SELECT CAST(NULL AS {other})")
        return found

    def code(self, kind: str, text: str) -> ColumnCode:
        """The code of a type; decimals of more digits than parties have keep 18."""
        if kind.startswith("DECIMAL("):
            digits, scale = (int(part) for part in kind[len("DECIMAL(") : -1].split(","))
            if digits > 18 and scale < 18:
                return ColumnCode("whole", f"DECIMAL(18,{scale})", scale)
        return code_of(kind, text)

    def new_name(self, prefix: str = "d") -> str:
        """A name that no column has yet."""
        self._count += 1
        return f"{prefix}{self._count}"

    # ------------------------------------------------------------------ where names lead

    def columns_of(self, node: Any, scope: Any) -> Iterator[Any]:
        """The columns of an expression that are not those of a subquery in it."""
        for column in node.find_all(self.exp.Column):
            at = self.scopes.scope_of(column)
            while at is not None and at is not scope and column.table not in self.scopes.sources_of(at):
                at = at.parent
            if at is None or at is scope:
                yield column

    def aliases(self, node: Any, names: SelectNames) -> set[str]:
        """The tables of a SELECT that an expression reads."""
        return {column.table for column in self.columns_of(node, names.scope)} & set(self.scopes.sources_of(names.scope))  # fmt: skip

    def outer_aliases(self, node: Any, names: SelectNames) -> set[str]:
        """Tables around it that an expression reads."""
        found: set[str] = set()
        read = {column.table for column in self.columns_of(node, names.scope)} - set(
            self.scopes.sources_of(names.scope)
        )
        at = names.outer
        while at is not None:
            found |= read & set(self.scopes.sources_of(at.scope))
            at = at.outer
        return found

    def scope(self, query: Any) -> Any:
        """The scope of a query; none of a copy."""
        return next((one for one in self.scopes.all if one.expression is query.unnest()), None)

    def queries(self, node: Any) -> list[Any]:
        """The outermost subqueries of an expression."""
        return list(find_outermost(node, (self.exp.Query,), (), top=False)) if not isinstance(node, self._selects) else [node]  # fmt: skip

    def is_local_scope(self, scope: Any) -> bool:
        """Whether each site can make the rows of a query by itself, so that all of them together are its rows."""
        if has_matching(scope.expression):
            return False
        if not self.scopes.is_divided(scope):
            return True
        if not isinstance(scope.expression, self.exp.Select):
            return False
        try:
            self.scopes.require_local_scope(scope)
        except CompositionError:
            return False
        inner = [
            source for _, source in self.scopes.sources_of(scope).values() if not isinstance(source, self.exp.Table)
        ]
        return all(self.is_local_scope(one) for one in inner) and all(self.is_local_query(one.expression) for one in scope.subquery_scopes)  # fmt: skip

    def is_local_query(self, query: Any) -> bool:
        """Whether a subquery in an expression sees the same rows at a site as over all sites."""
        scope = self.scope(query)
        if scope is None or not self.scopes.is_divided(scope):
            return scope is not None
        try:
            self.scopes.require_local_scope(scope)
            self.scopes.require_local_subquery(scope)
        except CompositionError:
            return False
        return self.is_local_scope(scope)

    def leaf_of(self, node: Any, names: SelectNames) -> LeafDraft | None:
        """The leaf from which alone sites compute an expression; none if they cannot."""
        if names.grouped:
            return None
        leaves: list[Any] = []
        for column in self.columns_of(node, names.scope):
            if column.table not in names.sources:
                return None
            leaves.append(names.sources[column.table])
        if not leaves or not all(isinstance(one, LeafDraft) and one is leaves[0] for one in leaves):
            return None
        if any(not self.is_local_query(query) for query in self.queries(node)):
            return None
        if node.find(self.exp.AggFunc, self.exp.Window) is not None and not self.queries(node):
            return None
        return cast("LeafDraft", leaves[0])

    def bases_of(self, node: Any, names: SelectNames) -> frozenset[tuple[str, str]]:
        """The columns of tables whose values an expression shows: of sums and counts that are computed already, none."""
        text = node.sql("duckdb")
        if text in names.values:
            return names.values[text].bases
        if isinstance(node, self._selects):
            return frozenset(self.scopes.bases(node, names.scope))
        if isinstance(node, self.exp.Column):
            source = names.sources.get(node.table)
            if isinstance(source, dict):
                return source[node.name.lower()].bases if node.name.lower() in source else frozenset()
            return frozenset(self.scopes.bases(node, names.scope))
        return frozenset(base for child in node.iter_expressions() for base in self.bases_of(child, names))

    def is_constant(self, node: Any) -> bool:
        """Whether an expression is the same for all rows."""
        return node.find(self.exp.Column, self.exp.Query, self.exp.AggFunc, self.exp.Window) is None

    def share(self, leaf: LeafDraft, text: str, code: ColumnCode, bases: Iterable[tuple[str, str]], *, number: bool = False, row: bool = False, bound: ColumnBound = UNBOUNDED) -> Stored:  # fmt: skip
        """The column of a leaf that has a local expression."""
        known = next((one for one in leaf.columns if (one.text, one.number) == (text, number)), None)
        if known is None:
            known = SharedColumn(
                f"{'n' if number else 'w'}{leaf.place}.{len(leaf.columns)}", text, code, number, row=row, bound=bound
            )
            leaf.columns.append(known)
        return Stored(code, frozenset(bases), known.name, number)

    def mark(self, values: Iterable[Value]) -> None:
        """Have sites check that columns that parties compute with are not too large."""
        for value in values:
            if isinstance(value, Stored) and value.name in self.origins:
                self.mark([self.origins[value.name]])
            elif isinstance(value, Stored):
                for leaf in self.leaves:
                    leaf.columns = [replace(one, bounded=True) if one.name == value.name else one for one in leaf.columns]  # fmt: skip
            elif isinstance(value, Computed):
                self.mark([value.left, value.right])
            elif isinstance(value, ChosenValue):
                self.mark([*(one for _, one in value.cases), value.default])

    def store(self, operator: Operator, values: Sequence[Value], what: str, *, words: bool = False) -> tuple[Operator, list[Stored]]:  # fmt: skip
        """Values as columns of a table.

        Args:
            operator: the table.
            values: the values.
            what: what they are, for EXPLAIN.
            words: whether they must be words, as keys are.
        """
        found: list[Stored] = []
        added: list[tuple[Stored, Value]] = []
        for value in values:
            if isinstance(value, Stored) and not (words and value.number):
                found.append(value)
                continue
            if isinstance(value, Quotient):
                raise refuse("an average or a quotient inside a subquery is a column", "compare it, or show it at the outside")  # fmt: skip
            made = Stored(value.code, value.bases, self.new_name(), not words and value.arithmetic)
            self.origins[made.name] = value
            added.append((made, value))
            found.append(made)
        return (Expanded(operator, tuple(added), what=what) if added else operator), found

    # ------------------------------------------------------------------ what no site sees

    @property
    def unrecorded(self) -> str:
        """What may choose rows where no site sees which."""
        return self.policy.unrecorded

    def require_seen(self, node: Any, names: SelectNames, *, also: bool = False) -> None:
        """Refuse what would have the parties choose rows, which no site's record sees, as far as the policies say; see `atoll.query.secure.limits.selections`.

        Args:
            node: a condition, or what rows are joined or grouped by.
            names: what its names stand for.
            also: whether a constant by itself is one too, as in EXCEPT.

        Raises:
            CompositionError: names the expression, and the constant.
        """
        if not self.strict or (self.is_constant(node) and not also):
            return
        self.require_sites(f"the parties decide {node.sql('duckdb')}")
        if self.unrecorded == "anything":
            return
        found = find_constant(self.scopes, node, names.scope)
        if found is not None:
            raise self.unseen(f"{node.sql('duckdb')} chooses rows by {found.sql('duckdb')}", f"write the condition on columns of one table, inside its subquery, or compare columns without {found.sql('duckdb')}")  # fmt: skip
        if find_known_choice(self.scopes, node, names.scope):
            raise self.unseen(f"{node.sql('duckdb')} chooses rows by values that every site has", "join such tables on equal columns")  # fmt: skip

    def require_sites(self, what: str) -> None:
        """Refuse whatever parties do beside adding up rows that sites chose, where policies say so.

        Raises:
            CompositionError: names the part.
        """
        if self.strict and self.unrecorded == "nothing":
            raise self.unseen(what, "ask about one table", "joins")

    def unseen(self, what: str, remedy: str, needed: str = "anything") -> CompositionError:
        """The error of what no site's record sees."""
        return CompositionError(f"{what}, so that no site's record of answers sees which rows this one is about: min_count is {self.policy.min_count}, and policies say unrecorded: {self.unrecorded}", where="few rows", remedy=f"{remedy}; or let all sites set policy: {{unrecorded: {needed}}}, which trusts analysts with two answers that differ by one row")  # fmt: skip

    # ------------------------------------------------------------------ what the planner of a part needs of the others

    def query(self, node: Any, scope: Any, outer: SelectNames | None) -> tuple[Operator, list[tuple[str, Value]], frozenset[Value] | None]:  # fmt: skip
        """A query: its rows, the names and values of its columns, and the columns of which no two rows have equal values."""
        raise NotImplementedError

    def read_rows(self, names: SelectNames, conditions: Sequence[Any]) -> None:
        """The rows of FROM for which conditions hold; then `names` has what their columns stand for."""
        raise NotImplementedError

    def look_up_rows(self, query: Any, names: SelectNames) -> RowCondition:
        """EXISTS: whether a subquery has a row."""
        raise NotImplementedError

    def look_up_member(self, node: Any, names: SelectNames, *, positive: bool, query: Any = None) -> RowCondition:
        """IN: whether a value is one of a list, or of those that a subquery has.

        Args:
            node: the condition.
            names: what its names stand for.
            positive: whether NULL may count as false.
            query: the subquery, if it is not that of the node.
        """
        raise NotImplementedError

    def look_up_value(self, query: Any, names: SelectNames) -> Value:
        """A subquery that stands for one value."""
        raise NotImplementedError

    def count_rows_of_key(self, nodes: Sequence[Any], names: SelectNames) -> int:
        """How many rows of a table may have equal values of some columns, as far as policies say; 0 if they do not."""
        raise NotImplementedError

    def plan_aggregates(self, nodes: Sequence[Any], names: SelectNames) -> tuple[list[GroupColumn], dict[str, Value]]:
        """What the parties compute of aggregates, and their values."""
        raise NotImplementedError
