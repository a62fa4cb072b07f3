"""``sums``: aggregates as masked sums of whole numbers. No site's own number is seen, and no cryptography but the masks is needed.

1. Sites name the keys of groups that could occur, from public columns alone.
2. If a policy has a ``min_count``, a masked sum counts the units of each group, of each condition in it, and of what two conditions differ by.
3. The coordinator names the groups of enough units. A masked sum adds up their aggregates. Each site first writes down which rows stand behind its answer
   (`atoll.statistics.answered`), and refuses what differs from an earlier answer by too few.
4. The coordinator computes what is written around the aggregates.

A statement may have several groupings (`atoll.query.strategies.groupings`), each with its keys and aggregates: all of them take these steps together.

Every site makes the plan itself, from the statement and its own policy, so a coordinator that sends another policy opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, DataError, PolicyError
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.secure.masking import SecureAggregation

from ..events import write_event
from ..local import local_cells, message_of, plan_once, record_units
from ..plan import QueryPlan
from ..statement import shadow
from .groupings import make_sums_plan, name_cells
from .strategy import CONTACT_NBYTES, PlanStep, QueryAnswer, Strategy, promise_min_count, promise_sum

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..policy import QueryPolicy
    from ..statement import Catalog, SqlStatement

__all__ = ["MaskedSums", "add_words", "count_units", "finish_cells", "list_keys", "read_values"]

_SUM, _NEIGHBOUR = 721.0, 1657.0
"""Bytes that one masked sum sends for each site, both ways, beside its words and the message, and more for each site of the cohort: keys, sealed shares, and the shares that open the masks."""
_CHUNK = 200
"""Cells that are inserted at once."""


def _whole(values: Any) -> dict[str, Sum]:
    return {"words": Sum(np.asarray(values, dtype=np.int64).reshape(-1), role="side")}


@task(discloses=promise_min_count)
def list_keys(island: Any, message: Any) -> Any:
    """The keys of groups that could occur at one site: values of public columns."""
    cells = local_cells(island, message, fresh=True)
    write_event(
        island,
        message,
        cells.plan,
        f"{sum(len(one.possible) for one in cells.parts)} keys of groups, of public columns",
        {},
    )
    return {"keys": [[list(key) for key in one.possible] for one in cells.parts]}


@task(discloses=promise_sum)
def count_units(island: Any, message: Any) -> Any:
    """Units of each cell and condition, of each table that is released."""
    cells = local_cells(island, message, fresh=not cells_named(message))
    told = keys_of(message, cells.plan)
    write_event(island, message, cells.plan, f"the units of {sum(map(len, told))} groups, masked", cells.behind(told))
    return _whole([n for one, keys in zip(cells.parts, told, strict=True) for key in keys for n in one.units(key)])


@task(discloses=promise_sum)
def add_words(island: Any, message: Any) -> Any:
    """The words of the addends of each released cell."""
    cells = local_cells(island, message, fresh=not cells_named(message) and cells_least(message) <= 1)
    told = keys_of(message, cells.plan)
    hidden = [[frozenset(int(place) for place in one) for one in some] for some in message["hidden"]]
    record_units(island, cells, told, hidden)
    write_event(island, message, cells.plan, f"the sums of {sum(map(len, told))} groups, masked", cells.behind(told))
    return _whole([n for part, keys, some in zip(cells.parts, told, hidden, strict=True) for key, one in zip(keys, some, strict=True) for n in part.words(key, one)])  # fmt: skip


def keys_of(message: Any, plan: QueryPlan) -> list[list[tuple[str | None, ...]]]:
    """The cells of each grouping that a request names.

    Raises:
        PolicyError: it names those of more groupings than the statement has, or of fewer.
    """
    found = [[tuple(key) for key in some] for some in message["cells"]]
    if len(found) != len(plan.groupings):
        raise PolicyError(f"{len(found)} groupings are asked for, and the statement has {len(plan.groupings)}", where="query", remedy="look at the coordinator: it asks for something else than the job says")  # fmt: skip
    return found


def cells_named(message: Any) -> bool:
    """Whether the statement has group keys, so that an earlier request of it has asked for them."""
    return bool(message["grouped"])


def cells_least(message: Any) -> int:
    """The minimum count of a request."""
    return int(message["policy"]["min_count"])


@dataclass(frozen=True)
class MaskedSums(Strategy):
    """Aggregates as masked sums.

    Attributes:
        reducer: how sums are masked.
    """

    name: ClassVar[str] = "sums"
    offers: ClassVar[frozenset[str]] = frozenset({"stay"})

    reducer: SecureAggregation = field(default_factory=SecureAggregation)

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> QueryPlan:
        """A plan; see `atoll.query.plan`."""
        tables = {table: dict(columns) for table, columns in catalog.tables.items()}
        told = policy.told({table: [c.lower() for c in columns] for table, columns in tables.items()})
        made: QueryPlan = plan_once(make_sums_plan, statement.sql, tables, [told])
        return replace(made, statement=statement)

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse one site, whose sums no mask hides."""
        del helper
        if sites < 2:
            raise CompositionError("one site, whose sums no other one's masks hide", where="sums", remedy="name two sites or more")  # fmt: skip

    def steps(self, plan: QueryPlan) -> Sequence[PlanStep]:
        """The steps of a plan."""
        parts, found = plan.groupings, []
        keys = dict.fromkeys(one.text for part in parts for one in part.keys)
        if keys:
            found.append(PlanStep("each site", "plain", f"name the values of {', '.join(keys)}: public columns"))
        if any(part.counted for part in parts):
            units = dict.fromkeys(f"{one.table}.{one.unit}" if one.unit else f"rows of {one.table}" for part in parts for one in part.released)  # fmt: skip
            found.append(PlanStep("each site, added up masked", "masked", f"count {', '.join(units)} of each group{_and_conditions(parts)}"))  # fmt: skip
            found.append(PlanStep("coordinator", "plain", f"leave out groups of fewer than {plan.policy.min_count}"))
        for part in parts:
            what = ", ".join(one.text for one in part.aggregates) or "the groups"
            by = f" by {', '.join(one.text for one in part.keys) or 'nothing'}" if len(parts) > 1 else ""
            place = "each site, added up masked" if part is parts[0] else "in the same sum"
            found.append(PlanStep(place, "masked", f"{what}{by}: {8 * (1 + part.words)} bytes a group"))
        found.append(PlanStep("coordinator", "plain", plan.finish))
        return found

    def exposures(self, plan: QueryPlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        masks = "the coordinator follows the protocol; between organisations it may lie about who replied"
        parts, found = plan.groupings, []
        keys = dict.fromkeys(one.text for part in parts for one in part.keys)
        if keys:
            found.append(Exposure("coordinator", f"the values of {', '.join(keys)} at each site", "these columns are public", "keys"))  # fmt: skip
        if any(part.counted for part in parts):
            found.append(Exposure("coordinator", "the number of units of every group and condition over all sites, also of those that the answer leaves out", masks, "count"))  # fmt: skip
        sums = "sums over all sites, from which the answer follows: counts, sums"
        sums += ", sums of squares and products" if any(one.kind in ("square", "product") for part in parts for one in part.addends) else ""  # fmt: skip
        found.append(Exposure("coordinator", sums, masks, "sum"))
        found.append(Exposure("analyst", "the answer, and how many groups it leaves out", "", "sum"))
        return found

    def predict_cost(self, plan: QueryPlan, sites: int, groups: Sequence[Sequence[str | None]] = ((),)) -> float:
        """Bytes of all sites, for a coordinator that is honest.

        A masked sum over n sites costs each of them its words, the message and ``721 + 1657 n`` bytes; a request for keys costs the message and the keys. Between organisations a masked sum has one more
        exchange, in which sites vote. Of several groupings, each group has the place of its grouping before its keys.
        """
        parts = plan.groupings
        cells = [[list(key[1:]) for key in groups if key[0] == str(place)] for place in range(len(parts))] if plan.parts and any(groups) else [[list(key) for key in groups] for _ in parts]  # fmt: skip
        asked = M.nbytes(message_of(plan.statement, plan.catalog, plan.policy, "x" * 8, self)) + CONTACT_NBYTES
        keys = float(M.nbytes(cells))
        counted = any(part.counted for part in parts)
        sums = 1 + counted if any(cells) else 0  # nothing is added up where no site has a group
        words = sum(8.0 * len(some) * (1 + part.words + part.counted) for part, some in zip(parts, cells, strict=True))
        hidden = M.nbytes([[[] for _ in some] for some in cells])  # which aggregates of a group are withheld
        listed = asked + CONTACT_NBYTES + keys if any(part.keys for part in parts) else 0.0
        return sites * (listed + sums * (asked + keys + _SUM + _NEIGHBOUR * sites) + min(sums, 1) * hidden + words)

    async def run(self, fed: Federation, plan: QueryPlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        parts, parties, rounds = plan.groupings, fed.parties, 0
        grouped = any(part.keys for part in parts)
        asked: dict[str, Any] = {**message, "grouped": grouped, "cells": [[[]] for _ in parts]}
        if grouped:
            told = await fed.ask_all(parties, list_keys, asked)
            asked["cells"] = [_join_keys([one["keys"][place] for one in told.values]) if part.keys else [[]] for place, part in enumerate(parts)]  # fmt: skip
            rounds += 1
        groups = asked["cells"]
        units = [np.zeros((len(some), part.counted), np.int64) for part, some in zip(parts, groups, strict=True)]
        if any(one.size for one in units):
            units = _divide_words(await self._add(fed, count_units, asked), [one.shape for one in units])
            rounds += 1
        shown = [_find_shown(part, some, len(parties)) for part, some in zip(parts, units, strict=True)]
        asked["cells"] = [[some[k] for k in places] for some, (places, _) in zip(groups, shown, strict=True)]
        asked["hidden"] = [hidden for _, hidden in shown]
        cells: list[list[tuple[Any, ...]]] = [[] for _ in parts]
        withheld = 0
        if any(asked["cells"]):
            shapes = [(len(some), 1 + part.words) for part, some in zip(parts, asked["cells"], strict=True)]
            words = _divide_words(await self._add(fed, add_words, asked), shapes)
            rounds += 1
            for place, part in enumerate(parts):
                for key, row, hidden in zip(asked["cells"][place], words[place], asked["hidden"][place], strict=True):
                    if part.keys and not row[0]:
                        continue
                    withheld += len(hidden)
                    cells[place].append((*key, *read_values(part, row[1:], hidden)))
        rows = _finish(plan, list(zip(parts, cells, strict=True)))
        few = sum(len(some) - len(places) for some, (places, _) in zip(groups, shown, strict=True))
        numbered = [(str(place), *key) for place, some in enumerate(groups) for key in some] if plan.parts else groups[0]  # fmt: skip
        return QueryAnswer(plan.statement.columns, plan.statement.types, rows, few, withheld, rounds, numbered)

    async def _add(self, fed: Federation, what: Any, message: Mapping[str, Any]) -> Any:
        found = await fed.sum(fed.parties, what, message, reducer=self.reducer, quorum=len(fed.parties))
        return np.asarray(found.value["words"], np.int64)


def _join_keys(told: Sequence[Any]) -> list[list[str | None]]:
    """The keys that any site has named, in order."""
    seen = {tuple(key) for one in told for key in one}
    return [list(key) for key in sorted(seen, key=lambda key: [(part is None, part or "") for part in key])]


def _divide_words(words: Any, shapes: Sequence[tuple[int, int]]) -> list[Any]:
    """The words of each grouping."""
    ends = np.cumsum([rows * width for rows, width in shapes])[:-1]
    return [one.reshape(shape) for one, shape in zip(np.split(words, ends), shapes, strict=True)]


def _find_shown(plan: QueryPlan, counted: Any, sites: int) -> tuple[list[int], list[list[int]]]:
    """Places of the cells of a grouping that enough units stand behind, and of each those of its aggregates that are withheld."""
    if not plan.counted:
        return list(range(len(counted))), [[] for _ in counted]
    least = plan.least(sites)
    units = counted.reshape(-1, len(plan.conditions), len(plan.released))
    # None is as few: if it were told from one, a statement would say whether somebody is there.
    places = [k for k, one in enumerate(units) if (one[0] >= least).all()]
    return places, [_hidden(plan, units[k], least) for k in places]


def _few(units: Any, least: int) -> bool:
    """Whether what two sets differ by is few, and not nothing: equal sets tell nothing of each other."""
    return bool(((units > 0) & (units < least)).any())


def _and_conditions(parts: Sequence[QueryPlan]) -> str:
    count = sum(len(part.conditions) - 1 for part in parts)
    return "" if not count else f", and of {count} condition{'' if count == 1 else 's'} in it"


def _hidden(plan: QueryPlan, units: Any, least: int) -> list[int]:
    """Places of the aggregates of one cell that are withheld. The sites hear of it, so that they neither send them nor count them as answered."""
    return [k for k, one in enumerate(plan.aggregates) if (units[one.needed] < least).any() or _few(units[list(one.rests)], least)]  # fmt: skip


def read_values(plan: QueryPlan, words: Any, hidden: Sequence[int]) -> list[str | None]:
    """The aggregates of one cell as text; none for those that are withheld.

    Args:
        plan: the plan.
        words: the words of all addends, added up.
        hidden: places of aggregates.
    """
    totals, start = [], 0
    for addend in plan.addends:
        totals.append(addend.decode(words[start : start + addend.words]))
        start += addend.words
    return [None if k in hidden else one.finish([totals[place] for place in one.addends]) for k, one in enumerate(plan.aggregates)]  # fmt: skip


def finish_cells(plan: Any, cells: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What is written around the aggregates, over the released cells.

    Args:
        plan: a plan with ``keys``, ``aggregates``, ``catalog`` and ``finish``.
        cells: keys and aggregates of each cell, as text.

    Raises:
        DataError: DuckDB cannot compute it.
    """
    return _finish(plan, [(plan, cells)])


def _finish(plan: Any, tables: Sequence[tuple[Any, Sequence[tuple[Any, ...]]]]) -> list[tuple[Any, ...]]:
    """The same over the released cells of several groupings."""
    with shadow(plan.catalog) as connection:
        for place, (part, cells) in enumerate(tables):
            _fill_cells(connection, name_cells(place), part, cells)
        try:
            return connection.execute(plan.finish).fetchall()  # type: ignore[no-any-return]
        except Exception as error:
            raise DataError(f"the released sums cannot be put together: {str(error).strip().partition(chr(10))[0]}", where="sql", remedy="correct what is written around the aggregates") from error  # fmt: skip


def _fill_cells(connection: Any, table: str, plan: Any, cells: Sequence[tuple[Any, ...]]) -> None:
    """Make the table of the cells of a grouping."""
    types = [*(one.type for one in plan.keys), *(one.type for one in plan.aggregates)]
    names = [*(f"k{k}" for k in range(len(plan.keys))), *(f"a{k}" for k in range(len(plan.aggregates)))]
    if not names:
        connection.execute(f"CREATE TEMP TABLE {table} AS SELECT 1 AS one")
        return
    connection.execute(f"CREATE TEMP TABLE {table}_texts ({', '.join(f'{name} VARCHAR' for name in names)})")
    for start in range(0, len(cells), _CHUNK):  # one statement a row takes DuckDB milliseconds
        some = cells[start : start + _CHUNK]
        row = f"({', '.join('?' * len(names))})"
        connection.execute(f"INSERT INTO {table}_texts VALUES {', '.join([row] * len(some))}", [value for cell in some for value in cell])  # fmt: skip
    shown = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in zip(names, types, strict=True))
    connection.execute(f"CREATE TEMP TABLE {table} AS SELECT {shown} FROM {table}_texts")
