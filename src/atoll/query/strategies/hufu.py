"""``hufu``: spatial statements over the points of many owners, with as little secret work as they allow (after Hu-Fu, Tong et al. 2022).

Four nouns. A **plan** (`SpatialPlan`) is a statement's rows as each site makes them, and the number k of nearest ones, if it asks for these. A **circle** (`atoll.secure.owners.OwnerCircle`) is what owners
compute together. A **search** (`atoll.query.radius_search.RadiusSearch`) is the interval in which the k-th distance lies, and halves it. A **part** is what a site gives of the union of all rows: noise, except in the sum of all parts.

A statement walks so::

    local SQL at each site ──► rows with their distances, at most k of the nearest
    own k-th distances ── is one below 2^c times the precision? (any) ──► the circle that holds k rows
    counts within half the radius ── is their sum at least k? (reach) ──► the search, until it is as narrow as the precision
    rows within the radius ── scatter ──► a part at each site ── added up ──► the coordinator: the first k

Range queries have no search, counts and sums no rows: sites add up theirs, once they know together that enough units stand behind each (`atoll.query.local.find_few`). A join with rows of other sites (the *relation*, whose columns are public) begins with each site telling them to the others; the search then
has an entry for each of its rows, and all entries are compared at once.

An approximate search (``kNN(…, error)``) chooses among rings, each ``1 + error`` times as wide as the one before (`atoll.query.radius_search.choose_rows`). It takes fewer comparisons, and the coordinator gets exactly k rows.

If other sites may not read the relation, the join is one of `atoll.query.secure.near`: three parties compare all pairs on shares, with the same search, whose radii nobody sees.

The rows within the last radius may be more than k, if they lie within one precision of each other or are as far away as others: the coordinator leaves out the last ones. If sites together have fewer than k rows, or k of them
only beyond the extent, each gives its k nearest. So the answer is exact whatever the policy says of extent and precision.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError
from atoll.core.exposure import Exposure
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task
from atoll.core.sealing import sealed_nbytes
from atoll.secure.owners import COMPARISONS, FIELD, OwnerCircle, join_scattered, margin_of, slots_of

from ..databases.silo import quote, quote_text
from ..events import write_event
from ..indexes.narrowing import narrow_tables
from ..local import (
    StatementCells,
    digest_request,
    find_few,
    message_of,
    names_of,
    plan_of,
    prefix_of,
    record_units,
    silo_of,
)
from ..owner_draws import OWNERS, CirclePlan, count_by_draws, make_circle_plan
from ..plan import Key, QueryPlan, QueryPlanner, make_plan, split_conditions
from ..policy import QueryPolicy
from ..radius_search import RadiusSearch, choose_rows
from ..secure.near import is_divided_pair, make_near_plan, require_released, write_over_cells
from ..secure.operators import SecurePlan
from ..spatial import MOST_NEIGHBOURS, DistanceRange, distance_of
from ..statement import Catalog, shadow
from .smcql import Smcql
from .strategy import PlanStep, QueryAnswer, Strategy, promise_min_count, promise_one_row, read_strategy
from .sums import finish_cells, read_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..statement import SqlStatement

__all__ = ["Hufu", "SpatialPlan", "make_spatial_plan", "share_counts", "share_rows"]

BOUNDS = ("own", "extent")
_ANY = DistanceRange(1.0, 1.0)
_RELATION = "@relation"
_ENTRY = "@entry"
_TABLE_ROUNDS = 10
"""Messages that follow one another until rows stand in a table, where each meets others two times at most."""
_MOST_ROWS = 10_000
"""Most rows of a relation that sites tell each other."""


# ---------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Relation:
    """The rows that a join asks for the neighbours of, which sites tell each other.

    Attributes:
        alias: its table's.
        columns: local SQL of its columns as text, their names and types.
        text: local SQL of its rows.
        lone: whether every site has all of them, so that one tells them.
    """

    alias: str
    columns: tuple[tuple[str, str], ...]
    text: str
    lone: bool

    def source(self, rows: Sequence[Sequence[str | None]]) -> str:
        """Local SQL of the rows of all sites: a WITH of this name."""
        names = [name for name, _ in self.columns]
        shown = [f"CAST({quote(name)} AS {kind}) AS {quote(name)}" for name, kind in self.columns]
        made = [
            f"({number}, {', '.join('NULL' if cell is None else quote_text(cell) for cell in row)})"
            for number, row in enumerate(rows)
        ]
        values = ", ".join(made) or f"(NULL, {', '.join(['NULL'] * len(names))})"
        inner = f"(VALUES {values}) AS v({', '.join([quote(_ENTRY), *map(quote, names)])})"
        where = "" if made else " WHERE false"
        return f"{quote(_RELATION)} AS (SELECT CAST({quote(_ENTRY)} AS BIGINT) AS {quote(_ENTRY)}, {', '.join(shown)} FROM {inner}{where})"  # fmt: skip


@dataclass(frozen=True)
class SpatialPlan:
    """How one spatial statement is answered.

    Attributes:
        statement: the statement.
        catalog: the tables.
        policy: what all sites allow.
        counts: the plan of the counts that sites add up, if it asks for these alone.
        keys: what is opened of each row.
        k: how many of the nearest rows are asked for; 0 for all rows.
        distance: local SQL of the distance.
        reach: what the policy says of it.
        relation: rows that sites tell each other first.
        lone: whether every site has all rows, so that one gives them.
        sources: tables -> columns that are read.
        common: the statement's own WITH.
        body: local SQL after the list of columns: FROM and WHERE.
        tail: what keeps the k nearest.
        finish: SQL of the result, over the table ``cells``.
        error: by which part of the distance rows may be farther than the k nearest.
        pairs: whether the rows are pairs, of which the coordinator computes groups and aggregates.
    """

    statement: SqlStatement
    catalog: Catalog
    policy: QueryPolicy
    counts: QueryPlan | None = None
    keys: tuple[Key, ...] = ()
    k: int = 0
    distance: str = ""
    reach: DistanceRange = _ANY
    relation: Relation | None = None
    lone: bool = False
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    common: str = ""
    body: str = ""
    tail: str = ""
    finish: str = ""
    error: float = 0.0
    pairs: bool = False

    aggregates: ClassVar[tuple[Any, ...]] = ()

    def rows_text(self, more: int = 0) -> str:
        """Local SQL of the rows: distance, entry, and what is opened, as text.

        Args:
            more: how many rows beyond the k nearest.
        """
        tail = f"{self.tail.removesuffix(str(self.k))}{self.k + more}" if self.k else ""
        entry = f"{quote(self.relation.alias)}.{quote(_ENTRY)}" if self.relation else "0"
        inner = [f"{self.distance or '0'} AS d", f"{entry} AS e", *(f"{key.local} AS c{k}" for k, key in enumerate(self.keys))]  # fmt: skip
        outer = ["CAST(d AS DOUBLE)", "e", *(f"CAST(c{k} AS VARCHAR)" for k in range(len(self.keys)))]
        # Text is made of the rows that are left alone: of all rows it would take five times as long as the rest.
        return f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} {self.body}{tail})"

    @property
    def rings(self) -> NDArray[np.float64]:
        """The radii that an approximate search chooses among: the precision times powers of ``1 + error``, up to the extent."""
        count = math.ceil(math.log(self.reach.extent / self.reach.precision) / math.log1p(self.error))
        found: NDArray[np.float64] = np.minimum(
            self.reach.precision * (1 + self.error) ** np.arange(count + 1), self.reach.extent
        )
        return found

    @property
    def places(self) -> int:
        """Radii at which a site says whether it has k rows by itself."""
        return len(self.rings) if self.error else 1 + math.ceil(math.log2(self.reach.extent / self.reach.precision))

    @property
    def most_comparisons(self) -> int:
        """Comparisons of a search that begins at the extent."""
        if not self.k:
            return 0
        return math.ceil(math.log2(len(self.rings) if self.error else self.reach.extent / self.reach.precision))


def make_spatial_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SpatialPlan:
    """Plan a spatial statement.

    Raises:
        PolicyError: a column's level or release does not allow it.
        CompositionError: owners cannot answer it by counts within circles and the union of rows.
    """
    named = QueryPolicy(policy.min_count, policy.seconds, policy.memory, {t: policy.table(t) for t in catalog.tables})
    return _SpatialPlanner(statement, catalog, named).spatial_plan()


class _SpatialPlanner(QueryPlanner):
    where = "hufu"
    relation = ""
    answers_nearest: ClassVar[bool] = True

    def _require_key(self, node: Any) -> None:
        if self._level(node) == "private":
            column = next(f"{t}.{c}" for t, c in sorted(self.scopes.bases(node, self.root)) if self.scopes.column_policy((t, c)).level == "private")  # fmt: skip
            raise PolicyError(f"shows values of {column}, which is private", where="policies of the sites", remedy="show public or protected columns, or counts")  # fmt: skip

    def _renamed(self) -> Any:
        tree = super()._renamed()
        for table in tree.find_all(self.exp.Table) if self.relation else ():
            if table.alias_or_name == self.relation:
                table.this.replace(self.exp.to_identifier(_RELATION, quoted=True))
        return tree

    # ------------------------------------------------------------------ the plan

    def spatial_plan(self) -> SpatialPlan:
        """All of it."""
        if all(distance_of(node) is None for node in self.tree.walk()):
            raise CompositionError("it asks for no distance between points", where="hufu", remedy="use DWithin, kNN, Distance or DistanceSphere")  # fmt: skip
        tree = self.tree
        qualify = tree.args.pop("qualify", None)
        grouped = any(True for _ in self._aggregate_nodes()) or tree.args.get("group") or tree.args.get("distinct")
        tree.set("qualify", qualify)
        if grouped:
            return self._plan_pairs() if is_divided_pair(self) else self._plan_counts()
        if self.strict:
            raise PolicyError(f"min_count is {self.policy.min_count}, and it asks for rows", where="hufu", remedy="ask for COUNT, SUM or AVG, or let sites set min_count: 1")  # fmt: skip
        self.scopes.require_readable()
        self._require_points()
        order = self._order()
        k, distance = self._limit(order)
        for node in order:
            self._require_key(node)
        keys = list(dict.fromkeys((node.sql("duckdb"), node) for node in [*self._shown(), *order]))
        self._choose_relation()
        with shadow(self.catalog) as connection:
            self.connection = connection
            self.sources = self._sources()
            self.body, _ = self._body([])
            types = self._types([text for text, _ in keys])
            made = [Key(text, kind, text) for (text, _), kind in zip(keys, types, strict=True)]
            relation = self._make_relation(self._relation) if self._relation else None
        self.relation = self._relation
        body, _ = self._body([])
        if self.nearest is not None and self.relation:
            entry = self.exp.column(_ENTRY, table=self.relation, quoted=True)
            self.tree.args["qualify"].this.this.set("partition_by", [entry])
            keys.append((entry.sql("duckdb"), entry))
            made.append(Key(keys[-1][0], "BIGINT", keys[-1][0]))
        divided = any(self.scopes.is_source_divided(source) for alias, (_, source) in self.root.selected_sources.items() if alias != self.relation)  # fmt: skip
        return SpatialPlan(
            self.statement, self.catalog, self.policy, None, tuple(made), k, "" if distance is None else distance.sql("duckdb"),
            _ANY if distance is None else distance_of(distance) or _ANY, relation, not divided, self.sources, self.with_text, body, self._tail(order, k), self._finish(keys), 0.0 if self.nearest is None else self.nearest.error,
        )  # fmt: skip

    def _plan_counts(self) -> SpatialPlan:
        found = make_plan(self.statement, self.catalog, self.policy)
        if found.keys:
            raise CompositionError("it asks for groups", where="hufu", remedy="ask for one area a statement, or use the strategy sums")  # fmt: skip
        return SpatialPlan(self.statement, self.catalog, self.policy, found, lone=found.lone, sources=found.sources, common=found.common, body=found.body, finish=found.finish)  # fmt: skip

    def _plan_pairs(self) -> SpatialPlan:
        """Groups and aggregates of pairs of rows that lie at different sites: the coordinator computes them from the columns that they read of each pair.

        Raises:
            PolicyError: it may not read one, or no table may be told to the other sites.
        """
        if self.strict:
            raise PolicyError(f"min_count is {self.policy.min_count}, and the coordinator reads each pair of rows that lie at different sites", where="hufu", remedy="let sites set min_count: 1; or declare one table replicated, and ask how many units of the other are near: COUNT(DISTINCT taxi)")  # fmt: skip
        require_released(self)
        self.scopes.require_readable()
        self._require_points()
        self._choose_relation()
        written = [*self.tree.expressions, *(self.tree.args[name] for name in ("distinct", "group", "having", "order") if self.tree.args.get(name))]  # fmt: skip
        columns = [column for node in written for column in node.find_all(self.exp.Column) if column.table in self.root.selected_sources]  # fmt: skip
        for column in columns:
            self._require_key(column)
        read = {(one.table.lower(), one.name.lower()): one.sql("duckdb") for one in columns}  # no alias of a column
        texts = list(read.values()) or ["1"]
        with shadow(self.catalog) as connection:
            self.connection = connection
            self.sources = self._sources()
            self._body([])
            keys = tuple(Key(text, kind, text) for text, kind in zip(texts, self._types(texts), strict=True))
            relation = self._make_relation(self._relation)
        self.relation = self._relation
        body, _ = self._body([])
        divided = any(self.scopes.is_source_divided(source) for alias, (_, source) in self.root.selected_sources.items() if alias != self.relation)  # fmt: skip
        finish = write_over_cells(self.exp, self.tree.copy(), {name: f"k{k}" for k, name in enumerate(read)})
        return SpatialPlan(self.statement, self.catalog, self.policy, keys=keys, relation=relation, lone=not divided, sources=self.sources, common=self.with_text, body=body, finish=finish, pairs=True)  # fmt: skip

    def _shown(self) -> list[Any]:
        found = []
        for one in self.tree.expressions:
            node = one.unalias()
            self._require_key(node)
            if node.find(self.exp.Query) is not None:
                raise CompositionError("a subquery beside columns", where="hufu", remedy="show columns and expressions of them")  # fmt: skip
            found.append(node)
        return found

    def _order(self) -> list[Any]:
        """What the rows are ordered by, aliases and numbers of columns resolved; of kNN the order of its window."""
        exp, tree = self.exp, self.tree
        order = tree.args.get("order")
        if self.nearest is not None:
            return [one.this for one in tree.args["qualify"].this.this.args["order"].expressions]
        found = []
        for one in () if order is None else order.expressions:
            node = one.this
            if isinstance(node, exp.Column) and not node.table:
                node = next((two.unalias() for two in tree.expressions if two.alias == node.name), node)
            if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
                node = tree.expressions[int(node.name) - 1].unalias()
            found.append(node)
        return found

    def _limit(self, order: Sequence[Any]) -> tuple[int, Any]:
        """How many of the nearest rows are asked for, and their distance; 0 if the statement asks for all."""
        tree = self.tree
        if self.nearest is not None:
            return self.nearest.k, order[0]
        limit, offset = tree.args.get("limit"), tree.args.get("offset")
        if limit is None or not order or distance_of(order[0]) is None or tree.args["order"].expressions[0].args.get("desc"):  # fmt: skip
            return 0, None
        names = [one.expression.name for one in (limit, offset) if one is not None]
        if not all(name.isdigit() for name in names) or not 0 < sum(map(int, names)) <= MOST_NEIGHBOURS:
            raise CompositionError(f"LIMIT {' OFFSET '.join(names)} of the nearest rows", where="hufu", remedy=f"use whole numbers, together from 1 to {MOST_NEIGHBOURS:,}")  # fmt: skip
        return sum(map(int, names)), order[0]

    def _tail(self, order: Sequence[Any], k: int) -> str:
        """What keeps the k nearest rows at a site, in the order by which the coordinator keeps the first of all."""
        if not k:
            return ""
        if self.nearest is not None and self.relation:
            return f" {self.tree.args['qualify'].sql('duckdb')}"
        parts, written = [], self.tree.args.get("order")
        if self.nearest is not None:  # one point has one window: its first rows without a sort of all
            written = self.tree.args["qualify"].this.this.args["order"]
        for node, one in zip(order, written.expressions, strict=True):
            resolved = one.copy()
            resolved.set("this", node.copy())
            parts.append(resolved.sql("duckdb"))
        return f" ORDER BY {', '.join(parts)} LIMIT {k}"

    # ------------------------------------------------------------------ joins

    def _choose_relation(self) -> None:
        """The table whose rows sites tell each other, if they cannot join by themselves."""
        self._relation = "" if self.nearest is None else self.nearest.of
        if not self._relation:
            try:
                self.scopes.require_local()
            except CompositionError:
                names = [alias for alias, (_, source) in self.root.selected_sources.items() if isinstance(source, self.exp.Table)]  # fmt: skip
                if len(names) != 2 or len(self.root.selected_sources) != 2 or len(self.scopes.all) > 1:
                    raise
                hidden = {alias: self._hidden_column(alias) for alias in names}
                self._relation = next((alias for alias in names if not hidden[alias]), names[0])
        column = self._hidden_column(self._relation) if self._relation else ""
        if column:
            raise PolicyError(f"other sites would read {column}, which is not public, to look for what is near to it", where="policies of the sites", remedy="let the sites make the columns of one of the two tables public, or the table replicated")  # fmt: skip
        for join in self.tree.args.get("joins") or () if self._relation else ():
            if join.side or (join.kind or "").upper() not in ("", "INNER", "CROSS") or join.args.get("method"):
                raise CompositionError(f"a {join.side or join.kind or join.args.get('method')} JOIN of rows that lie at different sites", where="hufu", remedy="use an inner JOIN")  # fmt: skip

    def _columns_of(self, alias: str) -> set[tuple[str, str]]:
        return {base for column, base in self.scopes.every_base() if column.table == alias}

    def _hidden_column(self, alias: str) -> str:
        """A column of a divided table that the statement reads and other sites may not."""
        _, source = self.root.selected_sources[alias]
        if not self.scopes.is_source_divided(source):
            return ""
        return next((f"{t}.{c}" for t, c in sorted(self._columns_of(alias)) if self.scopes.column_policy((t, c)).level != "public"), "")  # fmt: skip

    def _make_relation(self, alias: str) -> Relation:
        exp = self.exp
        source: Any = self.root.selected_sources[alias][1]
        table = source.name.lower()
        types = {name.lower(): kind for name, kind in self.catalog.tables[table].items()}
        columns = tuple((column, types[column]) for _, column in sorted(self._columns_of(alias)))
        renamed = self._renamed()
        items = [renamed.args["from_"].this, *(join.this for join in renamed.args.get("joins") or ())]
        item = next(one for one in items if one.alias_or_name == alias)
        mine = [part.sql("duckdb") for part in split_conditions(exp, self.tree.args.get("where")) if {c.table for c in part.find_all(exp.Column)} == {alias}]  # fmt: skip
        where = f" WHERE {' AND '.join(f'({part})' for part in mine)}" if mine else ""
        shown = ", ".join(f"CAST({quote(alias)}.{quote(name)} AS VARCHAR)" for name, _ in columns)
        return Relation(alias, columns, f"SELECT {shown} FROM {item.sql('duckdb')}{where}", not self.scopes.is_source_divided(source))  # fmt: skip


# ---------------------------------------------------------------- at a site


def _pack(rows: Any) -> Any:
    return np.frombuffer(json.dumps(rows, ensure_ascii=False).encode(), np.uint8)


def _unpack(told: Any) -> Any:
    return json.loads(bytes(np.asarray(told, np.uint8)))


async def _gather_relation(island: Any, peers: Peers, relation: Relation, plan: SpatialPlan, request: Any, parties: Sequence[str]) -> tuple[list[Any], int]:  # fmt: skip
    """The rows of the relation of all sites, in the order of the sites; and the bytes in which this site told its own."""
    silo = silo_of(island.data)
    names = names_of(silo, plan)
    mine: list[Any] = []
    if not relation.lone or island.name == request["message"]["first"]:
        (found,) = silo.run_all([f"{prefix_of(silo, plan, names)} {relation.text}"], list(names.values()))
        mine = [list(row) for row in found]
    packed = _pack(mine)
    await peers.broadcast(packed)
    told = {other: _unpack(one) for other, one in (await peers.gather()).items()}
    rows = [row for name in parties for row in (mine if name == island.name else told[name])]
    if len(rows) > _MOST_ROWS:
        raise DataError(f"{len(rows):,} rows to look near to, and sites tell each other {_MOST_ROWS:,}", where="hufu", remedy="ask for fewer by conditions on them")  # fmt: skip
    if any(not isinstance(row, list) or len(row) != len(relation.columns) or not all(cell is None or isinstance(cell, str) for cell in row) for row in rows):  # fmt: skip
        raise DataError("rows of another shape", where="hufu", remedy="a site departs from the protocol: ask again without it")  # fmt: skip
    return rows, len(packed)


@task(discloses=promise_one_row)
async def share_rows(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Find the radius with the other sites; return this site's part of the rows within it."""
    silo, parties = silo_of(island.data), [str(name) for name in parties]
    plan = plan_of(silo, request["message"], make_spatial_plan, "hufu")
    asks: Any = read_strategy(request["message"])
    more = asks.rows_beyond(plan)
    circle = await OwnerCircle.begin(island.secret, peers, parties, me, digest_request(request, parties))
    relation, told = ([], 0) if plan.relation is None else await _gather_relation(island, peers, plan.relation, plan, request, parties)  # fmt: skip
    speaks = not plan.lone or island.name == request["message"]["first"]
    found: list[tuple[Any, ...]] = []
    if speaks:
        names = names_of(silo, plan)

        def write(run: Any, kept: dict[Any, Any]) -> list[str]:
            if plan.relation is not None:
                return [f"{prefix_of(silo, plan, names)}, {plan.relation.source(relation)} {plan.rows_text(more)}"]
            narrowed = narrow_tables(silo.policy, plan, names, run, kept, plan.k + more if plan.k else 0)
            return [f"{prefix_of(silo, plan, names, narrowed)} {plan.rows_text(more)}"]

        (found,) = silo.run_all(write, list(names.values()))
    comparisons = 0
    if plan.error:
        found, comparisons = await choose_rows(circle, plan, found, own=asks.bound == "own", comparison=asks.comparison)  # fmt: skip
    elif plan.k and (plan.relation is None or relation):
        search = RadiusSearch(plan.reach, plan.k, _distances(found, plan.k, len(relation) if plan.relation else 1), asks.radii)  # fmt: skip
        if asks.epsilon:
            await search.begin_privately(circle, island, _distances(found, plan.k + more, 1), asks.epsilon, asks.comparison)  # fmt: skip
        elif asks.bound == "own":
            await search.begin(circle)
        await search.narrow(circle, asks.comparison)
        radius, comparisons = search.radius, search.comparisons
        found = found[: plan.k] if more else found
        found = [row for row in found if not math.isfinite(radius[row[1]]) or (row[0] is not None and row[0] <= radius[row[1]])]  # fmt: skip
    rows = [json.dumps(list(row[2:]), ensure_ascii=False).encode() for row in found]
    behind = {"rows": len(rows), **({} if plan.relation is None else {plan.relation.alias: told})}
    write_event(island, request["message"], plan, f"a masked part of a table that has these rows{'' if plan.relation is None else ', and to the other sites this many bytes of rows to look near to'}", behind, charged={"epsilon": asks.epsilon} if plan.k else None)  # fmt: skip
    part, total = await circle.scatter(rows)
    return {"part": part, "rows": total, "comparisons": comparisons, "rounds": circle.rounds, "slots": list(circle.slots), "relation": len(relation), "told": told}  # fmt: skip


def _distances(rows: Sequence[tuple[Any, ...]], k: int, points: int) -> NDArray[np.float64]:
    """The k smallest distances of each point, ascending."""
    made = np.full((points, k), np.inf)
    filled = np.zeros(points, np.int64)
    for distance, entry, *_ in sorted((row for row in rows if row[0] is not None and row[0] < math.inf), key=lambda row: row[0]):  # fmt: skip
        if filled[entry] < k:
            made[entry, filled[entry]] = distance
            filled[entry] += 1
    return made


def _promised_of(args: Any) -> Disclosure:
    return promise_min_count(args["request"]["message"])


@task(discloses=_promised_of)
async def share_counts(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Return this site's sums with masks that cancel in the sum over all sites; few units stay hidden, and each site writes down which stand behind the answer."""
    silo, parties = silo_of(island.data), [str(name) for name in parties]
    plan = plan_of(silo, request["message"], make_spatial_plan, "hufu")
    counts: Any = plan.counts
    asks: Any = read_strategy(request["message"])
    circle = await OwnerCircle.begin(island.secret, peers, parties, me, digest_request(request, parties))
    cells = StatementCells(silo, counts, lone=island.name == request["message"]["first"])
    (only,) = cells.parts
    few, hidden = False, list[int]()
    words = np.zeros(1 + counts.words, np.int64)
    if counts.counted:
        few, hidden = await find_few(circle, only, counts.least(len(parties)), asks.comparison)
    if not few:
        record_units(island, cells, [[()]], [[hidden]])
        write_event(island, request["message"], plan, "sums with masks", cells.behind([[()]]))
        words = np.asarray(only.words((), hidden), np.int64)
    return {"part": circle.mask(FIELD.of(words)), "rounds": circle.rounds, "few": few, "hidden": hidden}


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class Hufu(Strategy):
    """Counts, rows and nearest rows around points, by counts of owners and the union of their rows.

    Attributes:
        comparison: how a sum of counts is compared with k: ``"exact"``, or ``"masked"``, which shows one site more; see `atoll.secure.owners`.
        bound: where the search begins: at the smallest k-th distance that one site has by itself (``"own"``), rounded up to a power of two, or at the extent of the policy (``"extent"``), which tells
            nothing but the comparisons.
        radii: radii that are compared at once. More take fewer rounds and more comparisons: where a message takes long, 3 halve the rounds.
        epsilon: what each site says of its own k-th distance is differentially private with this epsilon for each of its rows, and its ledger has it; 0 says it without noise. It is all that a search tells
            beside what follows from the answer's radius.
        owners: which sites count within a circle: ``"all"``, or drawn ones, ``"whole"`` or ``"grid"``; see `atoll.query.owner_draws`. ``"auto"`` is all, and with an error the grid where it sends fewer bytes.
        cell: side of the cells by which they are drawn, in units of the coordinates; 0 for a quarter of the radius.
        level: a drawn site counts each row with probability ``2^-level``.
        error: the largest error that is wanted of drawn sites, as a part of the count; where two draws do not meet it, all sites count. 0 for none.
        confidence: with which probability the count lies in its interval.
    """

    name: ClassVar[str] = "hufu"
    takes_helper: ClassVar[bool] = True
    takes_error: ClassVar[bool] = True

    comparison: str = "exact"
    bound: str = "own"
    radii: int = 1
    epsilon: float = 0.0
    owners: str = "auto"
    cell: float = 0.0
    level: int = 0
    error: float = 0.0
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name, value, known in (("comparison", self.comparison, COMPARISONS), ("bound", self.bound, BOUNDS), ("owners", self.owners, OWNERS)):  # fmt: skip
            if value not in known:
                raise ConfigError(f"{name}={value!r}", where="hufu", remedy=f"use {' or '.join(known)}")
        if not 0 <= self.cell < math.inf or not 0 <= self.level <= 32 or (self.owners == "all" and (self.cell or self.level)):  # fmt: skip
            raise ConfigError(f"owners={self.owners}, cell={self.cell}, level={self.level}", where="hufu", remedy="use owners=whole or grid, a side above 0, and a level from 0 to 32")  # fmt: skip
        if not 1 <= self.radii <= 64:
            raise ConfigError(f"radii={self.radii!r}", where="hufu", remedy="use a whole number from 1 to 64")
        if self.epsilon and (not 0.01 <= self.epsilon <= 100 or self.bound != "own"):
            raise ConfigError(f"epsilon={self.epsilon!r} with bound={self.bound!r}", where="hufu", remedy="use 0.01 to 100, with bound=own, or 0")  # fmt: skip

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> Any:
        """A plan; see `make_spatial_plan`. Of a join of two tables that other sites may not read, it is one under shares; see `make_near_plan`. Of drawn owners it is one of `make_circle_plan`."""
        if self.owners in ("whole", "grid"):
            drawn = make_circle_plan(statement, catalog, policy)
            drawn.grid(self.side_of(drawn)).cells()
            return drawn
        try:
            plan = make_spatial_plan(statement, catalog, policy)
        except (PolicyError, CompositionError):
            near = make_near_plan(statement, catalog, policy)
            if near is None:
                raise
            return near
        if self.epsilon and plan.error:
            raise CompositionError(f"epsilon={self.epsilon:g} of an approximate search", where="hufu", remedy="leave epsilon out, or ask for the exact kNN")  # fmt: skip
        if self.epsilon and plan.relation is not None:
            raise CompositionError(f"epsilon={self.epsilon:g} for every point of a join", where="hufu", remedy="leave epsilon out, or use bound=extent")  # fmt: skip
        return plan

    def carrier(self, plan: Any) -> str:
        """``smcql`` for a join under shares."""
        return Smcql.name if isinstance(plan, SecurePlan) else self.name

    def require_plan(self, plan: Any, sites: int, *, helper: bool) -> None:
        """Refuse a join under shares with fewer than three parties."""
        if isinstance(plan, SecurePlan):
            Smcql().require_parties(sites, helper=helper)

    def fit_plan(self, plan: Any, sites: int) -> Any:
        """With an error, the count of drawn sites where it sends fewer bytes than that of all, and the policies allow it."""
        if self.error and self.owners == "auto" and isinstance(plan, SpatialPlan) and plan.counts is not None:
            with contextlib.suppress(PolicyError, CompositionError):  # then all sites count
                drawn = make_circle_plan(plan.statement, plan.catalog, plan.policy)
                if self.predict_cost(drawn, sites) < self.predict_cost(plan, sites):
                    return drawn
        return plan

    def side_of(self, plan: CirclePlan) -> float:
        """The side of a cell."""
        return self.cell or plan.circle[2] / 4

    def rows_beyond(self, plan: SpatialPlan) -> int:
        """Rows beyond the k nearest that a site looks at, so that noise can hide how many it has."""
        return 2 * margin_of(plan.most_comparisons + 1, self.epsilon) if self.epsilon and plan.k else 0

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse one site, and two that compare masked."""
        del helper
        if sites < 2:
            raise CompositionError("one site, and owners add up with others", where="hufu", remedy="name two sites or more")  # fmt: skip
        if sites < 3 and self.comparison == "masked":
            raise CompositionError("two sites, and a masked comparison needs three", where="hufu", remedy="use comparison=exact")  # fmt: skip

    def steps(self, plan: SpatialPlan | SecurePlan | CirclePlan) -> Sequence[PlanStep]:
        """The steps of a plan, in order."""
        if isinstance(plan, CirclePlan):
            return plan.steps(self.owners, self.side_of(plan), self.level, draws=2 if self.error else 1)
        if isinstance(plan, SecurePlan):
            return Smcql().steps(plan)
        together = "sites together"
        if plan.counts is not None:
            what = ", ".join(one.text for one in plan.counts.aggregates)
            few = [PlanStep(together, f"masked, {self.comparison}", f"are there {plan.policy.min_count} units behind each number, and behind what two differ by?")] if plan.counts.counted else []  # fmt: skip
            return [PlanStep("each site", "plain", f"{what} {plan.body}"), *few, PlanStep(together, "masked", "add up, modulo 2^61 - 1: 8 bytes a number"), PlanStep("coordinator", "plain", plan.finish)]  # fmt: skip
        found = []
        if plan.relation is not None:
            who = "the first site" if plan.relation.lone else "each site"
            found.append(PlanStep(who, "plain", f"tell the other sites the rows of {plan.relation.alias}: {plan.relation.text}"))  # fmt: skip
        found.append(PlanStep("each site", "plain", plan.rows_text(self.rows_beyond(plan))))
        if plan.error:
            found.append(PlanStep(together, f"masked, {self.comparison}", f"the smallest of {len(plan.rings)} rings, each {1 + plan.error:g} times as wide as the one before, that holds {plan.k} rows: at most {plan.most_comparisons} comparisons; rows of the last ring draw lots"))  # fmt: skip
        elif plan.k:
            if self.bound == "own":
                found.append(PlanStep(together, "masked", f"is the {_nth(plan.k)} distance of one site below 2^c x {plan.reach.precision:g}?"))  # fmt: skip
            found.append(PlanStep(together, f"masked, {self.comparison}", f"halve the radius until {plan.k} rows lie within it to {plan.reach.precision:g}: at most {plan.most_comparisons} comparisons"))  # fmt: skip
        found.append(PlanStep(together, "masked", "put the rows in random places of a table, which the coordinator adds up"))  # fmt: skip
        found.append(PlanStep("coordinator", "plain", plan.finish))
        return found

    def exposures(self, plan: SpatialPlan | SecurePlan | CirclePlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        if isinstance(plan, CirclePlan):
            return plan.exposures(self.owners, self.side_of(plan))
        if isinstance(plan, SecurePlan):
            return Smcql().exposures(plan)
        honest = "sites follow the protocol, and those that put together what they know are not all but one"
        if plan.counts is not None:
            told = "sums over all sites, from which the answer follows"
            told += "; and which numbers too few units stand behind, or none" if plan.counts.counted else ""
            return [Exposure("coordinator, each site" if plan.counts.counted else "coordinator", told, honest, "sum"), Exposure("analyst", "the answer", "", "sum")]  # fmt: skip
        found = []
        if plan.relation is not None:
            found.append(Exposure("each site", f"the rows of {plan.relation.alias} of all sites", "these columns are public, or every site has them", "keys"))  # fmt: skip
        if plan.error:
            found.append(Exposure("coordinator, each site", f"the {_nth(plan.k)} distance up to a factor of {1 + plan.error:g}, and how many rows are nearer by more than that, and how many are not", honest + "; the third of three sites or more tells the first two nothing else", "sum"))  # fmt: skip
            if self.bound == "own":
                found.append(Exposure("coordinator, each site", f"the smallest {_nth(plan.k)} distance that one site has by itself, up to the same factor, and not which site", honest, "sum"))  # fmt: skip
        elif plan.k:
            points = "of each point" if plan.relation is not None else "of the answer"
            found.append(Exposure("coordinator, each site", f"the radius {points}, to {plan.reach.precision:g}", honest + "; the third of three sites or more tells the first two nothing else", "sum"))  # fmt: skip
            if self.bound == "own":
                noise = f", with noise: {self.epsilon:g}-differentially private for a row" if self.epsilon else ""
                found.append(Exposure("coordinator, each site", f"the smallest {_nth(plan.k)} distance that one site has by itself, up to a power of two, and not which site{noise}", honest, "sum"))  # fmt: skip
        if plan.k and self.comparison == "masked":
            found.append(Exposure("the first site", f"by how many rows the sites together miss {plan.k} at each radius that is tried, times a random number that the other sites know; and whether it is none", "the first site and another one do not put together what they know", "count"))  # fmt: skip
        found.append(Exposure("each site", f"how many {'pairs' if plan.pairs else 'rows'} all sites have in the answer, and the length of the longest, up to a power of two", "", "sizes"))  # fmt: skip
        more = f", and rows beyond the {_nth(plan.k)} within one precision or at one distance, which it leaves out" if plan.k and not plan.error else ""  # fmt: skip
        rows = f"{', '.join(key.text for key in plan.keys)} of each pair of rows, from which it computes the answer" if plan.pairs else "the rows of the answer"  # fmt: skip
        rows = "how many pairs of rows there are" if plan.pairs and plan.keys[0].text == "1" else rows
        found.append(Exposure("coordinator", f"{rows}{more}; not which site has which", honest, "sum"))
        return [*found, Exposure("analyst", "the answer", "", "sum")]

    def predict_cost(
        self, plan: SpatialPlan | SecurePlan | CirclePlan, sites: int, groups: Sequence[Sequence[str | None]] = ((),)
    ) -> float:
        """Bytes of all sites; between sites the coordinator relays, so that each message counts twice.

        Args:
            plan: the plan.
            sites: number of sites.
            groups: how many comparisons, points to look near to, bytes of these, rows and words a row there were, and the slots of each reservation; by default what the plan allows at most, one point or 64 of
                a join, and 64 bytes a row.
        """
        if isinstance(plan, SecurePlan):
            return Smcql().predict_cost(plan, sites)
        if isinstance(plan, CirclePlan):
            cells = len(plan.grid(self.side_of(plan)).cells())
            asked = M.nbytes(message_of(plan.statement, plan.catalog, plan.policy, "x" * 8, self)) + 100
            return float(sites * (2 * asked + (1 if self.owners == "whole" else 2) * _array(8 * cells)))
        points, k = 64 if plan.relation is not None else 1, plan.k or 64
        usual = [plan.most_comparisons, points, 64 * (points > 1) * points, k * points, 10, slots_of(k * points)]
        comparisons, points, tells, rows, words, *slots = [int(one or 0) for one in groups[0]] if len(groups[0]) > 4 else usual  # fmt: skip
        n, others = sites, sites - 1
        asked = M.nbytes(message_of(plan.statement, plan.catalog, plan.policy, "x" * 8, self))
        names = sum(10 for _ in range(n))
        request = n * (asked + names + 40)
        hello = _pairs(n) * _carried(M.nbytes({"seed": np.zeros(32, np.uint8), "about": np.zeros(16, np.uint8)})) + max(0, n - 2) * _carried(_array(32))  # fmt: skip
        if plan.counts is not None:
            return self._cost_of_sums(plan.counts, n) + request + hello
        total = float(request + hello)
        if plan.relation is not None:
            total += others * (2 * tells + n * _carried(_array(0)))
        if plan.k and self.bound == "own" and points:
            places = points * plan.places
            total += others * (_carried(_array(8 * places)) + _carried(_array(places)))
        if comparisons:
            radii = 1 if plan.error else self.radii
            total += comparisons / radii * self._bytes_of_comparison(n, points * radii, plan.k)
        if plan.error:
            total += others * 4 * _carried(_array(8))  # how many rows lie in smaller rings, and in the last one
        total += others * 2 * _carried(_array(8))
        for size in slots:
            total += others * (_carried(_array(2 * size)) + _carried(_array(size)))
        if rows:
            total += others * (_carried(_array(8 * 24)) + _carried(_array(24)))
        return total + n * (_array(8 * rows * words) + 120)

    def _cost_of_sums(self, plan: QueryPlan, n: int) -> float:
        """Bytes of sums beside the request, and of what few units must not show."""
        total, sets = float(n * (_array(8 * (1 + plan.words)) + 60)), plan.counted
        if sets:
            total += self._bytes_of_comparison(n, sets, plan.least(n))
            total += (n - 1) * (_carried(_array(8 * sets)) + _carried(_array(sets)))
        return total

    def predict_rounds(self, plan: SpatialPlan | CirclePlan, sites: int) -> int:
        """Messages that follow one another, at most: seeds, the first bound, three or four for each comparison, and the table of rows."""
        if isinstance(plan, CirclePlan):
            return 2
        if plan.counts is not None:
            return 2 + 6 * bool(plan.counts.counted)
        search = 0
        if plan.k:
            steps = math.ceil(math.log(plan.reach.extent / plan.reach.precision, self.radii + 1))
            search = 2 * (self.bound == "own") + (4 if sites == 2 else 3) * steps
        return 1 + (plan.relation is not None) + search + _TABLE_ROUNDS + 1

    def _bytes_of_comparison(self, n: int, sums: int, k: int) -> float:
        others = n - 1
        told = others * _carried(_array(sums))
        if self.comparison == "masked":
            return told + n * _carried(_array(8 * sums))
        if n == 2:
            bits = k.bit_length()
            return told + _carried(_array(32)) + _carried(_array(32 * bits * sums)) + _carried(_array(sums * max(1, (1 << bits) // 8)))  # fmt: skip
        size = 1 << (n * k).bit_length()
        width = 2 if size <= 1 << 16 else 4
        table = _carried(_array(sums * max(1, size // 8)))
        return (
            told + others * _carried(_array(width * sums)) + table + _carried(_array(width * sums) + _array(sums) + 12)
        )

    def predict_answer(self, plan: SpatialPlan | SecurePlan | CirclePlan, sites: int, answer: QueryAnswer) -> float:
        """The same, of what the sites told."""
        if isinstance(plan, CirclePlan):
            return answer.expected or 0.0
        return Smcql().predict_answer(plan, sites, answer) if isinstance(plan, SecurePlan) else self.predict_cost(plan, sites, answer.groups)  # fmt: skip

    async def _run_drawn(self, fed: Federation, plan: CirclePlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Count by drawn sites; by all, if these err too far."""
        found, nbytes, told = await count_by_draws(fed, plan, message, how="whole" if self.owners == "whole" else "grid", side=self.side_of(plan), level=self.level, draws=2 if self.error else 1)  # fmt: skip
        statement = plan.statement
        if self.error and found.relative(self.confidence) > self.error:
            every = replace(self, owners="all", cell=0.0, level=0)
            exact = every.plan(statement, plan.catalog, plan.policy)
            answer = await every.run(fed, exact, message)
            return replace(answer, rounds=answer.rounds + 2, expected=nbytes + every.predict_answer(exact, len(fed.parties), answer))  # fmt: skip
        approximate = {"confidence": self.confidence, "owners": told[0], "cells": told[1], "level": self.level, "intervals": {statement.columns[0]: [list(found.interval(self.confidence))]}}  # fmt: skip
        rows = finish_cells(plan.counts, [tuple(read_values(plan.counts, [round(found.value)], ()))])
        return QueryAnswer(statement.columns, statement.types, rows, rounds=2, approximate=approximate, expected=nbytes)

    def _finish_counts(self, plan: SpatialPlan, got: Sequence[Any]) -> QueryAnswer:
        """The answer, of what the sites gave."""
        counts: Any = plan.counts
        statement, first = plan.statement, got[0]
        total = FIELD.of(np.zeros(np.shape(first["part"]), np.int64))
        for one in got:
            total = FIELD.add(total, np.asarray(one["part"], np.uint64))
        few, hidden = bool(first["few"]), [int(k) for k in first["hidden"]]
        if any((bool(one["few"]), [int(k) for k in one["hidden"]]) != (few, hidden) for one in got):
            raise DataError("sites found different numbers of units", where="hufu", remedy="a site departs from the protocol: ask again without it")  # fmt: skip
        rows = finish_cells(counts, [] if few else [tuple(read_values(counts, FIELD.signed(total)[1:], hidden))])
        return QueryAnswer(statement.columns, statement.types, rows, int(few), 0 if few else len(hidden), int(first["rounds"]) + 1, comparisons=int(bool(counts.counted)))  # fmt: skip

    async def run(self, fed: Federation, plan: SpatialPlan | SecurePlan | CirclePlan, message: Mapping[str, Any]) -> QueryAnswer:  # fmt: skip
        """Carry a plan out."""
        if isinstance(plan, CirclePlan):
            return await self._run_drawn(fed, plan, message)
        if isinstance(plan, SecurePlan):
            return await Smcql().run(fed, plan, message)
        names = list(fed.parties.names)
        request = {"message": dict(message)}
        job = share_rows if plan.counts is None else share_counts
        got = await fed.session({name: (name, job.with_args(request=request, parties=names, me=name)) for name in names})  # fmt: skip
        statement, first = plan.statement, got[names[0]]
        if plan.counts is not None:
            return self._finish_counts(plan, [got[name] for name in names])
        parts = [got[name]["part"] for name in names]
        cells = [tuple(json.loads(row)) for row in join_scattered(parts)]
        rows = finish_cells(plan, cells)
        comparisons = int(first["comparisons"])
        points = first["relation"] if plan.relation is not None else 1
        told = [comparisons, points, sum(int(got[name]["told"]) for name in names), len(cells), np.shape(parts[0])[1], *first["slots"]]  # fmt: skip
        return QueryAnswer(statement.columns, statement.types, rows, rounds=int(first["rounds"]) + 1, comparisons=comparisons, groups=([str(int(one)) for one in told],), approximate={"error": plan.error} if plan.error else None)  # fmt: skip


def _nth(k: int) -> str:
    return f"{k}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(k % 10 if k % 100 not in (11, 12, 13) else 0, 'th') }"


def _pairs(n: int) -> int:
    return n * (n - 1) // 2


def _array(nbytes: int) -> int:
    return M.nbytes(np.zeros(nbytes, np.uint8))


def _carried(nbytes: int) -> int:
    """Bytes of a message of one site to another: sealed, and relayed."""
    return 2 * sealed_nbytes(nbytes)
