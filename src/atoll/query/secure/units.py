"""What ``min_count`` asks of an answer under shares: how many units stand behind each group, and which aggregates would single one out.

A row of a table is a unit, or what the policy names (``unit: patient``). Beside the rows of each table that the outermost FROM names, sites share the unit; the parties count the different ones in
each group, and open the groups of at least ``min_count`` units of every table. A unit at two sites counts once. Rules of one statement are those of masked sums (`atoll.query.plan`):

* an aggregate is NULL if fewer units stand behind its FILTER or a condition of a CASE in it, or if 1 to ``min_count - 1`` are what two of these differ by;
* of a sum, rows without a value are taken off as if each were a unit;
* the least and the largest value are those of one row, and are not shown.

Each row of a subquery that groups stands for one of its units (`represent_units`), so that whoever groups twice cannot count a unit twice. What is written around the aggregates is computed from opened
groups; only a HAVING with a subquery is not, and it sees NULL in place of a withheld aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from atoll.core.errors import CompositionError, PolicyError

from ..aggregates import (
    conditions_inside,
    covariates_of,
    measure_degree,
    merges_rows,
    merges_values,
    read_aggregate,
    require_degree,
    require_same_values,
    single_out,
)
from ..column_codes import ColumnCode
from ..databases.silo import quote
from ..plan import ROW, CellSets, Covariate, Released, guard_node
from .limits.selections import find_choice, find_key_choice
from .names import LeafDraft, NamePlanner, SelectNames, refuse
from .operators import (
    Compared,
    Computed,
    Connected,
    Filtered,
    Fixed,
    GroupColumn,
    GroupedRows,
    MissingValue,
    Negated,
    Operator,
    RowCondition,
    SameTruth,
    Stored,
    TruthValue,
    Value,
)

__all__ = ["UnitPlanner"]

_WHOLE = ColumnCode("whole", "BIGINT")
_TRUTH = ColumnCode("whole", "BOOLEAN")
_MOST_CONDITIONS = 16
Counts = dict[Any, GroupColumn]


class UnitPlanner(NamePlanner):
    """Units behind rows and groups."""

    # ------------------------------------------------------------------ the units of rows

    def needs_units(self, source: Any) -> bool:
        """Whether a source of FROM is planned under shares so that its units are seen, although sites could make its rows."""
        if not self.strict or isinstance(source, self.exp.Table):
            return False
        return bool(self.scopes.tables(source)) and (self.scopes.is_divided(source) or self.everywhere)

    def unit_columns(self, names: SelectNames) -> list[Stored]:
        """The units of the rows of a SELECT, a column for each table that is divided; of tables alone that every site has, for each of them."""
        if names.represented is not None:
            return names.represented
        found: list[Stored] = []
        for alias, (_, source) in names.scope.selected_sources.items():
            held = names.sources.get(alias)
            if alias in names.units:
                found += names.units[alias]
                self.apart.difference_update(one.name for one in names.units[alias])
            elif isinstance(held, LeafDraft) and isinstance(source, self.exp.Table) and (self.everywhere or self.scopes.is_source_divided(source)):  # fmt: skip
                found.append(self._share_unit(held, alias, source.name.lower()))
                if len(names.scope.selected_sources) == 1 and not self.policy.table(source.name).unit:
                    self.apart.add(found[-1].name)
        return found

    def released(self, alias: str, table: str) -> Released:
        """A table of FROM whose units must not show."""
        unit = self.policy.table(table).unit
        if unit:
            self.unit_bases.append((table, unit))
        return Released(table, alias, unit, False)

    def _share_unit(self, leaf: LeafDraft, alias: str, table: str) -> Stored:
        unit, row = self.policy.table(table).unit, f"{quote(alias)}.{quote(ROW)}"
        if not unit:
            return self.share(leaf, row, _WHOLE, (), row=True)
        # Missing units are one; a row that an outer join lacks has none. Nobody opens the digest: it is short, and alike at all sites.
        text = f"coalesce(CAST({quote(alias)}.{quote(unit)} AS VARCHAR), '')"
        return self.share(leaf, f"CASE WHEN {row} IS NOT NULL THEN CAST(md5_number_lower({text}) >> 1 AS BIGINT) END", _WHOLE, ())  # fmt: skip

    def represent_units(self, units: Sequence[Stored]) -> list[GroupColumn]:
        """One unit of each group: of several groups there are at least as many units as different ones of these."""
        return [GroupColumn(Stored(_WHOLE, frozenset(), self.new_name("u")), "min", unit) for unit in units]

    # ------------------------------------------------------------------ how many there are

    def count_units(self, units: Sequence[Stored], counts: Counts, condition: RowCondition | None = None) -> list[Stored]:  # fmt: skip
        """Columns of a group that count different units, of each table, in the rows for which a condition is true."""
        found = []
        for unit in units:
            key = ("units", unit.name, condition)
            if key not in counts:
                made = Stored(_WHOLE, frozenset(), self.new_name("g"), True)
                counts[key] = GroupColumn(made, "count", unit, condition, unit.name not in self.apart)
            found.append(counts[key].column)
        return found

    def _count_rows(self, counts: Counts, condition: RowCondition) -> Stored:
        key = ("rows", condition)
        if key not in counts:
            counts[key] = GroupColumn(Stored(_WHOLE, frozenset(), self.new_name("g"), True), "count", None, condition)
        return counts[key].column

    def enough(self, columns: Sequence[Value]) -> RowCondition:
        """Whether numbers of units are all at least ``min_count``."""
        least = Fixed(_WHOLE, value=self.policy.min_count - 1)
        return Connected(True, tuple(Compared(False, least, one) for one in columns)) if columns else SameTruth(True)

    def _none_or_enough(self, columns: Sequence[Stored]) -> list[RowCondition]:
        return [Connected(False, (Compared(True, one, Fixed(_WHOLE, value=0)), self.enough([one]))) for one in columns]

    def keep_enough(self, operator: GroupedRows, counted: Sequence[Stored]) -> Operator:
        """The groups of enough units."""
        return Filtered(operator, self.enough(counted), what=f"leave out groups of fewer than {self.policy.min_count} units")  # fmt: skip

    def count_withheld(self, operator: Operator, counted: Sequence[Stored], represented: Sequence[Stored], copies: Stored | None) -> Operator:  # fmt: skip
        """One row with the number of groups, or of rows, that are left out, if enough units stand behind them together: else a statement would tell whether somebody is there."""
        few = Filtered(operator, Negated(self.enough(counted)))
        number = GroupColumn(Stored(_WHOLE, frozenset(), "withheld", True), "sum" if copies else "count", copies)
        together: Counts = {}
        found = self.count_units(represented, together)
        one = GroupedRows(few, (), (number, *together.values()))
        return Filtered(one, self.enough(found))

    # ------------------------------------------------------------------ aggregates that could single out a unit

    def one_row(self, inner: Any) -> PolicyError:
        """The error of an aggregate that is the value of one row, where few must not show."""
        return PolicyError(f"{inner.sql('duckdb')} is the value of one row, and min_count is {self.policy.min_count}", where="smcql", remedy="ask for AVG, STDDEV, or counts of ranges")  # fmt: skip

    def guard_aggregates(self, nodes: Sequence[Any], names: SelectNames, units: Sequence[Stored], counts: Counts) -> list[RowCondition | None]:  # fmt: skip
        """When each aggregate of a group may be shown; ``None``: whenever the group is.

        Raises:
            PolicyError: it is the value of one row.
            CompositionError: it could single out a row.
        """
        exp, found = self.exp, list[RowCondition | None]()
        known: list[RowCondition] = []
        for node in nodes:
            inner, where = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
            name, args = self._arguments(inner)
            distinct = isinstance(inner.this, exp.Distinct)
            if distinct:
                self.require_distinct(inner, args[0], names)
            if name in ("min", "max"):
                raise self.one_row(inner)
            inside = [] if where is None else [where]
            for arg in args:
                if name != "count" and not distinct:
                    self._require_polynomial(arg, names, inner)
                extras = conditions_inside(exp, arg, "count" if name.startswith("count") else name, self._guard(names))
                inside += [exp.and_(where.copy(), one) if where is not None else one for one in extras]
            factors = [self.condition(one, names) for one in self._factors(name, args, where, names)]
            parts = [self.enough(self.count_units(units, counts, one)) for one in factors]
            for one in inside:
                condition = self.condition(one, names)
                parts += [self.enough(self.count_units(units, counts, condition)), *self._rests(condition, known, units, counts)]  # fmt: skip
            if args and not name.startswith("count"):
                parts.append(self._has_values(args, names, inner, where, units, counts))
            found.append(Connected(True, tuple(dict.fromkeys(parts))) if parts else None)
        return found

    def _guard(self, names: SelectNames) -> Callable[[Any], Any]:
        """What makes a part that a site computes NULL where it fails."""
        return lambda node: node if self.leaf_of(node, names) is None else guard_node(self.exp, node)

    def _arguments(self, inner: Any) -> tuple[str, list[Any]]:
        """Name and arguments of an aggregate, of ``SUM(DISTINCT x)`` too."""
        name, args = read_aggregate(self.exp, inner)
        return name, list(inner.this.expressions) if isinstance(inner.this, self.exp.Distinct) else args

    def _covariates(self, name: str, args: Sequence[Any], names: SelectNames) -> Iterator[tuple[Any, Any, Any]]:
        """What columns of single units are multiplied with; see `covariates_of`."""
        for column, value, factor in covariates_of(self.exp, name, args):
            bases = self.scopes.bases(column, names.scope)
            if any(self.scopes.column_policy(base).level != "public" for base in bases):
                yield column, value, factor

    def _factors(self, name: str, args: Sequence[Any], where: Any, names: SelectNames) -> list[Any]:
        """Conditions that what a column is multiplied with is not 0."""
        exp, found = self.exp, dict[str, Any]()
        for _, value, factor in self._covariates(name, args, names):
            parts = [exp.NEQ(this=exp.paren(factor.copy()), expression=exp.Literal.number(0)), exp.Not(this=exp.Is(this=exp.paren(value.copy()), expression=exp.Null()))]  # fmt: skip
            made = exp.and_(*(() if where is None else (where.copy(),)), *parts)
            found[made.sql("duckdb")] = made
        return list(found.values())

    def divide_leaves(self, names: SelectNames, keys: Sequence[Any], nodes: Sequence[Any]) -> None:
        """Have the sites that answer record by which groups, conditions and factors the answer divides their rows, as far as one leaf has the columns.

        Args:
            names: of the outermost SELECT.
            keys: of its groups.
            nodes: its aggregates.
        """
        exp = self.exp
        for leaf in {id(one): one for one in names.sources.values() if isinstance(one, LeafDraft)}.values():
            if not leaf.released:
                continue
            here = [key for key in keys if self.leaf_of(key, names) is leaf]
            texts: list[str] = []
            values: list[str] = []
            covariates: list[Covariate] = []
            for place, node in enumerate(nodes):
                inner, where = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
                name, args = self._arguments(inner)
                extras = [one for arg in args for one in conditions_inside(exp, arg, "count" if name.startswith("count") else name, self._guard(names))]  # fmt: skip
                both = [one if where is None else exp.and_(where.copy(), one) for one in extras]
                inside = [one for one in ([] if where is None else [where]) + both if self.leaf_of(one, names) is leaf]
                texts += [self.guarded(one) for one in inside]
                if where is not None and self.leaf_of(where, names) is not leaf:
                    continue
                if not name.startswith("count") and args and all(self.leaf_of(arg, names) is leaf for arg in args):
                    there = [f"({self.guarded(arg)}) IS NOT NULL" for arg in args]
                    values.append(" AND ".join([*([] if where is None else [f"({self.guarded(where)})"]), *there]))
                for column, value, factor in self._covariates(name, args, names):
                    if all(self.leaf_of(one, names) is leaf for one in (value, factor)):
                        at = 0 if where is None else 1 + texts.index(self.guarded(where))
                        covariates.append(Covariate(place, at, column.table, column.name.lower(), f"CASE WHEN ({self.guarded(value)}) IS NOT NULL THEN {self.guarded(factor)} END"))  # fmt: skip
            leaf.cells = CellSets(tuple(f"CAST({self.guarded(key)} AS VARCHAR)" for key in here), tuple(texts), tuple(dict.fromkeys(covariates)), tuple(dict.fromkeys(values)))  # fmt: skip

    def require_seen_cells(self, names: SelectNames, keys: Sequence[Any], nodes: Sequence[Any]) -> None:
        """Refuse groups, conditions and factors of the answer that no site can write down, as far as policies say.

        Args:
            names: of the outermost SELECT.
            keys: of its groups.
            nodes: its aggregates.

        Raises:
            CompositionError: names the part.
        """
        for key in keys:
            if self.leaf_of(key, names) is None:
                self.require_seen(key, names)
        for node in nodes:
            inner, where = (node.this, node.expression.this) if isinstance(node, self.exp.Filter) else (node, None)
            name, args = self._arguments(inner)
            self._require_seen_products(name, args, names, inner)
            self._require_seen_columns(name, args, names, inner)
            inside = [one for arg in args for one in conditions_inside(self.exp, arg, "count" if name.startswith("count") else name)]  # fmt: skip
            for one in [*inside, *([] if where is None else [where])]:
                if self.leaf_of(one, names) is None and not _is_presence(self.exp, one):
                    self.require_seen(one, names)

    def _require_seen_products(self, name: str, args: Sequence[Any], names: SelectNames, inner: Any) -> None:
        """Refuse sums of products that no site counts as equations, as far as policies say: of s, s * k and s * k * k they are equations for the s of single rows, and a site knows its own columns alone."""
        for column, value, factor in self._covariates(name, args, names):
            weights = [one for one in factor.find_all(self.exp.Column) if not self.scopes.is_condition(one, factor)]
            if weights and self.unrecorded != "anything":
                read = [column, *weights]
                derived = next((one for one in read if isinstance(names.sources.get(one.table), dict)), None)
                if derived is not None:
                    raise self.unseen(f"{inner.sql('duckdb')} multiplies {derived.sql('duckdb')} of a subquery", "multiply columns of one table, in a SELECT without subqueries")  # fmt: skip
                if len({id(names.sources.get(one.table)) for one in read}) > 1:
                    raise self.unseen(f"{inner.sql('duckdb')} multiplies columns of {' and '.join(sorted({one.table for one in read}))}", "multiply columns of one table")  # fmt: skip
            if self.leaf_of(value, names) is None or self.leaf_of(factor, names) is None:
                self.require_sites(f"the parties compute {inner.sql('duckdb')}")
        squared = name not in ("sum", "avg") or any(one.find(self.exp.Mul) for one in args)
        if squared and not name.startswith("count") and any(self.leaf_of(one, names) is None for one in args):
            # Of one's two values, the square of the sum has more than the squares.
            self.require_sites(f"the parties multiply values of {inner.sql('duckdb')}")

    def _require_seen_columns(self, name: str, args: Sequence[Any], names: SelectNames, inner: Any) -> None:
        """Refuse to add up or count columns of subqueries that choose rows, as far as policies say."""
        for arg in args if self.unrecorded != "anything" else ():
            found = find_choice(self.scopes, arg, names.scope, self.unrecorded)
            if found is not None:
                raise self.unseen(f"{inner.sql('duckdb')} chooses rows by {found.sql('duckdb')} of a subquery", "add up sums of columns as they are and counts; MIN, MAX and DISTINCT for each unit of the table, or each value of a column with key or at_most in the policy", _needed(find_choice(self.scopes, arg, names.scope, "joins")))  # fmt: skip
            if name.startswith("count") and self.leaf_of(arg, names) is None:
                self.require_sites(f"the parties count who has {arg.sql('duckdb')}")

    def require_seen_rows(self, node: Any, *, also: bool = False) -> None:
        """Refuse columns of a set operation that choose rows by a constant; with ``also``, constants among its rows too."""
        for select in self.scopes.list_selects(node):
            for one in select.expressions:
                self.require_seen(one.unalias(), SelectNames(select, self.scope(select), None), also=also)

    def _rests(self, condition: RowCondition, known: list[RowCondition], units: Sequence[Stored], counts: Counts) -> Iterator[RowCondition]:  # fmt: skip
        """That a set of rows differs from the whole group, and from those of other conditions, by no unit or by enough."""
        yield from self._none_or_enough(self.count_units(units, counts, _is_not_true(condition)))
        if condition not in known:
            known.append(condition)
        if len(known) > _MOST_CONDITIONS:
            raise CompositionError(f"more than {_MOST_CONDITIONS} conditions in one statement", where="smcql", remedy="divide it into several statements")  # fmt: skip
        for other in known[: known.index(condition)]:
            for one, two in ((condition, other), (other, condition)):
                yield from self._none_or_enough(self.count_units(units, counts, Connected(True, (one, _is_not_true(two)))))  # fmt: skip

    def _has_values(self, args: Sequence[Any], names: SelectNames, inner: Any, where: Any, units: Sequence[Stored], counts: Counts) -> RowCondition:  # fmt: skip
        """That enough units have a value: those that there are, less one for each row without a value, as if each were the only one of its unit."""
        condition = None if where is None else self.condition(where, names)
        gaps: RowCondition = Connected(False, tuple(MissingValue(self.number(arg, names, adds=inner.sql("duckdb"))) for arg in args))  # fmt: skip
        missing = self._count_rows(counts, gaps if condition is None else Connected(True, (condition, gaps)))
        left = [Computed(_WHOLE, frozenset(), "-", left=one, right=missing) for one in self.count_units(units, counts, condition)]  # fmt: skip
        return self.enough(left)

    def _require_polynomial(self, arg: Any, names: SelectNames, inner: Any) -> None:
        """Refuse sums of what could be large for one row alone; columns of subqueries are looked into.

        Raises:
            CompositionError: names the part.
        """
        scopes = self.scopes
        if scopes.is_public(arg, names.scope):
            return

        def refused(part: Any) -> CompositionError:
            return single_out(part, inner, "smcql", self.policy.min_count)

        def of_node(scope: Any) -> Any:
            def measure(node: Any) -> int | None:
                exp = self.exp
                if isinstance(node, exp.Column):
                    return self._degree_of_column(node, scope, refused, of_node)
                if isinstance(node, exp.Filter | exp.Window):
                    raise refused(node)
                if isinstance(node, exp.AggFunc):
                    return 1 if node.this is None or isinstance(node.this, exp.Star) else measure_degree(exp, node.this, refused, measure)  # fmt: skip
                return None

            return measure

        require_degree(measure_degree(self.exp, arg, refused, of_node(names.scope)), inner, "smcql")

    def require_distinct(self, inner: Any, arg: Any, names: SelectNames) -> None:
        """Refuse an aggregate of DISTINCT over what could tell the value of one row.

        Raises:
            CompositionError: names the part.
        """

        def refused(part: Any) -> CompositionError:
            return merges_values(part, inner, "smcql", self.policy.min_count)

        if not isinstance(inner, self.exp.Count) and not self.scopes.is_public(arg, names.scope):
            raise refused(arg)  # all rows less one of each value: what two rows have alike
        self._require_same_values(arg, names.scope, refused, gaps=False)

    def require_keys(self, nodes: Sequence[Any], scope: Any) -> None:
        """Refuse keys of a subquery's groups, or of its different rows, that choose which of them are equal, or could tell the value of one row by how many there are.

        Raises:
            CompositionError: names the part.
        """
        for node in nodes if self.strict and self.unrecorded != "anything" else ():
            found = None if self.is_constant(node) else find_key_choice(self.scopes, node, scope, self.unrecorded)
            if found is not None:
                raise self.unseen(f"{node.sql('duckdb')} chooses rows by {found.sql('duckdb')}", "group the subquery by columns as they are, or by parts of a date", _needed(find_key_choice(self.scopes, node, scope, "joins")))  # fmt: skip
            self._require_same_values(node, scope, lambda part, key=node: merges_rows(part, key, "smcql", self.policy.min_count), gaps=True)  # type: ignore[misc]  # fmt: skip

    def _require_same_values(self, arg: Any, scope: Any, refused: Callable[[Any], CompositionError], *, gaps: bool) -> None:  # fmt: skip
        """Refuse to tell values apart of what is more than a column; columns of subqueries are looked into."""
        exp, scopes = self.exp, self.scopes
        if self.scopes.is_public(arg, scope):
            return

        def of_scope(scope: Any) -> Any:
            def look(column: Any) -> None:
                source, _ = scopes.source_of(column, scopes.scope_of(column) or scope)
                if not isinstance(source, exp.Table):
                    for one in scopes.projections_of(source, column.name) or [None]:
                        if one is None:
                            raise refused(column)
                        if not self.scopes.is_public(one, source):
                            require_same_values(exp, one, refused, of_scope(source), gaps=gaps)

            return look

        require_same_values(exp, arg, refused, of_scope(scope), gaps=gaps)

    def _degree_of_column(self, column: Any, scope: Any, refused: Any, of_node: Any) -> int:
        source, _ = self.scopes.source_of(column, self.scopes.scope_of(column) or scope)
        if isinstance(source, self.exp.Table):
            return 1
        found = self.scopes.projections_of(source, column.name)
        if not found or any(True for one in found for _ in _conditions_below(self.exp, one)):
            raise refused(column)
        degrees = [measure_degree(self.exp, one, refused, of_node(source)) for one in found]
        # Who has a factor that is not 0 is counted in the outermost SELECT alone: of `pay * icu` the sum may be the pay of one.
        if max(degrees) > 1:
            part = found[degrees.index(max(degrees))].sql("duckdb")
            raise refuse(f"{column.sql('duckdb')} is the product {part} in a subquery, which could single out a row, and min_count is {self.policy.min_count}", "multiply columns of one table, in a SELECT without subqueries")  # fmt: skip
        return max(degrees)

    def condition(self, node: Any, names: SelectNames, *, positive: bool = False) -> RowCondition:
        """A condition on a row."""
        raise NotImplementedError

    def number(self, node: Any, names: SelectNames, *, adds: str = "") -> Value:
        """An expression as a number that parties compute with."""
        raise NotImplementedError


def _conditions_below(exp: Any, node: Any) -> Iterator[Any]:
    """Conditions inside a column of a subquery, where the outermost SELECT cannot count who fulfils them."""
    arg = node.this if isinstance(node, exp.AggFunc) and node.this is not None else node
    for one in conditions_inside(exp, arg, ""):
        if not _is_presence(exp, one):  # it is counted outside
            yield one


def _needed(choice: Any) -> str:
    """What policies have to say, by what would be refused with ``joins``."""
    return "joins" if choice is None else "anything"


def _is_presence(exp: Any, condition: Any) -> bool:
    """Whether a condition is that a value is there; what chooses between values inside has conditions of its own."""
    return isinstance(condition, exp.Not) and isinstance(condition.this, exp.Is)


def _is_not_true(condition: RowCondition) -> RowCondition:
    return Connected(False, (Negated(condition), MissingValue(TruthValue(_TRUTH, condition=condition))))
