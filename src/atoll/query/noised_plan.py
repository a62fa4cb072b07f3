"""How a statement is answered with noise: what each unit may contribute to, the noise on each number, and what estimates and their errors follow from the noised numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from atoll.core.errors import CompositionError, PolicyError
from atoll.statistics.disclosure import rate_of

from .aggregates import QueryAggregate, read_aggregate
from .plan import Key, QueryPlanner, Released
from .policy import QueryPolicy
from .sampling import Estimate, noise_spread, sample_epsilon
from .statement import Catalog, SqlStatement, shadow
from .strategies.sums import finish_cells

__all__ = [
    "NoisedNumber",
    "NoisedPlan",
    "SharedNoise",
    "estimate_aggregate",
    "finish_estimates",
    "make_noised_plan",
    "make_sampled_plan",
    "noise_rates",
    "noise_spreads",
    "shared_noise",
    "show_number",
    "shown_places",
]

_FINE = 20
"""Bits of a double's fraction of the largest value of its range."""


# ---------------------------------------------------------------- the plan


@dataclass(frozen=True)
class NoisedNumber:
    """A number that is added up over the rows of a group.

    Attributes:
        local: local SQL of a row's whole number.
        most: its largest magnitude.
        step: what 1 stands for.
        low: the smallest value.
        high: the largest one.
        distinct: local SQL of a value instead, as text: different ones count. Empty for a number.
        unit: whether the values are those of the unit's own column.
    """

    local: str
    most: int
    step: Fraction = Fraction(1)
    low: float = 0.0
    high: float = 1.0
    distinct: str = ""
    unit: bool = False


@dataclass(frozen=True)
class NoisedPlan:
    """How a statement is answered with noise. See `atoll.query.plan.QueryPlan` for what is not named here.

    Attributes:
        numbers: what is added up for each group.
        aggregates: the aggregates; ``addends`` are places of numbers: of the count, then of the sum.
        released: the table whose units are hidden.
        hidden_keys: whether groups are listed by a noised number of units.
    """

    statement: SqlStatement
    catalog: Catalog
    policy: QueryPolicy
    keys: tuple[Key, ...]
    numbers: tuple[NoisedNumber, ...]
    aggregates: tuple[QueryAggregate, ...]
    released: Released
    hidden_keys: bool
    sources: dict[str, tuple[str, ...]] = field(compare=False)
    common: str = ""
    body: str = ""
    key_body: str = ""
    finish: str = ""

    @property
    def bounds(self) -> tuple[int, int]:
        """Groups of a unit, and rows of it in a group, that count."""
        privacy = self.policy.privacy
        return (privacy.groups, privacy.rows) if self.released.unit and privacy is not None else (1, 1)

    def parts(self, sampler: str = "") -> int:
        """Into how many parts epsilon is divided: the numbers, and noised numbers of units that list groups, or that a sampler needs."""
        return len(self.numbers) + self.hidden_keys + (sampler == "stratified")

    def require_sampler(self, sampler: str) -> None:
        """Refuse a sampler whose estimates would be biased, or whose error nobody knows.

        Raises:
            CompositionError: names the aggregate.
        """
        if sampler == "stratified" and not self.keys:
            raise CompositionError("there are no groups, and stratified samples have a rate for each", where="saqe", remedy="use sampler=uniform")  # fmt: skip
        for one in self.aggregates:
            number = self.numbers[one.addends[0]]
            if sampler == "distinct" and (not number.distinct or len({n.distinct for n in self.numbers}) > 1):
                raise CompositionError(f"{one.text} over a sample of values", where="saqe", remedy="use sampler=distinct for COUNT(DISTINCT …) of one column alone, and uniform for others")  # fmt: skip
            if sampler in ("uniform", "stratified") and number.distinct and not number.unit:
                raise CompositionError(f"{one.text} over a sample of rows: a value is in it more often, the more rows it has", where="saqe", remedy="use sampler=distinct")  # fmt: skip


def make_noised_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy, *, counting: bool = False) -> NoisedPlan:  # fmt: skip
    """Plan a statement of aggregates with noise.

    Args:
        statement: the statement.
        catalog: the tables.
        policy: what all sites allow.
        counting: whether to count the values of sums of both signs.

    Raises:
        PolicyError: no policy allows it.
        CompositionError: what a unit contributes cannot be bounded.
    """
    if policy.privacy is None:
        raise PolicyError("not all sites have a budget for answers with noise", where="policies of the sites", remedy="let each site declare policy: {privacy: {people: {anna: {epsilon: 4, delta: 1.0e-6}}}}")  # fmt: skip
    # A minimum count above 1 makes the planner guard expressions: an error would tell of a row.
    named = QueryPolicy(max(2, policy.min_count), policy.seconds, policy.memory, {t: policy.table(t) for t in catalog.tables}, policy.privacy)  # fmt: skip
    planner = _NoisedPlanner(statement, catalog, named)
    planner.counting = counting
    return planner.noised_plan()


def make_sampled_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> NoisedPlan:
    """The plan of an answer from a sample: it counts the values of a sum of both signs too, which bounds the sum's error."""
    return make_noised_plan(statement, catalog, policy, counting=True)


class _NoisedPlanner(QueryPlanner):
    where = "saqe"
    counting = False

    def noised_plan(self) -> NoisedPlan:
        """All of it."""
        self._require_aggregates()
        self.scopes.require_readable()
        self.scopes.require_local()
        self.one = released = self._require_one_table()
        keys = self._keys()
        nodes = list(dict.fromkeys(self._aggregate_nodes()))
        self.numbers: list[NoisedNumber] = []
        with shadow(self.catalog) as connection:
            self.connection = connection
            self.sources = self._sources()
            self.body, _ = self._body(keys)
            key_types = self._types([text for text, _ in keys])
            for node in nodes:
                self._add_noised(node)
        hidden = any(self._level(node) != "public" for _, node in keys)
        made = tuple(Key(text, kind, self._guarded(node)) for (text, node), kind in zip(keys, key_types, strict=True))
        return NoisedPlan(
            self.statement, self.catalog, self.policy, made, tuple(self.numbers), tuple(a for _, a in self.aggregates), released, hidden, self.sources,
            self.with_text, self.body, "" if hidden else self._key_body(keys), self._finish(keys),
        )  # fmt: skip

    def _require_one_table(self) -> Released:
        """The table of divided rows; every unit's rows at one site, and no condition on other units' rows."""
        if not self.scopes.is_divided(self.root):
            raise CompositionError("all sites have all of its rows", where=self.where, remedy="ask without epsilon")
        if any(scope is not self.root and self.scopes.is_divided(scope) for scope in self.scopes.all):
            raise CompositionError("a subquery reads rows of other units, so that one unit could move many rows", where=self.where, remedy="write it without a subquery, or over replicated tables")  # fmt: skip
        found = self._released()
        if len(found) != 1:
            raise CompositionError(f"it joins {' and '.join(one.table for one in found)}, whose units differ", where=self.where, remedy="read one divided table, with replicated ones beside it")  # fmt: skip
        if not found[0].local:
            raise CompositionError(f"a unit of {found[0].table} may have rows at several sites, each of which bounds its own", where=self.where, remedy=f"let the policy declare {found[0].unit}: {{join: local}}")  # fmt: skip
        return found[0]

    def _require_key(self, node: Any) -> None:
        """Nothing: groups of columns that are not public are listed by noised numbers of units."""

    def _add_noised(self, node: Any) -> None:
        exp = self.exp
        inner, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, None)
        name, args = read_aggregate(exp, inner)
        text = inner.sql("duckdb")
        if name not in ("count", "sum", "avg", "count_distinct"):
            raise CompositionError(f"{text} with noise", where=self.where, remedy="use COUNT, COUNT(DISTINCT …), SUM or AVG")  # fmt: skip
        if any(one is not None and one.find(exp.Query) is not None for one in (inner, condition)):
            raise CompositionError(f"a subquery inside {text}", where=self.where, remedy="put it into WHERE")
        texts = [self._guarded(arg) for arg in args]
        there = [f"({self._guarded(condition)})"] if condition is not None else []
        there += [f"({one}) IS NOT NULL" for one in texts]
        when = " AND ".join(there)
        if name == "count_distinct":
            self.aggregates.append((node, QueryAggregate("count", text, "BIGINT", (self._distinct(args[0], texts[0], when, text),))))  # fmt: skip
            return
        places = [self._number(NoisedNumber(f"CASE WHEN {when} THEN 1 ELSE 0 END" if when else "1", 1))] if name != "sum" else []  # fmt: skip
        (kind,) = self._types([text])
        if name != "count":
            summed = self._sum(texts[0], args[0], when, text)
            if name == "sum" and self.counting and self.numbers[summed].low < 0 < self.numbers[summed].high:
                places.append(self._number(NoisedNumber(f"CASE WHEN {when} THEN 1 ELSE 0 END", 1)))
            places.append(summed)
        self.aggregates.append((node, QueryAggregate(name, text, kind, tuple(places))))

    def _distinct(self, arg: Any, text: str, when: str, what: str) -> int:
        """The place of a number of different values, each of which lies at one site."""
        if not self.scopes.is_local(arg, self.root):
            raise CompositionError(f"{what}: one value may lie at two sites, which then both count it", where=self.where, remedy="count a column that the policy declares with join: local")  # fmt: skip
        unit = bool(self.one.unit) and self.scopes.bases(arg, self.root) == {(self.one.table, self.one.unit)}
        value = f"CASE WHEN {when} THEN CAST({text} AS VARCHAR) END"
        return self._number(NoisedNumber(value, 1, distinct=text, unit=unit and isinstance(arg, self.exp.Column)))

    def _sum(self, text: str, arg: Any, when: str, what: str) -> int:
        self.scopes.require_released(self.scopes.bases(arg, self.root), what, ("aggregate", "noise"))
        low, high = self._range(arg, what)
        (kind,) = self._types([f"sum({text})"])
        digits = int(kind.rpartition(",")[2].rstrip(")")) if kind.startswith("DECIMAL") else 0
        largest = max(abs(low), abs(high), 1e-300)
        step = Fraction(largest) / (1 << _FINE) if kind == "DOUBLE" else Fraction(1, 10**digits)
        most = math.ceil(Fraction(largest) / step)
        if most >= 1 << 40:
            raise CompositionError(f"{what}: its range reaches {largest:g}, in steps of {float(step):g}", where=self.where, remedy="cast to DOUBLE, or declare a narrower range")  # fmt: skip
        value = f"greatest({low!r}, least({high!r}, CAST({text} AS DOUBLE)))"
        whole = f"greatest({-most}, least({most}, CAST(round({value} / {float(step)!r}) AS BIGINT)))"
        return self._number(NoisedNumber(f"CASE WHEN {when} AND isfinite(CAST({text} AS DOUBLE)) THEN {whole} ELSE 0 END", most, step, low, high))  # fmt: skip

    def _number(self, made: NoisedNumber) -> int:
        if made not in self.numbers:
            self.numbers.append(made)
        return self.numbers.index(made)

    def _range(self, node: Any, what: str) -> tuple[float, float]:
        """The least and the largest value of an expression, by interval arithmetic."""
        exp = self.exp
        if isinstance(node, exp.Column):
            ends = {(one.low, one.high) for one in map(self.scopes.column_policy, self.scopes.bases(node, self.root))}
            low, high = ends.pop() if len(ends) == 1 else (None, None)
            if low is None or high is None:
                raise CompositionError(f"{what}: nothing bounds {node.name}", where=self.where, remedy=f"let each site declare its range: {node.name}: {{range: [0, 100]}}")  # fmt: skip
            return low, high
        if isinstance(node, exp.Literal) and not node.is_string:
            return float(node.this), float(node.this)
        if isinstance(node, exp.Paren | exp.Cast):
            return self._range(node.this, what)
        if isinstance(node, exp.Neg):
            low, high = self._range(node.this, what)
            return -high, -low
        if isinstance(node, exp.Add | exp.Sub | exp.Mul):
            (a, b), (c, d) = self._range(node.left, what), self._range(node.right, what)
            if isinstance(node, exp.Mul):
                corners = [a * c, a * d, b * c, b * d]
                return min(corners), max(corners)
            return (a + c, b + d) if isinstance(node, exp.Add) else (a - d, b - c)
        raise CompositionError(f"{what}: the range of {node.sql('duckdb')} is not known", where=self.where, remedy="use + - * of columns with a range, and numbers")  # fmt: skip


def noise_rates(plan: NoisedPlan, part: float, rate: float, sampler: str) -> list[Fraction]:
    """Epsilon over sensitivity of the noise on each number of a group.

    A unit is in ``groups`` groups at most, and drawn in each by itself: each group may cost a ``groups``-th. What a group's numbers cost together is amplified, since they share the sample.

    Args:
        plan: the plan.
        part: epsilon of one number.
        rate: of the group's sample.
        sampler: of values, noise is that of all units.
    """
    groups, rows = plan.bounds
    numbers = len(plan.numbers)
    each = part / groups if sampler == "distinct" else sample_epsilon(part * numbers / groups, rate) / numbers
    return [rate_of(each, 1) / (rows * one.most) for one in plan.numbers]


_FINEST, _WIDEST = 2**8, 2**12
"""Scales of noise in parts: that of a sum is coarse, since its law is a table; no scale may be larger."""


@dataclass(frozen=True)
class SharedNoise:
    """The noise on one number that sites add in parts.

    Attributes:
        coarse: the site's number is rounded to a multiple of it.
        scale: of the noise, in these multiples.
    """

    coarse: int
    scale: float


def shared_noise(plan: NoisedPlan, part: float, rate: float, sampler: str) -> list[SharedNoise]:
    """The noise in parts on each number of a group; see `noise_rates`. A unit moves a number that is rounded to multiples of c by ``ceil(moves / c)`` of them.

    Raises:
        CompositionError: epsilon is so small that the noise has no table.
    """
    found = []
    for one, law in zip(plan.numbers, noise_rates(plan, part, rate, sampler), strict=True):
        moves, coarse = plan.bounds[1] * one.most, 1
        each = law * moves
        while -(-moves // coarse) / each > _FINEST and coarse < moves:
            coarse *= 2
        scale = -(-moves // coarse) / each
        if scale > _WIDEST:
            raise CompositionError(f"epsilon of one number is {float(each):.2g}, too small for noise in parts", where="saqe", remedy="use a larger epsilon, or noise=own")  # fmt: skip
        found.append(SharedNoise(coarse, math.nextafter(float(scale), math.inf)))
    return found


def noise_spreads(plan: NoisedPlan, part: float, rate: float, sampler: str, sites: int, *, shared: bool) -> list[tuple[float, float]]:  # fmt: skip
    """Variance and fourth cumulant of the noise on each number of a group, of all sites together; see `noise_rates`."""
    if not shared:
        return [noise_spread(law, sites) for law in noise_rates(plan, part, rate, sampler)]
    found = []
    for one in shared_noise(plan, part, rate, sampler):
        variance, fourth = noise_spread(1 / Fraction(one.scale), sites / (sites - 1))
        rounded = sites * (one.coarse**2 - 1) / 12
        found.append((one.coarse**2 * variance + rounded, one.coarse**4 * fourth))
    return found


# ---------------------------------------------------------------- estimates


def show_number(plan: NoisedPlan, one: QueryAggregate, row: Any, rate: float) -> str | None:
    """One aggregate of a group, as text: of an average, the noised sum over the noised count."""
    scale = Fraction(rate)
    last = plan.numbers[one.addends[-1]]
    total = int(row[one.addends[-1]]) * last.step / scale
    if one.name == "count":
        return one.finish([round(total)])
    if one.name == "avg":
        return one.finish([max(Fraction(1), int(row[one.addends[0]]) / scale), total])
    return one.finish([1, total if one.type == "DOUBLE" or one.type.startswith("DECIMAL") else Fraction(round(total))])


def estimate_aggregate(plan: NoisedPlan, one: QueryAggregate, row: Any, rate: float, spreads: Sequence[tuple[float, float]]) -> Estimate:  # fmt: skip
    """One aggregate of a group, with its error.

    Args:
        plan: the plan.
        one: the aggregate.
        row: the numbers of the group, as the sum of all sites has them.
        rate: of the group's sample.
        spreads: of the noise; see `noise_spreads`.
    """
    rest, last = (1 - rate) / rate, plan.numbers[one.addends[-1]]
    (spread, tail), (spread_n, tail_n) = spreads[one.addends[-1]], spreads[one.addends[0]]
    rows, step = plan.bounds[1], float(last.step)
    n, total = float(row[one.addends[0]]) / rate, float(row[one.addends[-1]]) * step / rate
    if one.name == "count":
        each = 1 if last.distinct else rows
        return Estimate(total, max(total, 1.0) * each * rest + spread / rate**2, tail / rate**4, low=0.0, slope=each * rest)  # fmt: skip
    low, high = last.low, last.high
    if one.name == "sum":
        squares = max(0.0, high * total if low >= 0 else low * total if high <= 0 else (low + high) * total - low * high * n)  # fmt: skip
        squares = max(squares, max(low * low, high * high))  # as if one unit were there, since noise may hide it
        slope = high if low >= 0 else low if high <= 0 else low + high
        return Estimate(total, rows * squares * rest + spread * step**2 / rate**2, tail * step**4 / rate**4, slope=rows * slope * rest)  # fmt: skip
    if n <= 3 * math.sqrt(spread_n) / rate:  # the count may be noise alone
        return Estimate(min(max(total / max(1.0, n), low), high), math.inf, low=low, high=high)
    mean = min(max(total / n, low), high)
    squares = rows * n * (mean - low) * (high - mean) * rest
    variance = (squares + (spread * step**2 + mean**2 * spread_n) / rate**2) / n**2
    return Estimate(total / n, variance, (tail * step**4 + mean**4 * tail_n) / rate**4 / n**4, low, high)


def shown_places(plan: NoisedPlan) -> tuple[list[Any], list[int | None]]:
    """The columns of the result, as the statement writes them, and of each the place of its aggregate; -1 for a group key, ``None`` for what is computed from several."""
    import sqlglot

    shown: list[Any] = sqlglot.parse_one(plan.finish, dialect="duckdb").expressions
    found: list[int | None] = []
    for one in shown:
        node = one.unalias()
        names = {column.name for column in node.find_all(sqlglot.exp.Column)}
        alone = isinstance(node, sqlglot.exp.Column) and node.name[0] == "a"
        found.append(int(node.name[1:]) if alone else None if any(name[0] == "a" for name in names) else -1)
    return shown, found


def finish_estimates(plan: NoisedPlan, cells: Sequence[tuple[Any, ...]], table: Sequence[Sequence[Estimate]], confidence: float) -> tuple[list[tuple[Any, ...]], dict[str, list[list[float]]]]:  # fmt: skip
    """The rows of the result, and of each column that is one aggregate the interval in each row."""
    import sqlglot

    _, places = shown_places(plan)
    tree: Any = sqlglot.parse_one(plan.finish, dialect="duckdb")
    wanted = [] if tree.args.get("distinct") else [(k, place) for k, place in enumerate(places) if place is not None and place >= 0]  # fmt: skip
    first = len(plan.aggregates)
    ends = [QueryAggregate("count", "", "DOUBLE", ()) for _ in range(2 * len(wanted))]
    for k in range(len(ends)):
        tree = tree.select(sqlglot.exp.column(f"a{first + k}", quoted=True), append=True)
    bounded = [(*cell, *(repr(end) for _, place in wanted for end in row[place].interval(confidence))) for cell, row in zip(cells, table, strict=True)]  # fmt: skip
    found = finish_cells(replace(plan, aggregates=(*plan.aggregates, *ends), finish=str(tree.sql("duckdb"))), bounded)
    width = len(places)
    intervals = {plan.statement.columns[k]: [[row[width + 2 * j], row[width + 2 * j + 1]] for row in found] for j, (k, _) in enumerate(wanted)}  # fmt: skip
    return [row[:width] for row in found], intervals
