"""Counts within a circle from some of the owners: a grid of the plane says how many rows each owner has where, and owners drawn by these counts count for all.

Let ``g_i`` be the rows of owner i in a cell, and ``G`` those of all. An owner is drawn with probability ``g_i / G``, and its count r_i of rows that the statement asks for becomes ``r_i G / g_i``. The mean over all draws is
``sum r_i``: nothing is assumed of how rows lie, and an owner without rows is never drawn. How far a draw errs depends on how much the owners' shares ``r_i / g_i`` differ:

* ``whole``: one owner is drawn for all cells that the circle touches, taken as one. Owners that have rows in different parts of it have different shares.
* ``grid``: an owner is drawn for each cell. Within a small cell shares hardly differ. Cells that lie inside the circle are known without a draw, unless there are other conditions.

``level`` j beside it (*level sampling*): a drawn owner counts each of its rows with probability 2^-j, by a key of its own, and what it counts stands for 2^j as many.

Source: the survey of federated computing, section 3.3: Shi et al. 2021, "Efficient Approximate Range Aggregation over Large-scale Spatial Data Federation". There the owner is drawn uniformly, which is unbiased only if
all rows are alike. The paper leaves open how to draw owners and records together; here both are unbiased, so they are together too. Two draws of every cell tell how far they err (`combine_draws`).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, DataError, PolicyError
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task

from .databases.silo import quote
from .events import write_event
from .local import names_of, plan_of, prefix_of, silo_of
from .plan import ROW, QueryPlan, make_plan, split_conditions
from .sampling import Estimate, draw_condition
from .statement import SOURCE
from .strategies.strategy import CONTACT_NBYTES, PlanStep, promise_one_row, read_strategy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation

    from .policy import QueryPolicy
    from .statement import Catalog, SqlStatement

__all__ = ["OWNERS", "CircleGrid", "CirclePlan", "combine_draws", "count_by_draws", "count_cells", "count_drawn", "draw_owners", "make_circle_plan"]  # fmt: skip

OWNERS = ("auto", "all", "whole", "grid")
_MOST_CELLS = 10_000
"""Bytes of a message or a reply beside its values."""
_MANY = 8
"""Cells that are enough to tell by two draws of each how far the sum errs."""


# ---------------------------------------------------------------- cells


@dataclass(frozen=True)
class CircleGrid:
    """The cells of a grid that a circle touches; cell (a, b) is ``[a s, (a + 1) s) x [b s, (b + 1) s)``.

    Attributes:
        x: first coordinate of the centre.
        y: second one.
        radius: of the circle.
        side: s, of a cell.
    """

    x: float
    y: float
    radius: float
    side: float

    def cells(self) -> NDArray[np.int64]:
        """The cells, ``(cells, 2)``.

        Raises:
            CompositionError: they are too many.
        """
        if (2 * self.radius / self.side + 2) ** 2 > _MOST_CELLS:
            raise CompositionError(f"cells of {self.side:g} within a radius of {self.radius:g}", where="hufu", remedy=f"use larger ones, such as cell={self.radius / 8:.3g}")  # fmt: skip
        a, b = (np.arange(math.floor((c - self.radius) / self.side), math.floor((c + self.radius) / self.side) + 1) for c in (self.x, self.y))  # fmt: skip
        every = np.stack(np.meshgrid(a, b, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.int64)
        low = every * self.side
        near = np.maximum(0.0, np.maximum(low - [self.x, self.y], [self.x, self.y] - low - self.side))
        # A cell that rounding puts just outside is kept: it costs a draw, and no row is lost.
        touched: NDArray[np.int64] = every[np.hypot(near[:, 0], near[:, 1]) <= self.radius + self._slack]
        return touched

    def inside(self, cells: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which cells lie in the circle as a whole."""
        low = cells * self.side
        far = np.maximum(abs(low - [self.x, self.y]), abs(low + self.side - [self.x, self.y]))
        found: NDArray[np.bool_] = np.hypot(far[:, 0], far[:, 1]) <= self.radius - self._slack
        return found

    @property
    def _slack(self) -> float:
        """How far rounding may put a row beyond its cell."""
        return 1e-9 * self.radius + 8 * float(np.finfo(float).eps) * (abs(self.x) + abs(self.y) + self.radius)


def draw_owners(counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """An owner for each cell, with the probability of its part of the cell's rows; -1 for a cell without rows.

    Args:
        counts: rows of each owner, ``(owners, cells)``.
        rng: draws.
    """
    totals = counts.sum(axis=0)
    places = np.floor(rng.random(len(totals)) * totals)
    found: NDArray[np.int64] = np.where(totals > 0, (np.cumsum(counts, axis=0) <= places).sum(axis=0), -1)
    return found


def combine_draws(counts: NDArray[np.int64], drawn: NDArray[np.int64], told: NDArray[np.int64], level: int = 0) -> Estimate:  # fmt: skip
    """The count of all owners, from what the drawn ones counted.

    Args:
        counts: rows of each owner, ``(owners, cells)``.
        drawn: the owner of each draw and cell, -1 for none; ``(draws, cells)``.
        told: what it counted, ``(draws, cells)``.
        level: each row was counted with probability ``2^-level``.

    Returns:
        The mean of the draws. Of two draws and more of many cells, the variance is estimated by how they differ; and since they often are of one owner, what draws of m owners of one kind differ by,
        ``(m - 1) G p (1 - p)`` with the part p of a cell's rows, comes on top. Of others it is at most ``sum v (G - v)``, since a cell's estimate v lies in [0, G]. The level adds
        ``(2^level - 1) v G / g``.
    """
    totals, draws = counts.sum(axis=0), len(drawn)
    own = np.maximum(1, np.take_along_axis(counts, np.maximum(drawn, 0), axis=0))
    values = np.where(drawn >= 0, told * (2.0**level) * totals / own, 0.0)
    means = values.mean(axis=0)
    if draws > 1 and len(totals) >= _MANY:
        owners, part = (counts > 0).sum(axis=0), np.clip((means + 0.5) / (totals + 1), 0, 1)
        alike = (owners - 1) * totals * part * (1 - part)
        variance = float((values.var(axis=0, ddof=1) + alike).sum() / draws)
    else:
        kept = np.clip(means, 0, totals)
        variance = float((kept * (totals - kept)).sum()) / draws
    # Draws of one owner share what it counted, so that they do not differ by it.
    variance += float(((2.0**level - 1) * means * (totals / own).max(axis=0)).sum())
    return Estimate(float(means.sum()), variance, low=0.0)


# ---------------------------------------------------------------- the plan


@dataclass(frozen=True)
class CirclePlan:
    """A count within one circle.

    Attributes:
        counts: the plan of the exact count.
        circle: centre and radius.
        place: local SQL of the coordinates.
        table: the table, and what the statement calls it.
        alone: whether there is no condition but the circle.
    """

    counts: QueryPlan
    circle: tuple[float, float, float]
    place: tuple[str, str]
    table: tuple[str, str]
    alone: bool

    def grid(self, side: float) -> CircleGrid:
        """The cells around the circle."""
        return CircleGrid(*self.circle, side)

    def steps(self, how: str, side: float, level: int, draws: int) -> list[PlanStep]:
        """What is done, in order; see `count_by_draws`."""
        what = "all cells together" if how == "whole" else "each cell"
        some = f", of {2.0**-level:g} of its rows" if level else ""
        return [
            PlanStep("each site", "plain", f"count its rows in cells of {side:g} that the circle touches"),
            PlanStep("coordinator", "plain", f"draw {'a site' if draws == 1 else 'two sites'} for {what}, by these counts"),
            PlanStep("each site that is drawn", "plain", f"COUNT(*) in its cells {self.counts.body}{some}"),
            PlanStep("coordinator", "plain", "scale up, and add up"),
        ]  # fmt: skip

    def exposures(self, how: str, side: float) -> list[Exposure]:
        """What is given away."""
        told = f"how many rows each site has in each cell of {side:g} that the circle touches, and how many of them the statement asks for in {'the circle' if how == 'whole' else 'the cells'} that a site is drawn for"
        trust = "the coordinates are not private, and the coordinator draws by the lots that it named before sites told their rows: a site sees that these cells are its own, and not the rows of others, by which it was drawn"
        return [Exposure("coordinator", told, trust, "count"), Exposure("analyst", "the answer", "", "sum")]

    @property
    def statement(self) -> SqlStatement:
        """The statement."""
        return self.counts.statement

    @property
    def catalog(self) -> Catalog:
        """The tables."""
        return self.counts.catalog

    @property
    def policy(self) -> QueryPolicy:
        """What all sites allow."""
        return self.counts.policy

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Tables -> the columns that are read."""
        return self.counts.sources

    def cell_texts(self, side: float) -> tuple[str, str]:
        """Local SQL of the cell of a row; NULL for coordinates that are missing or not finite."""
        return tuple(f"try(CAST(floor({one} / {side!r}) AS BIGINT))" for one in self.place)  # type: ignore[return-value]


def make_circle_plan(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> CirclePlan:
    """Plan a count within one circle around a point.

    Raises:
        PolicyError: coordinates are private.
        CompositionError: the statement is another one.
    """
    from sqlglot import exp

    made = make_plan(statement, catalog, policy)
    refused = CompositionError("owners are drawn for a count within one circle", where="hufu", remedy="ask SELECT COUNT(*) FROM t WHERE DWithin(location, POINT(2.3, 48.8), 5), with conditions by AND; or leave owners out")  # fmt: skip
    sources = list(statement.tree.find_all(exp.Table))
    if made.policy.min_count > 1:
        raise PolicyError(f"min_count is {made.policy.min_count}, and cells tell of few rows", where="hufu", remedy="leave owners out, or let sites set min_count: 1")  # fmt: skip
    shown = [
        one.unalias() for one in statement.tree.expressions
    ]  # an estimate and its interval are those of this column
    if len(shown) != 1 or not isinstance(shown[0], exp.Count) or [one.text for one in made.aggregates] != ["COUNT(*)"] or made.keys or made.lone or len(sources) != 1 or statement.tree.args.get("having"):  # fmt: skip
        raise refused
    found, others = [], 0
    for part in split_conditions(exp, statement.tree.args.get("where")):
        node = part.unnest()
        if isinstance(node, exp.LTE) and node.meta.get("spatial") and node.this.meta.get("between"):
            found.append(node)
        else:
            others += 1
    ends = {bool(alias): (alias, x, y) for one in found for alias, x, y in one.this.meta["between"]}
    if len(found) != 1 or len(ends) != 2:
        raise refused
    alias, *place = ends[True]
    table = sources[0].name.lower()
    columns = {column.name.lower() for column in found[0].this.find_all(exp.Column)}
    private = sorted(name for name in columns if made.policy.table(table).column(name).level == "private")
    if private:
        raise PolicyError(f"cells tell how many rows each site has where, and {table}.{private[0]} is private", where="policies of the sites", remedy="leave owners out, or let the sites make the coordinates protected")  # fmt: skip
    return CirclePlan(made, _numbers([ends[False][1], ends[False][2], found[0].expression.sql("duckdb")], refused), (place[0], place[1]), (table, alias), not others)  # fmt: skip


def _numbers(texts: Sequence[str], refused: CompositionError) -> tuple[float, float, float]:
    """Values of constant SQL: the centre and the radius."""
    from .databases.silo import connect_duckdb

    try:
        with connect_duckdb() as connection:
            x, y, radius = connection.execute(f"SELECT {', '.join(f'CAST({text} AS DOUBLE)' for text in texts)}").fetchall()[0]  # fmt: skip
    except Exception as error:
        raise refused from error
    if None in (x, y, radius) or not all(map(math.isfinite, (x, y, radius))) or radius <= 0:
        raise refused
    return x, y, radius


# ---------------------------------------------------------------- at a site


@task(discloses=promise_one_row)
def count_cells(island: Any, message: Any) -> Any:
    """The rows of this site in each cell that the circle touches, whatever else the statement asks of them."""
    silo = silo_of(island.data)
    plan, asks = _plan_here(silo, message)
    counted = silo.kept = _CountedCells(silo, plan, asks.side_of(plan))
    # No count is known yet when the lots are, so nobody can choose them by what sites tell.
    island.promise(f"lots of the statement {plan.statement.sql}", str(int(message["lots"])))
    write_event(island, message, plan, f"its rows in each of {len(counted.cells)} cells", {plan.table[0]: int(counted.rows.sum())})  # fmt: skip
    return {"rows": counted.rows}


class _CountedCells:
    """The rows of one site in each cell that the circle touches.

    Args:
        silo: the site.
        plan: its plan.
        side: of a cell.

    Attributes:
        plan: the plan.
        side: the side.
        cells: the cells, ``(cells, 2)``.
        rows: how many rows are in each.
    """

    def __init__(self, silo: Any, plan: CirclePlan, side: float) -> None:
        self.plan, self.side, self.cells = plan, side, plan.grid(side).cells()
        names, (a, b), (table, alias) = names_of(silo, plan.counts), plan.cell_texts(side), plan.table
        box = [f"{text} BETWEEN {int(self.cells[:, k].min())} AND {int(self.cells[:, k].max())}" for k, text in enumerate((a, b))]  # fmt: skip
        source = f"{quote(SOURCE + table)} AS {quote(alias)}"
        text = f"{prefix_of(silo, plan.counts, names)} SELECT {a}, {b}, count(*) FROM {source} WHERE {' AND '.join(box)} GROUP BY 1, 2"  # fmt: skip
        (found,) = silo.run_all([text], list(names.values()))
        self.rows = _by_cell(self.cells, found)

    def take(self, asked: Any, name: str, *, whole: bool) -> NDArray[np.int64]:
        """Those of the cells that a request draws this site for, ``(drawn, 2)``; all of them, where they are taken as one.

        Args:
            asked: their places, as the request says them.
            name: of the site.
            whole: whether they are taken as one.

        Raises:
            PolicyError: no draw can have named these.
        """
        drawn = np.asarray(asked)
        least = np.ones(len(self.cells), bool) if whole else self.rows > 0
        if self.plan.alone and not whole:  # what lies inside the circle is known without a draw
            least &= ~self.plan.grid(self.side).inside(self.cells)
        fits = drawn.dtype == np.int64 and drawn.ndim == 1 and bool((np.diff(drawn) > 0).all()) and bool(self.rows.any())  # fmt: skip
        if not fits or ((drawn < 0) | (drawn >= len(self.cells))).any() or not least[drawn].all() or (whole and len(drawn) < len(self.cells)):  # fmt: skip
            raise PolicyError(f"this site is drawn for cells {str(drawn.tolist())[:80]} of {len(self.cells)}, and a draw names cells outside the circle's inner ones where it has rows, each once", where=name, remedy="look at the coordinator: it does not follow the protocol")  # fmt: skip
        found: NDArray[np.int64] = self.cells[drawn]
        return found


def _plan_here(silo: Any, message: Any) -> tuple[CirclePlan, Any]:
    """The plan that the site makes itself, and the strategy's settings.

    Raises:
        PolicyError: the statement asks for no drawn owners.
    """
    asks: Any = read_strategy(message)
    plan: CirclePlan = plan_of(silo, message, make_circle_plan, "hufu")
    if asks.owners not in ("whole", "grid") and not (asks.owners == "auto" and asks.error):
        raise PolicyError("cells are asked for, and the statement wants all sites to count", where=silo.name, remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip
    return plan, asks


def _by_cell(cells: NDArray[np.int64], found: Sequence[tuple[Any, ...]]) -> NDArray[np.int64]:
    rows = {(int(one[0]), int(one[1])): int(one[2]) for one in found}
    return np.array([rows.get((int(a), int(b)), 0) for a, b in cells.tolist()], np.int64)


@task(discloses=promise_one_row)
def count_drawn(island: Any, message: Any) -> Any:
    """The rows that the statement asks for, in the cells that this site is drawn for."""
    silo = silo_of(island.data)
    plan, asks = _plan_here(silo, message)
    side, level, whole = asks.side_of(plan), asks.level, asks.owners == "whole"
    counted: Any = silo.kept
    if not isinstance(counted, _CountedCells) or counted.plan is not plan or counted.side != side:
        counted = _CountedCells(silo, plan, side)
    mine = counted.take(message["cells"], island.name, whole=whole)
    lots, statement = int(message["lots"]), plan.statement.sql
    # Another draw would show further cells: it is refused from here on, also if this reply gets lost.
    island.promise(f"lots of the statement {statement}", str(lots))
    island.promise(f"cells drawn for the statement {statement}", json.dumps(mine.tolist()))
    a, b = plan.cell_texts(side)
    names, alias = names_of(silo, plan.counts), plan.table[1]
    kept = [f"({a}, {b}) IN ({', '.join(f'({p}, {q})' for p, q in mine.tolist())})"]
    if level:
        kept.append(draw_condition(island.secret.bytes(32), [f"CAST({quote(alias)}.{quote(ROW)} AS VARCHAR)"], 2.0**-level))  # fmt: skip
    text = f"{prefix_of(silo, plan.counts, names)} SELECT {a}, {b}, count(*) {plan.counts.body} AND {' AND '.join(kept)} GROUP BY 1, 2"  # fmt: skip
    (found,) = silo.run_all([text], list(names.values()))
    rows = _by_cell(mine, found)
    told = "in the circle" if whole else f"in each of {len(mine)} cells"
    write_event(island, message, plan, f"its rows that the statement asks for, {told}, drawn by the lots {lots}", {plan.table[0]: int(rows.sum())})  # fmt: skip
    # Cells taken as one have one number: where in the circle rows lie stays at the site.
    rows = rows.sum(keepdims=True) if whole else rows
    return {"rows": rows}


# ---------------------------------------------------------------- at the coordinator


async def count_by_draws(fed: Federation, plan: CirclePlan, message: Mapping[str, Any], *, how: str, side: float, level: int, draws: int) -> tuple[Estimate, float, list[int]]:  # fmt: skip
    """The count of all owners, from drawn ones.

    Args:
        fed: the sites.
        plan: the plan.
        message: what each site needs to make the same plan.
        how: ``"whole"`` or ``"grid"``.
        side: of a cell.
        level: see `combine_draws`.
        draws: of each cell.

    Returns:
        The estimate, the bytes that this took if all went well, and how many sites counted and in how many cells.
    """
    rng = Rng.of(fed.world.seed).child("owners", plan.statement.sql)
    asked = {**message, "lots": int(rng.generator().integers(1 << 62))}
    told = await fed.ask_all(fed.parties, count_cells, asked, quorum=len(fed.parties))
    grid, names = plan.grid(side), list(told.senders.names)
    cells = grid.cells()
    counts = np.array([_read_rows(one, len(cells), name) for one, name in zip(told.values, names, strict=True)])
    nbytes = len(names) * (M.nbytes(asked) + CONTACT_NBYTES) + sum(
        M.nbytes(one) + CONTACT_NBYTES for one in told.values
    )
    known, used = 0, np.arange(len(cells))
    if how == "grid":
        whole = grid.inside(cells) if plan.alone else np.zeros(len(cells), bool)
        known = int(counts[:, whole].sum())
        used = np.flatnonzero(~whole & (counts.sum(axis=0) > 0))
    groups = counts[:, used] if how == "grid" else counts[:, used].sum(axis=1, keepdims=True)
    lots = np.random.default_rng(asked["lots"])
    drawn = np.array([draw_owners(groups, lots) for _ in range(draws)]).reshape(draws, groups.shape[1])
    mine = {name: used[(drawn == k).any(axis=0)] if how == "grid" else used for k, name in enumerate(names) if (drawn == k).any()}  # fmt: skip
    own = np.zeros_like(groups)
    if mine:
        # Each site hears of its own cells: those of others say where they have rows.
        found = await asyncio.gather(*(fed.ask(name, count_drawn, {**asked, "cells": cell}) for name, cell in mine.items()))  # fmt: skip
        for (name, cell), one in zip(mine.items(), found, strict=True):
            nbytes += M.nbytes({**asked, "cells": cell}) + M.nbytes(one) + 2 * CONTACT_NBYTES
            k = names.index(name)
            where = (drawn == k).any(axis=0)
            own[k, where] = _read_rows(one, int(where.sum()), name)
    heard = np.take_along_axis(own, np.maximum(drawn, 0), axis=0)
    estimate = combine_draws(groups, drawn, heard, level)
    made = Estimate(known + estimate.value, estimate.variance, low=float(known), high=float(counts.sum()))
    return made, nbytes, [len(mine), sum(len(one) for one in mine.values())]


def _read_rows(told: Any, cells: int, name: str) -> NDArray[np.int64]:
    """The numbers of one site.

    Raises:
        DataError: they are none.
    """
    found = np.asarray(told["rows"])
    if found.dtype != np.int64 or found.shape != (cells,) or (found < 0).any():
        raise DataError(f"{name} sent {found.dtype} of shape {found.shape} where {cells} counts are due", where="hufu", remedy="ask again without it: it departs from the protocol")  # fmt: skip
    return found
