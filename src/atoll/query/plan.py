"""A plan: what each site computes by itself, what is added up over the sites, and what is computed from the sums.

The outermost SELECT falls into three parts. Its *body* (FROM, JOIN, WHERE) and its group keys run at every site. Its aggregates become addends (`atoll.query.aggregates`). All that is written around them
(expressions of aggregates, HAVING, ORDER BY, LIMIT) runs on the released cells. A **cell** is one group. A **condition** divides a cell further: a FILTER, or a
CASE inside an aggregate. Both are sets of rows, and what is released of a set needs ``min_count`` units behind it; so does what two released sets differ by.

`make_plan` annotates bottom-up with the strictest level of all sites, and refuses before a row is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from atoll.core.errors import CompositionError, PolicyError
from atoll.statistics.combined import PRIMES

from .aggregates import (
    Addend,
    QueryAggregate,
    conditions_inside,
    covariates_of,
    measure_degree,
    merges_values,
    read_aggregate,
    require_degree,
    require_same_values,
    single_out,
)
from .databases.silo import quote
from .policy import LEVELS, QueryPolicy
from .rules.trajectories import RunForm, find_lowest, read_form
from .scopes import Scopes, find_outermost, group_keys, has_grouping_sets, merge_derived
from .spatial import distance_of, nearest_of
from .statement import Catalog, SqlStatement, parse_statement, shadow

__all__ = [
    "CellSets",
    "Condition",
    "Covariate",
    "DIGEST",
    "digest_rows_text",
    "Key",
    "QueryPlan",
    "QueryPlanner",
    "Released",
    "guard_node",
    "make_plan",
    "require_points",
    "split_conditions",
    "try_casts",
]

_SURE_DIGITS = 26
"""Digits of numbers of which 10^12 add up to less than 2^127."""
_MOST_CONDITIONS = 16
_DIGITS = 15
"""Digits of doubles that released columns are multiplied with, if they tell units apart; else all 53 bits do."""
_EXACT = r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL.*"
ROW = "@row"
DIGEST = (1 << 63) - 1
"""Digests of rows are below it."""


def digest_rows_text(row: str) -> str:
    """Local SQL of a digest of rows that are added up: the sum of a hash of each row's number, as often as it is added.

    Args:
        row: local SQL of the number of a row.
    """
    return f"CAST(sum(md5_number_lower(CAST({row} AS VARCHAR))::HUGEINT) % {DIGEST} AS BIGINT)"


@dataclass(frozen=True)
class Key:
    """A group key: as it stands in the statement, its type, and its local SQL."""

    text: str
    type: str
    local: str = ""


@dataclass(frozen=True)
class Condition:
    """A set of rows within a cell: its local SQL; empty for the whole cell."""

    text: str = ""

    def filter(self, *more: str) -> str:
        """The FILTER of an aggregate over these rows that further conditions hold for."""
        parts = [f"({part})" for part in (self.text, *more) if part]
        return f" FILTER (WHERE {' AND '.join(parts)})" if parts else ""


@dataclass(frozen=True)
class Released:
    """A table whose units a cell rests on.

    Attributes:
        table: the table.
        alias: what the statement calls it.
        unit: the column of its units; empty for rows.
        alone: whether it is all that the statement reads, so that rows are counted as they are.
        local: whether each unit lies at one site; if not, one may count at every site.
        bases: columns of local SQL that are sums of hashes of rows of the table, by which a site's record compares what a rule derives with other statements.
        whole: whether units are counted (``COUNT(DISTINCT taxi)``), so that which of their rows there are makes no difference to a number.
    """

    table: str
    alias: str
    unit: str
    alone: bool
    local: bool = True
    bases: tuple[str, ...] = ()
    whole: bool = False

    @property
    def entity(self) -> str:
        """Local SQL of the unit: missing ones are one, so that they count too; NULL only where an outer join has no row."""
        row = f"{quote(self.alias)}.{quote(ROW)}"
        return f"CASE WHEN {row} IS NOT NULL THEN coalesce(CAST({quote(self.alias)}.{quote(self.unit)} AS VARCHAR), '') END" if self.unit else row  # fmt: skip

    @property
    def digest(self) -> str:
        """Local SQL of which rows of the table are added up, and how often."""
        return digest_rows_text(f"{quote(self.alias)}.{quote(ROW)}")

    @property
    def sums(self) -> list[str]:
        """Local SQL of the digests of its bases; NULL where no row has one."""
        return [f"CAST(sum({quote(self.alias)}.{quote(one)}) % {DIGEST} AS BIGINT)" for one in self.bases]

    def count(self, condition: Condition) -> str:
        """Local SQL of the number of units."""
        inner = "*" if self.alone and not self.unit else f"DISTINCT {self.entity}"
        return f"count({inner}){condition.filter()}"


@dataclass(frozen=True)
class Covariate:
    """What a released column is multiplied with in a sum: others may know it, and then the sum is an equation for the column.

    Attributes:
        aggregate: place of the aggregate.
        condition: place of the condition of its FILTER.
        alias: what the statement calls the table of the column.
        column: the column.
        text: local SQL of it; NULL where a row is not in the sum.
    """

    aggregate: int
    condition: int
    alias: str
    column: str
    text: str


@dataclass(frozen=True)
class CellSets:
    """Into which sets the rows of an answer fall: what a site's record is about.

    Attributes:
        keys: local SQL of the group keys, as text.
        conditions: local SQL of further sets within each cell.
        covariates: what released columns are multiplied with; their conditions count from 1, and 0 is the whole cell.
        values: local SQL of where there is a value that is added up; such a set is compared with others, and is no set of rows to a sum.
    """

    keys: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    covariates: tuple[Covariate, ...] = ()
    values: tuple[str, ...] = ()

    def of_table(self, alias: str) -> list[Covariate]:
        """The covariates of one table's columns."""
        return [one for one in self.covariates if one.alias == alias]

    def units_text(self, one: Released, body: str) -> str:
        """Local SQL of the units of a table: unit, keys, whether each condition holds and each value is there, the weight by each covariate and by 1, if there are any, the digest of the rows, and those of bases.

        Args:
            one: the table.
            body: local SQL of the rows: FROM and WHERE.
        """
        shown = [
            f"CAST({one.entity} AS VARCHAR)",
            *self.keys,
            *(f"({text}) IS TRUE" for text in (*self.conditions, *self.values)),
        ]
        mine = self.of_table(one.alias)
        if not mine:
            return f"SELECT {', '.join(f'{text} AS c{k}' for k, text in enumerate([*shown, one.digest, *one.sums]))} {body} GROUP BY ALL"
        row = f"{quote(one.alias)}.{quote(ROW)}"
        every = range(len(mine))
        bases = [f"{quote(one.alias)}.{quote(name)} AS p{k}" for k, name in enumerate(one.bases)]
        inner = [*(f"{text} AS c{k}" for k, text in enumerate(shown)), f"{row} AS r", *bases, *(f"{covariate.text} AS g{k}" for k, covariate in enumerate(mine))]  # fmt: skip
        exact = [f"CASE WHEN regexp_full_match(typeof(g{k}), '{_EXACT}') THEN TRY(CAST(replace(CAST(g{k} AS VARCHAR), '.', '') AS HUGEINT)) END AS x{k}" for k in every]  # fmt: skip
        double = [f"CASE WHEN NOT regexp_full_match(typeof(g{k}), '{_EXACT}') AND isfinite(TRY(CAST(g{k} AS DOUBLE))) THEN TRY(CAST(g{k} AS DOUBLE)) END AS d{k}" for k in every]  # fmt: skip
        tops = [f"max(abs(d{k})) OVER () AS m{k}" for k in every]
        # Doubles count as whole multiples of a power of ten, of which the largest has 15 digits: so what adds up in decimals does so here. Where that makes two of them one, it is a power of two.
        scaled = [f"{_scale_text(f'd{k}', f'm{k}', 10, _DIGITS - 1, 'log10')} AS t{k}, {_scale_text(f'd{k}', f'm{k}', 2, 52, 'log2')} AS b{k}" for k in every]  # fmt: skip
        apart = [f"(SELECT count(DISTINCT t{k}) = count(DISTINCT d{k}) FROM scaled) AS s{k}" for k in every]
        whole = [f"coalesce(x{k}, CAST(CASE WHEN s{k} THEN t{k} ELSE b{k} END AS HUGEINT), 0) AS n{k}" for k in every]
        # Each row is multiplied by a number of its own, so that rows of a unit do not stand for one another.
        hashed = [f"(md5_number_lower(CAST(r AS VARCHAR)) % {prime})::HUGEINT AS h{j}" for j, prime in enumerate(PRIMES)]  # fmt: skip
        weights = [f"CAST(sum(h{j} * ({number} % {prime})) % {prime} AS BIGINT) AS w{k}_{j}" for k, number in enumerate([*(f"n{k}" for k in every), "1"]) for j, prime in enumerate(PRIMES)]  # fmt: skip
        keys = [f"c{k}" for k in range(len(shown))]
        steps = f"made AS (SELECT {', '.join(inner)} {body}), numbers AS (SELECT *, {', '.join([*exact, *double])} FROM made), tops AS (SELECT *, {', '.join(tops)} FROM numbers), scaled AS (SELECT *, {', '.join(scaled)} FROM tops)"
        rows = f"SELECT *, {', '.join([*whole, *hashed])} FROM (SELECT *, {', '.join(apart)} FROM scaled)"
        sums = [f"CAST(sum(p{k}) % {DIGEST} AS BIGINT) AS e{k}" for k in range(len(bases))]
        outer = [*keys, *weights, f"{digest_rows_text('r')} AS d", *sums]
        return f"SELECT {', '.join(outer)} FROM (WITH {steps} {rows}) GROUP BY ALL"


def _scale_text(value: str, largest: str, base: int, digits: int, logarithm: str) -> str:
    """Local SQL of a double as a whole multiple of a power of a base, of which the largest has so many digits; two factors, as one may be too large for a double."""
    power = f"({digits} - floor({logarithm}({largest})))"
    return f"CASE WHEN {largest} > 0 THEN round({value} * pow({base}, floor({power} / 2)) * pow({base}, {power} - floor({power} / 2))) ELSE 0.0 END"


@dataclass(frozen=True)
class QueryPlan:
    """How one statement is answered by sums.

    Attributes:
        statement: the statement.
        catalog: the tables.
        policy: what all sites allow.
        keys: the group keys; none for one cell.
        conditions: sets of rows; the first is the whole cell.
        addends: what sites add up for each cell.
        aggregates: the aggregates.
        released: the tables whose units count.
        lone: whether all sites have all rows, so that one answers.
        sources: tables -> the columns that are read.
        common: the statement's own WITH, as far as it is not merged into the body.
        body: local SQL after the list of columns: FROM and WHERE.
        group: GROUP BY.
        key_body: the same without what depends on columns that are not public, and without GROUP BY.
        finish: SQL of the result, over the table ``cells``.
        reads: columns that are read, with their level, in words.
        parts: the plans of a statement of several groupings; this one says then what they have in common, and its finish reads the cells of all. See `atoll.query.strategies.groupings`.
        covariates: what released columns are multiplied with, if few units must not show.
    """

    statement: SqlStatement
    catalog: Catalog
    policy: QueryPolicy
    keys: tuple[Key, ...]
    conditions: tuple[Condition, ...]
    addends: tuple[Addend, ...]
    aggregates: tuple[QueryAggregate, ...]
    released: tuple[Released, ...]
    lone: bool
    sources: dict[str, tuple[str, ...]] = field(compare=False)
    common: str = ""
    body: str = ""
    group: str = ""
    key_body: str = ""
    finish: str = ""
    reads: tuple[str, ...] = ()
    parts: tuple[QueryPlan, ...] = ()
    covariates: tuple[Covariate, ...] = ()

    @property
    def groupings(self) -> tuple[QueryPlan, ...]:
        """The plans of all groupings; of most statements it is one."""
        return self.parts or (self,)

    @property
    def words(self) -> int:
        """Words that a site adds for each cell."""
        return sum(addend.words for addend in self.addends)

    def least(self, sites: int) -> int:
        """Smallest total of units behind a number: ``min_count``, times the number of sites where one unit may count at each."""
        return self.policy.min_count * (1 if all(one.local for one in self.released) else sites)

    @property
    def cell_sets(self) -> CellSets:
        """Into which sets the rows of the answer fall."""
        keys = tuple(f"CAST({key.local} AS VARCHAR)" for key in self.keys)
        return CellSets(keys, tuple(one.text for one in self.conditions[1:]), self.covariates)

    @property
    def counted(self) -> int:
        """Numbers of units that a site adds for each cell, if few units must not show."""
        return len(self.conditions) * len(self.released) if self.policy.min_count > 1 else 0


def make_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> QueryPlan:
    """Plan a statement of aggregates.

    Args:
        statement: the statement.
        catalog: the tables.
        policy: what all sites allow.

    Raises:
        PolicyError: a column's level or release does not allow it.
        CompositionError: sums cannot answer it.
    """
    named = QueryPolicy(policy.min_count, policy.seconds, policy.memory, {t: policy.table(t) for t in catalog.tables})
    return QueryPlanner(statement, catalog, named).plan()


class QueryPlanner:
    """One planning: the tree is changed as it goes."""

    where: ClassVar[str] = "sums"
    """What errors call the strategy."""
    answers_nearest: ClassVar[bool] = False
    """Whether it answers kNN."""

    def __init__(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> None:
        from sqlglot import exp

        self.exp, self.statement, self.catalog, self.policy = exp, statement, catalog, policy
        self.tree = merge_derived(statement.tree)
        if policy.min_count > 1:
            try_casts(exp, self.tree)
        self._require_select()
        self.scopes = Scopes(self.tree, policy)
        self.root = self.scopes.root
        self.conditions: list[Condition] = [Condition()]
        self.addends: list[Addend] = []
        self.aggregates: list[tuple[Any, QueryAggregate]] = []
        self.covariates: list[Covariate] = []
        self._forms: dict[int, RunForm | None] = {}

    @property
    def strict(self) -> bool:
        """Whether few rows must stay hidden."""
        return self.policy.min_count > 1

    def plan(self) -> QueryPlan:
        """All of it."""
        self._require_aggregates()
        self.scopes.require_readable()
        if self.strict:
            self.scopes.require_even_weights(recorded=True)
            self.scopes.require_few_decided()
        self.scopes.require_local()
        released = self._released()
        keys = self._keys()
        nodes = list(dict.fromkeys(self._aggregate_nodes()))
        with shadow(self.catalog) as connection:
            self.connection = connection
            self.sources = self._sources()
            self.body, self.group = self._body(keys)
            key_types = self._types([text for text, _ in keys])
            for node in nodes:
                self._add(node)
        if self.strict:
            self._add_pairs()
        finish = self._finish(keys)
        made = tuple(Key(text, kind, self._guarded(node)) for (text, node), kind in zip(keys, key_types, strict=True))
        return QueryPlan(
            self.statement, self.catalog, self.policy, made, tuple(self.conditions), tuple(self.addends), tuple(a for _, a in self.aggregates), released,
            not self.scopes.is_divided(self.root), self.sources, self.with_text, self.body, self.group, self._key_body(keys), finish, self._reads(), covariates=tuple(self.covariates),
        )  # fmt: skip

    # ------------------------------------------------------------------ what is allowed

    def _require_select(self) -> None:
        """Refuse what is no SELECT over tables, and what depends on rows around a group."""
        exp, tree = self.exp, self.tree
        if not isinstance(tree, exp.Select):
            raise CompositionError(f"{type(tree).__name__.upper()} at the outside", where=self.where, remedy="ask the parts one by one")  # fmt: skip
        if tree.args.get("from_") is None:
            raise CompositionError("no table is read", where=self.where, remedy="add FROM and a table")
        self.nearest = nearest_of(tree)
        if self.nearest is not None and not self.answers_nearest:
            raise CompositionError("kNN compares distances of rows at different sites", where=self.where, remedy="use the strategy hufu")  # fmt: skip
        if has_grouping_sets(tree):
            raise CompositionError(tree.args["group"].sql("duckdb").strip(), where=self.where, remedy="ask for each grouping in a statement of its own, or use the strategy sums")  # fmt: skip
        for name in ("qualify", "windows"):
            if tree.args.get(name) and (name != "qualify" or self.nearest is None):
                raise CompositionError(f"{name.upper()} at the outside", where=self.where, remedy="leave it out")

    def _require_aggregates(self) -> None:
        """Refuse a SELECT of rows."""
        tree = self.tree
        if not (tree.args.get("group") or tree.args.get("distinct") or any(True for _ in self._aggregate_nodes())):
            raise CompositionError("it asks for rows, and sums answer aggregates alone", where=self.where, remedy="use COUNT, SUM, AVG, VAR_SAMP, CORR, …")  # fmt: skip

    def _aggregate_nodes(self) -> Iterator[Any]:
        """Aggregates of the outermost SELECT, with their FILTER."""
        exp = self.exp
        for node in find_outermost(self.tree, (exp.Filter, exp.AggFunc, exp.Window), (exp.Query,)):
            if isinstance(node, exp.Window):
                raise CompositionError("a window function at the outside", where=self.where, remedy="ask for the groups, and rank them yourself")  # fmt: skip
            yield node

    def _require_points(self) -> None:
        """Refuse to show which rows are near to a point, if the point's coordinates are private: circles would find them."""
        require_points(self.scopes)

    def _level(self, node: Any, scope: Any = None) -> str:
        """The strictest level of the columns that an expression is computed from."""
        levels = [self.scopes.column_policy(base).level for base in self.scopes.bases(node, scope or self.root)]
        return max(levels, key=LEVELS.index, default="public")

    def _reads(self) -> tuple[str, ...]:
        found = {f"{table}.{column}": self.scopes.column_policy((table, column)).level for _, (table, column) in self.scopes.every_base()}  # fmt: skip
        return tuple(f"{name} ({level})" for name, level in sorted(found.items()))

    def _released(self) -> tuple[Released, ...]:
        """The tables whose units cells rest on."""
        exp, found = self.exp, []
        sources = self.root.selected_sources
        lone = not self.scopes.is_divided(self.root)
        for alias, (_, source) in sources.items():
            divided = lone or self.scopes.is_source_divided(source)
            if isinstance(source, exp.Table):
                table = source.name.lower()
                if divided:
                    unit = self.policy.table(table).unit
                    local = lone or not unit or self.policy.table(table).column(unit).local
                    whole = any(self.scopes.is_unit(c, self.root) and c.table == alias for one in self.tree.find_all(exp.Distinct) for c in one.expressions)  # fmt: skip
                    found.append(Released(table, alias, unit, len(sources) == 1, local, whole=whole))
            elif divided and self.strict and (form := self._form_of(source)) is not None:
                table = find_lowest(source.expression).args["from_"].this.name.lower()
                unit = self.policy.table(table).unit
                found.append(Released(table, alias, unit, False, lone or self.policy.table(table).column(unit).local, form.bases))  # fmt: skip
            elif divided and self.strict:
                raise CompositionError(f"the subquery {alias} cannot be merged into the statement, and min_count={self.policy.min_count} counts rows of tables", where=self.where, remedy="write it without a subquery in FROM")  # fmt: skip
        return tuple(found)

    def _form_of(self, source: Any) -> RunForm | None:
        """What a rule of trajectories writes as a derived table (`atoll.query.rules.trajectories`), whose rows are of units of one table; ``None`` for another one."""
        if id(source) not in self._forms:
            self._forms[id(source)] = self._read_form(source.expression)
        return self._forms[id(source)]

    def _read_form(self, select: Any) -> RunForm | None:
        exp = self.exp
        base = find_lowest(select).args["from_"].this if isinstance(select, exp.Select) and select.args.get("from_") else None  # fmt: skip
        if not isinstance(base, exp.Table) or self.scopes.is_cte(base):
            return None
        table = base.name.lower()
        types = {name.lower(): kind for name, kind in self.catalog.tables[table].items()}
        unit = self.policy.table(table).unit

        def prepare(text: str) -> Any:
            tree = merge_derived(parse_statement(f"SELECT * FROM ({text}) AS runs", Catalog({table: self.catalog.tables[table]})).tree)  # fmt: skip
            if self.strict:
                try_casts(exp, tree)
            return tree.args["from_"].this.this

        return read_form(select, table, unit, types, self.policy.table(table).points, prepare) if unit else None

    def _number_rows(self, tree: Any, alias: str, form: RunForm, *, keys: bool = False) -> None:
        """Give a derived table of a rule the numbers of its rows, in place.

        Args:
            tree: a tree as local SQL has it.
            alias: of the derived table.
            form: what the rule writes.
            keys: whether only the columns of its table are kept, of all rows.
        """
        item = next(one for one in (tree.args["from_"].this, *(join.this for join in tree.args.get("joins") or ())) if one.alias_or_name == alias)  # fmt: skip
        made = form.list_plain(item.this) if keys else form.number(item.this)
        if made is not item.this:
            try_casts(self.exp, made)
            item.set("this", made)

    # ------------------------------------------------------------------ keys

    def _keys(self) -> list[tuple[str, Any]]:
        """Local SQL and node of each group key."""
        exp, tree = self.exp, self.tree
        nodes = group_keys(exp, tree)
        if (
            tree.args.get("group") is None
            and tree.args.get("distinct")
            and not any(True for _ in self._aggregate_nodes())
        ):
            nodes = [one.unalias() for one in tree.expressions]
        nodes = [node for node in nodes if not isinstance(node, exp.Literal)]
        for node in nodes:
            self._require_key(node)
            if any(True for _ in find_outermost(node, (exp.Query,), ())):
                raise CompositionError("a subquery in a group key", where=self.where, remedy="group by columns and expressions of them")  # fmt: skip
        return [(node.sql("duckdb"), node) for node in nodes]

    def _require_key(self, node: Any) -> None:
        """Refuse a group key whose values the coordinator may not see before it knows which groups are shown."""
        level = self._level(node)
        if level != "public":
            column = next(f"{t}.{c}" for t, c in sorted(self.scopes.bases(node, self.root)) if self.scopes.column_policy((t, c)).level != "public")  # fmt: skip
            raise PolicyError(f"groups by {column}, which is {level}: which groups there are would show its values", where="policies of the sites", remedy="group by public columns")  # fmt: skip

    # ------------------------------------------------------------------ local SQL

    def _sources(self) -> dict[str, tuple[str, ...]]:
        return self.scopes.columns_read(self.catalog, [(one.table, one.unit) for one in self._released() if one.unit])

    def _renamed(self) -> Any:
        """The tree as local SQL has it."""
        return self.scopes.rename_tables(self.tree, self.catalog)

    def _body(self, keys: Sequence[tuple[str, Any]]) -> tuple[str, str]:
        """Local SQL of what rows there are, and of how they are grouped; user's WITH comes before, in `_with`."""
        tree = self._renamed()
        self.with_text = ", ".join(one.sql("duckdb") for one in tree.args["with_"].expressions) if tree.args.get("with_") else ""  # fmt: skip
        for join in tree.args.get("joins") or ():
            if join.args.get("on") is not None:
                join.set("on", self._guarded_node(join.args["on"]))
        prefix = f"WITH {self.with_text} " if self.with_text else ""
        self.origin = prefix, _from_text(tree)
        for alias, form in self._list_forms().items() if self.strict else ():
            self._number_rows(tree, alias, form)
        body = _from_text(tree)
        if tree.args.get("where"):
            parts = split_conditions(self.exp, tree.args["where"])
            body += f" WHERE {' AND '.join(f'({self._guarded(part)})' for part in parts)}"
        return body, f" GROUP BY {', '.join(self._guarded(node) for _, node in keys)}" if keys else ""

    def _list_forms(self) -> dict[str, RunForm]:
        """The derived tables that rules of trajectories write."""
        named = {alias: self._form_of(source) for alias, (_, source) in self.root.selected_sources.items() if not isinstance(source, self.exp.Table)}  # fmt: skip
        return {alias: form for alias, form in named.items() if form is not None}

    def _guarded_node(self, node: Any) -> Any:
        """An expression, NULL where it fails if few rows must not show."""
        return guard_node(self.exp, node) if self.strict else node

    def _key_body(self, keys: Sequence[tuple[str, Any]]) -> str:
        """Local SQL of all keys that could occur, from public columns alone: which keys satisfy a condition on others would show single rows."""
        if not keys:
            return ""
        exp = self.exp
        wanted = {column.table for _, node in keys for column in node.find_all(exp.Column)}
        forms = self._list_forms()
        for node, alias in sorted(((c, c.table) for _, key in keys for c in key.find_all(exp.Column)), key=lambda one: one[1]):  # fmt: skip
            if not isinstance(self.root.selected_sources[alias][1], exp.Table) and not (
                alias in forms and self._is_plain(node, forms)
            ):
                raise CompositionError(f"groups by a column of the subquery {alias}", where=self.where, remedy="write it without a subquery in FROM")  # fmt: skip
        tree = self._renamed()
        for alias, form in forms.items():
            self._number_rows(tree, alias, form, keys=True)
        joins = list(zip(self.tree.args.get("joins") or (), tree.args.get("joins") or (), strict=True))
        base = tree.args["from_"].this
        read = set(self.root.selected_sources)
        if all(self._is_public(mine.args.get("on")) for mine, _ in joins) and self._reads_tables():
            parts = [join.sql("duckdb") for _, join in joins]
            text = f"FROM {base.sql('duckdb')}" + "".join(one if one.startswith(",") else f" {one}" for one in parts)
        else:
            for mine, _ in joins:
                if (mine.side or "").upper() in ("RIGHT", "FULL") or (mine.side and mine.this.alias_or_name in wanted):
                    raise CompositionError("groups over an outer JOIN on columns that are not public", where=self.where, remedy="use an inner JOIN, or group by columns of the first table")  # fmt: skip
            items = [one for one in (base, *(join.this for _, join in joins)) if one.alias_or_name in wanted]
            text, read = f"FROM {', '.join(one.sql('duckdb') for one in items)}" if items else "", wanted
        kept = [
            f"({self._guarded(part)})"
            for mine, part in zip(split_conditions(exp, self.tree.args.get("where")), split_conditions(exp, tree.args.get("where")), strict=True)
            if self._is_public(mine) and mine.find(exp.Query) is None and {c.table for c in mine.find_all(exp.Column)} <= read and all(c.table not in forms or self._is_plain(c, forms) for c in mine.find_all(exp.Column))
        ]  # fmt: skip
        return text + (f" WHERE {' AND '.join(kept)}" if kept else "")

    def _is_plain(self, column: Any, forms: Mapping[str, RunForm]) -> bool:
        """Whether a column of a derived table is one of a table."""
        source = self.root.selected_sources[column.table][1]
        unit = self.policy.table(find_lowest(source.expression).args["from_"].this.name).unit
        return forms[column.table].is_plain(column.name, self.scopes.projections_of(source, column.name), unit)

    def _reads_tables(self) -> bool:
        """Whether the statement reads tables alone, and no derived ones."""
        return all(isinstance(source, self.exp.Table) for _, source in self.root.selected_sources.values())

    def _is_public(self, node: Any) -> bool:
        """Whether an expression is computed from public columns alone."""
        return node is None or all(self._level(column, self.scopes.scope_of(column)) == "public" for column in node.find_all(self.exp.Column))  # fmt: skip

    def _types(self, texts: Sequence[str]) -> list[str]:
        """DuckDB's types of expressions over the body."""
        return [_known_type(self.catalog.key(), self.origin, text) for text in texts]

    # ------------------------------------------------------------------ aggregates

    def _add(self, node: Any) -> None:
        exp = self.exp
        inner, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
        name, args = read_aggregate(exp, inner)
        if name in ("min", "max"):
            raise PolicyError(f"{inner.sql('duckdb')} is the value of one row, which sums do not show", where=self.where, remedy="ask for AVG, STDDEV, or counts of ranges")  # fmt: skip
        if not name:
            raise CompositionError(f"{inner.sql('duckdb')} is no sum over sites", where=self.where, remedy="use COUNT, SUM, AVG, VAR_SAMP, VAR_POP, STDDEV, COVAR_SAMP, COVAR_POP or CORR")  # fmt: skip
        if inner.find(exp.Query) is not None or (condition is not None and condition.find(exp.Query) is not None):
            raise CompositionError(
                f"a subquery inside {inner.sql('duckdb')}", where=self.where, remedy="put it into WHERE"
            )
        if name == "count_distinct" and self.scopes.is_divided(self.root) and not self.scopes.is_local(args[0], self.root):  # fmt: skip
            raise CompositionError(f"{inner.sql('duckdb')}: one value may lie at two sites, which then both count it", where=self.where, remedy="count a column that the policy declares with join: local, or COUNT(*) of GROUP BY over public columns")  # fmt: skip
        if name == "count_distinct" and self.strict and self._level(args[0]) != "public":
            require_same_values(exp, args[0], lambda part: merges_values(part, inner, self.where, self.policy.min_count), lambda _: None)  # fmt: skip
        place = self._condition(condition)
        supports, rests = [place], [place] if place else []
        for arg in args:
            if not name.startswith("count"):
                self._require_value(arg, inner)
            for extra in conditions_inside(exp, arg, name, self._guarded_node) if self.strict else ():
                both = exp.and_(condition.copy(), extra) if condition is not None else extra
                supports.append(self._condition(both))
                rests.append(supports[-1])
        made = self._made(name, inner, args, place, tuple(supports), tuple(rests))
        factors = self._add_covariates(name, args, place) if self.strict else ()
        self.aggregates.append((node, replace(made, factors=factors)))

    def _add_covariates(self, name: str, args: Sequence[Any], place: int) -> tuple[int, ...]:
        """Take note of what values are multiplied with; places of the conditions that it is not 0."""
        factors: list[int] = []
        for column, value, factor in covariates_of(self.exp, name, args):
            source = self.root.selected_sources[column.table][1]
            if not self.scopes.is_source_divided(source) or self._level(column) == "public":
                continue
            there = f"({self._guarded(value)}) IS NOT NULL"
            made = Covariate(
                len(self.aggregates),
                place,
                column.table,
                column.name.lower(),
                f"CASE WHEN {there} THEN {self._guarded(factor)} END",
            )
            if made in self.covariates:
                continue
            self.covariates.append(made)
            text = " AND ".join(f"({part})" for part in (self.conditions[place].text, there, f"{self._guarded(factor)} <> 0") if part)  # fmt: skip
            factors.append(self._place_rest(text))
        return tuple(dict.fromkeys(factors))

    def _made(self, name: str, inner: Any, args: Sequence[Any], place: int, supports: tuple[int, ...], rests: tuple[int, ...]) -> QueryAggregate:  # fmt: skip
        condition, text = self.conditions[place], inner.sql("duckdb")
        texts = [self._guarded(arg) for arg in args]
        there = [f"{text} IS NOT NULL" for text in texts]
        # count(x) skips NULL as FILTER (WHERE x IS NOT NULL) does, and DuckDB computes x once for it and for sum(x): half the time of TPC-H's Q1.
        counted = f"count({'DISTINCT ' if name == 'count_distinct' else ''}{texts[0]})" if len(texts) == 1 else f"count(*){condition.filter(*there)}"  # fmt: skip
        count = self._addend("count", (f"{counted}{condition.filter()}" if len(texts) == 1 else counted,))
        if name.startswith("count"):
            return QueryAggregate("count", text, "BIGINT", (count,), supports, rests, bool(args))
        if self.strict:  # enough units with a value
            value = Condition(" AND ".join(f"({part})" for part in (condition.text, *there) if part))
            supports = (*supports, self._place(value))
        sums = self._types([f"sum({texts[0]})"])[0] if name in ("sum", "avg") else "DOUBLE"
        (kind,) = self._types([text])
        if sums in ("HUGEINT", "UHUGEINT", "BIGINT") or sums.startswith("DECIMAL"):
            scale = int(sums.rpartition(",")[2].rstrip(")")) if sums.startswith("DECIMAL") else 0
            total = self._whole(texts[0], condition, scale)
            return QueryAggregate(name, text, kind, (count, total), supports, rests)
        if sums != "DOUBLE":
            raise CompositionError(
                f"{inner.sql('duckdb')} is of type {sums}", where=self.where, remedy="cast to a number"
            )
        cast = [f"CAST({text} AS DOUBLE)" for text in texts]
        finite = condition.filter(*there, *(f"isfinite({text})" for text in cast))
        reals = [self._real(text, condition, there, finite) for text in cast]
        n = f"count(*){finite}"
        totals = [f"sum({text}){finite}" for text in cast]
        if name in ("sum", "avg"):
            return QueryAggregate(name, text, kind, (count, *reals), supports, rests)
        squares = [self._addend("square", (n, s, f"var_pop({text}){finite} * {n}")) for s, text in zip(totals, cast, strict=True)]  # fmt: skip
        if len(cast) == 1:
            return QueryAggregate(name, text, kind, (count, *reals, *squares), supports, rests)
        product = self._addend("product", (n, *totals, f"covar_pop({', '.join(cast)}){finite} * {n}"))
        more = squares if name == "corr" else []
        return QueryAggregate(name, text, kind, (count, *reals, product, *more), supports, rests)

    def _whole(self, text: str, condition: Condition, scale: int) -> int:
        """The place of a sum of whole numbers or decimals that no row makes fail: whose sum overflows, somebody could find out by adding constants."""
        (kind,) = self._types([text])
        digits = (
            int(kind.partition("(")[2].partition(",")[0]) if kind.startswith("DECIMAL") else 39 * (kind == "HUGEINT")
        )
        if digits <= _SURE_DIGITS:
            return self._addend("whole", (f"sum({text}){condition.filter()}",), scale)
        most = "9" * (_SURE_DIGITS - scale) if digits < 39 else "9" * _SURE_DIGITS
        near = f"{text} BETWEEN -{most or 0} AND {most or 0}"
        # Few values are so large that a sum of them leaves 127 bits: these are added up in halves.
        whole = f"TRY_CAST(replace(CAST({text} AS VARCHAR), '.', '') AS HUGEINT)" if digits < 39 else text
        far = condition.filter(f"NOT ({near})")
        return self._addend("wide", (f"sum({text}){condition.filter(near)}", f"sum({whole} >> 64){far}", f"sum({whole} & 18446744073709551615::HUGEINT){far}"), scale)  # fmt: skip

    def _real(self, text: str, condition: Condition, there: Sequence[str], finite: str) -> int:
        odd = [f"isnan({text})", f"{text} = 'inf'::DOUBLE", f"{text} = '-inf'::DOUBLE"]
        return self._addend("real", (f"sum({text}){finite}", *(f"count(*){condition.filter(*there, one)}" for one in odd)))  # fmt: skip

    def _addend(self, kind: str, columns: tuple[str, ...], scale: int = 0) -> int:
        made = Addend(kind, columns, scale)
        if made not in self.addends:
            self.addends.append(made)
        return self.addends.index(made)

    # ------------------------------------------------------------------ conditions

    def _condition(self, node: Any) -> int:
        return 0 if node is None else self._place(Condition(self._guarded(node)))

    def _guarded(self, node: Any) -> str:
        """Local SQL of `_guarded_node`."""
        return str(self._guarded_node(node).sql("duckdb"))

    def _place(self, condition: Condition) -> int:
        if condition not in self.conditions:
            self.conditions.append(condition)
        if len(self.conditions) > _MOST_CONDITIONS:
            raise CompositionError(f"more than {_MOST_CONDITIONS} conditions in one statement", where=self.where, remedy="divide it into several statements")  # fmt: skip
        return self.conditions.index(condition)

    def _add_pairs(self) -> None:
        """Sets by which two conditions, or one and the whole cell, differ: the difference of two answers shows them."""
        places = list(dict.fromkeys(place for _, a in self.aggregates for place in a.rests if place))
        found: dict[int, list[int]] = {place: [] for place in places}
        base = list(self.conditions)
        for place in places:
            mine = base[place].text
            found[place].append(self._place_rest(f"({mine}) IS NOT TRUE"))
            for other in places[: places.index(place)]:
                theirs = base[other].text
                found[place].append(self._place_rest(f"({mine}) AND ({theirs}) IS NOT TRUE"))
                found[place].append(self._place_rest(f"({theirs}) AND ({mine}) IS NOT TRUE"))
        self.aggregates = [(node, replace(a, rests=tuple(dict.fromkeys(r for place in a.rests for r in found.get(place, ()))))) for node, a in self.aggregates]  # fmt: skip

    def _place_rest(self, text: str) -> int:
        made = Condition(text)
        if made not in self.conditions:
            self.conditions.append(made)
        return self.conditions.index(made)

    def _require_value(self, arg: Any, inner: Any) -> None:
        """Refuse values that the policy does not release, or expressions that could single out a row."""
        self.scopes.require_released(self.scopes.bases(arg, self.root), inner.sql("duckdb"))
        if self.strict and self._level(arg) != "public":
            degree = self._degree(arg, inner)
            require_degree(degree, inner, self.where)

    def _degree(self, node: Any, inner: Any) -> int:
        return measure_degree(self.exp, node, lambda part: single_out(part, inner, self.where, self.policy.min_count))

    # ------------------------------------------------------------------ the result

    def _in_cells(self, keys: Sequence[tuple[str, Any]]) -> Callable[[Any], Any]:
        """What puts a column of the table ``cells`` in the place of a key or an aggregate."""
        exp = self.exp
        texts = {text: f"k{k}" for k, (text, _) in enumerate(keys)}
        made = {node.sql("duckdb"): f"a{k}" for k, (node, _) in enumerate(self.aggregates)}
        kinds = {type(node) for node, _ in self.aggregates} | {type(node) for _, node in keys}

        def put(node: Any) -> Any:
            if type(node) not in kinds:  # the text of every node of a tree costs more than parsing it
                return node
            text = node.sql("duckdb")
            if text in made:
                return exp.column(made[text], quoted=True)
            if text in texts and not isinstance(node, exp.Alias):
                return exp.column(texts[text], quoted=True)
            return node

        return put

    def _finish(self, keys: Sequence[tuple[str, Any]]) -> str:
        """SQL over the table ``cells``, with keys ``k0``… and aggregates ``a0``…."""
        exp = self.exp
        tree = self.tree.copy()
        put = self._in_cells(keys)
        for name in ("from_", "joins", "where", "group", "with_", "laterals"):
            tree.set(name, None)
        aliases = {one.alias for one in tree.expressions if isinstance(one, exp.Alias)}
        for one in list(tree.find_all(exp.Query)):
            if one is not tree:
                raise CompositionError("a subquery beside the aggregates", where=self.where, remedy="ask it in a statement of its own")  # fmt: skip
        having = tree.args.get("having")
        tree.set("having", None)
        tree = tree.transform(put, copy=False)
        if having is not None:
            tree.set("where", exp.Where(this=having.this.transform(put, copy=False)))
        for column in tree.find_all(exp.Column):
            if column.table and column.name not in aliases:
                raise CompositionError(f"{column.sql('duckdb')} stands beside aggregates and is no group key", where=self.where, remedy="add it to GROUP BY")  # fmt: skip
        tree.set("from_", exp.From(this=exp.to_table("cells")))
        return str(tree.sql("duckdb"))


@functools.lru_cache(maxsize=1024)
def _known_type(key: Any, origin: tuple[str, str], text: str) -> str:
    """The type of an expression; a statement that differs from an earlier one in WHERE alone asks DuckDB nothing."""
    with shadow(Catalog({table: dict(columns) for table, *columns in key})) as connection:
        return str(connection.execute(f"DESCRIBE {origin[0]}SELECT {text} AS c {origin[1]}").fetchall()[0][1])


def require_points(scopes: Scopes) -> None:
    """Refuse to show which rows are near to a point whose coordinates are private: circles would find them.

    Raises:
        PolicyError: they are private.
    """
    for scope in scopes.all:
        for node in scope.find_all(scopes.exp.Expression):
            if distance_of(node) is None:
                continue
            for table, column in sorted(scopes.bases(node, scope)):
                if scopes.column_policy((table, column)).level == "private":
                    raise PolicyError(f"shows rows by their distance, and {table}.{column} is private", where="policies of the sites", remedy="ask for COUNT(*), or let the sites make the coordinates protected")  # fmt: skip


def _from_text(tree: Any) -> str:
    """What FROM reads, without the word."""
    parts = [tree.args["from_"].sql("duckdb"), *(one.sql("duckdb") for one in tree.args.get("joins") or ())]
    return str(parts[0] + "".join(part if part.startswith(",") else f" {part}" for part in parts[1:]))


def try_casts(exp: Any, tree: Any) -> None:
    """Make a value that a cast does not fit NULL: an error would tell of its row."""
    for cast in list(tree.find_all(exp.Cast)):
        if type(cast) is exp.Cast:
            cast.replace(exp.TryCast(this=cast.this, to=cast.args["to"], safe=True))


def guard_node(exp: Any, node: Any) -> Any:
    """An expression, NULL where it fails: which statements fail would tell of single rows."""
    plain = isinstance(node, exp.Column | exp.Literal) or node.find(exp.Query) is not None
    return node if plain else exp.Anonymous(this="TRY", expressions=[node.copy()])


def split_conditions(exp: Any, where: Any) -> list[Any]:
    """The conditions that WHERE joins by AND."""
    if where is None:
        return []
    return list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
