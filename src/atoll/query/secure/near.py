"""Joins by distance, and of the k nearest rows, of two tables whose points other sites may not read: which pairs are near the parties find on shares, and the coordinator computes the rest from their columns.

Sites round coordinates to the precision that the policy declares, or to ``2^-26`` of the extent, if that is coarser. The parties open too many pairs rather than too few (`atoll.secure.tables.near_pairs`), with the columns that the statement needs of both
tables; the coordinator, which may read these columns, runs the statement over them, its groups and aggregates too. So the answer is that of exact distances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from atoll.core.errors import CompositionError, PolicyError
from atoll.secure.tables import LARGEST_RADIUS, SLACK

from ..column_codes import ColumnCode, code_of
from ..databases.silo import quote
from ..plan import Key, QueryPlanner, split_conditions
from ..policy import QueryPolicy
from ..spatial import distance_of
from ..statement import Catalog, SqlStatement, shadow
from .operators import LeafRows, NearPairs, PlanLeaf, SecurePlan, SharedColumn, Stored

__all__ = ["is_divided_pair", "make_near_plan", "refuse_near", "require_released", "write_over_cells"]

_WHOLE = ColumnCode("whole", "BIGINT")
_FINEST = 26
"""Bits of an extent in units."""
_MOST = 1 << 50
"""Units: doubles divide so far coordinates to an eighth of one."""
_ENTRY = Stored(_WHOLE, name="entry")


def make_near_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan | None:
    """The plan of a join of near rows that lie at different sites; ``None`` for another statement.

    Raises:
        PolicyError: a column's level or release does not allow it.
        CompositionError: the parties cannot answer it.
    """
    if all(distance_of(node) is None for node in statement.tree.walk()):
        return None
    try:
        planner = _NearPlanner(statement, catalog, policy)
    except CompositionError:  # no plain SELECT
        return None
    return planner.near_plan()


def refuse_near(plan: SecurePlan, where: str) -> SecurePlan:
    """A plan that is no join of near rows, for strategies that move or cut its operators.

    Raises:
        CompositionError: it is one.
    """
    if isinstance(plan.root, NearPairs):
        raise CompositionError("a join of rows that are near to each other", where=where, remedy="ask for the strategy hufu by its name: then a helper is the third beside two sites, between organisations with helper: true")  # fmt: skip
    return plan


def is_divided_pair(planner: QueryPlanner) -> bool:
    """Whether a statement asks for rows of two tables that sites cannot join by themselves."""
    exp, tree = planner.exp, planner.tree
    sources = planner.root.selected_sources
    if len(planner.scopes.all) > 1 or len(sources) != 2 or not all(isinstance(one, exp.Table) for _, one in sources.values()):  # fmt: skip
        return False
    if any(one.find(exp.Window) for one in tree.expressions):
        return False
    if any(one.side or (one.kind or "").upper() not in ("", "INNER", "CROSS") or one.args.get("method") for one in tree.args["joins"]):  # fmt: skip
        return False
    if planner.nearest is not None:
        return True
    try:
        planner.scopes.require_local()
    except CompositionError:
        return True
    return False


def require_released(planner: QueryPlanner) -> None:
    """Refuse aggregates of columns that sites show and release in none.

    Raises:
        PolicyError: names the column.
    """
    for node in planner.tree.find_all(planner.exp.AggFunc):
        planner.scopes.require_released(planner.scopes.bases(node, planner.root), node.sql("duckdb"))


def write_over_cells(exp: Any, tree: Any, names: Mapping[tuple[str, str], str], left: Sequence[Any] = ()) -> str:
    """A statement over the table ``cells``, in place, which has a row for each pair.

    Args:
        exp: sqlglot's expressions.
        tree: the statement.
        names: alias and column, in lower case -> the column of the cells.
        left: the conditions that are left to check; the cells meet the others.
    """
    for name in ("joins", "with_", "where"):
        tree.set(name, None)
    for one in left:
        tree.where(one, copy=False)
    tree.set("from_", exp.From(this=exp.to_table("cells")))

    def put(node: Any) -> Any:
        if isinstance(node, exp.Column) and (node.table.lower(), node.name.lower()) in names:
            return exp.column(names[node.table.lower(), node.name.lower()], quoted=True)
        return node

    return str(tree.transform(put).sql("duckdb"))


class _NearPlanner(QueryPlanner):
    where = "smcql"
    answers_nearest: ClassVar[bool] = True

    def near_plan(self) -> SecurePlan | None:
        """All of it."""
        found = self._distance() if is_divided_pair(self) else None
        if found is None:
            return None
        require_released(self)
        if self.strict:
            raise PolicyError(f"min_count is {self.policy.min_count}, and under shares no site can write down which of its rows stand behind an answer", where=self.where, remedy="let sites set min_count: 1; or declare one table replicated, and ask how many units of the other are near: COUNT(DISTINCT taxi)")  # fmt: skip
        self.scopes.require_readable()
        distance, radius = found
        told = distance_of(distance)
        reach = (1.0, 1.0) if told is None else (told.extent, told.precision)
        unit = max(reach[1], reach[0] / 2**_FINEST)
        steps = max(1, math.ceil(math.log2(reach[0] / unit)))
        units = None if radius is None or radius / unit > LARGEST_RADIUS / 2 else max(0, math.ceil(radius / unit)) + 2
        shared = self._shared()
        places = distance.meta["between"]
        leaves = tuple(self._leaf(number, alias, shared[alias], next(one for one in places if one[0].lower() == alias.lower()), unit) for number, alias in enumerate(shared))  # fmt: skip
        k = 0 if self.nearest is None else self.nearest.k
        one, other = shared
        what = f"the {k} rows of {other} that are nearest to each row of {one}: {steps} comparisons of all pairs" if k else f"pairs of {one} and {other} within {radius:g}: all pairs are compared"  # fmt: skip
        shows = f"how many pairs of {one} and {other} are near, up to the next power of two, those included that the coordinator leaves out"
        root = NearPairs(LeafRows(0), LeafRows(1), radius=units, k=k, steps=steps if k else 0, entry=_ENTRY, slack=unit * SLACK, what=what, shows=shows)  # fmt: skip
        columns = [(alias, name, kind) for alias, own in shared.items() for name, kind in own.items()]
        keys = (*(Key(f"{quote(alias)}.{quote(name)}", kind) for alias, name, kind in columns), Key("entry", "BIGINT"))
        stored = [Stored(one.code, frozenset(), one.name) for leaf in leaves for one in leaf.columns[2:]]
        self.sources = self._sources()
        finish = self._finish_pairs({(alias.lower(), name): f"k{k}" for k, (alias, name, _) in enumerate(columns)}, f"k{len(columns)}")  # fmt: skip
        return SecurePlan(self.statement, self.catalog, self.policy, leaves, root, keys, (*stored, _ENTRY), (), grouped=False, ordered=False, limit=None, sources=self.sources, common="", finish=finish)  # fmt: skip

    def _conditions(self) -> list[Any]:
        """The conditions of WHERE and ON, one by one."""
        exp, tree = self.exp, self.tree
        found = list(split_conditions(exp, tree.args.get("where")))
        for join in tree.args.get("joins") or ():
            on = join.args.get("on")
            if on is not None:
                found += on.flatten() if isinstance(on, exp.And) else [on]
        return found

    def _distance(self) -> tuple[Any, float | None] | None:
        """The distance that pairs are asked for by, with the radius; no radius for the k nearest."""
        exp = self.exp
        if self.nearest is not None:
            first = self.tree.args["qualify"].this.this.args["order"].expressions[0].this
            return (first, None) if "between" in first.meta else None
        for one in self._conditions():
            node = one.unnest()
            if isinstance(node, exp.LTE | exp.LT) and "between" in node.left.meta and node.right.find(exp.Column, exp.Query) is None:  # fmt: skip
                aliases = {place[0] for place in node.left.meta["between"]}
                if len(aliases) == 2 and "" not in aliases:
                    with shadow(self.catalog) as connection:
                        (radius,) = connection.execute(f"SELECT CAST({node.right.sql('duckdb')} AS DOUBLE)").fetchone()
                    return node.left, -1.0 if radius is None or math.isnan(radius) else float(radius)
        return None

    def _alone(self, alias: str) -> list[Any]:
        """Conditions on one table, which its sites check."""
        return [one for one in self._conditions() if {c.table for c in one.find_all(self.exp.Column)} == {alias}]

    def _shared(self) -> dict[str, dict[str, str]]:
        """Alias -> the columns that the coordinator needs of its rows, and their types; the table that is looked in comes last.

        Raises:
            PolicyError: it may not read one.
        """
        exp, tree = self.exp, self.tree
        aliases = list(self.root.selected_sources)
        inner = "" if self.nearest is None else self.nearest.table
        aliases.sort(key=lambda alias: alias.lower() == inner)
        read = [*tree.expressions, *(tree.args[name] for name in ("distinct", "group", "having", "qualify", "order") if tree.args.get(name))]  # fmt: skip
        read += [one for one in self._conditions() if len({c.table for c in one.find_all(exp.Column)}) != 1]
        found: dict[str, dict[str, str]] = {alias: {} for alias in aliases}
        for node in read:
            for column in node.find_all(exp.Column):
                if column.table not in found:  # the alias of a column
                    continue
                source: Any = self.root.selected_sources[column.table][1]
                table, name = source.name.lower(), column.name.lower()
                policy = self.scopes.column_policy((table, name))
                if policy.level == "private":
                    raise PolicyError(f"shows values of {table}.{name} to the coordinator, and it is private", where="policies of the sites", remedy="let the sites make the columns of both points protected, or ask for counts within areas")  # fmt: skip
                types = {one.lower(): kind for one, kind in self.catalog.tables[table].items()}
                found[column.table][name] = types[name]
        return found

    def _leaf(self, number: int, alias: str, columns: dict[str, str], place: Sequence[str], unit: float) -> PlanLeaf:
        renamed = self._renamed()
        items = [renamed.args["from_"].this, *(join.this for join in renamed.args.get("joins") or ())]
        item = next(one for one in items if one.alias_or_name == alias).sql("duckdb")
        made = []
        for at, text in enumerate(place[1:]):
            scaled = f"(({text}) / {unit!r})"
            whole = f"CASE WHEN abs({scaled}) < {_MOST} THEN CAST(round({scaled}) AS BIGINT) ELSE CAST(error('a coordinate is too large for the precision of its point') AS BIGINT) END"
            made.append(SharedColumn(f"n{number}.{at}", whole, _WHOLE, number=True))
        for name, kind in columns.items():
            text = f"{quote(alias)}.{quote(name)}"
            code = code_of(kind, text)
            made.append(SharedColumn(f"w{number}.{len(made)}", code.local(text), code))
        where = [f"isfinite({text})" for text in place[1:]] + [one.sql("duckdb") for one in self._alone(alias)]
        body = f"FROM {item} WHERE {' AND '.join(f'({one})' for one in where)}"
        source = self.root.selected_sources[alias][1]
        return PlanLeaf(alias, tuple(made), body, f"SELECT count(*) FROM {item}", not self.scopes.is_source_divided(source))  # fmt: skip

    def _finish_pairs(self, names: dict[tuple[str, str], str], entry: str) -> str:
        """The statement over the table ``cells``: one row for each pair."""
        exp = self.exp
        tree = self.tree.copy()
        kept = [one.copy() for one in self._conditions() if len({c.table for c in one.find_all(exp.Column)}) != 1]
        if self.nearest is not None:
            tree.args["qualify"].this.this.set("partition_by", [exp.column(entry, quoted=True)])
        return write_over_cells(exp, tree, names, kept)
