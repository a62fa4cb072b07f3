"""``sums``: aggregates as masked sums of whole numbers. No site's own number is seen, and no cryptography but the masks is needed.

1. Sites name the keys of groups that could occur, from public columns alone.
2. If a policy has a ``min_count``, a masked sum counts the units of each group, of each condition in it, and of what two conditions differ by.
3. The coordinator names the groups of enough units. A masked sum adds up their aggregates. Each site first writes down which rows stand behind its answer
   (`atoll.statistics.answered`), and refuses what differs from an earlier answer by too few.
4. The coordinator computes what is written around the aggregates.

Every site makes the plan itself, from the statement and its own policy, so a coordinator that sends another policy opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, DataError
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.secure.masking import SecureAggregation

from ..events import write_event
from ..local import local_cells, message_of, plan_once, record_units
from ..plan import QueryPlan, make_plan
from ..statement import shadow
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
    write_event(island, message, cells.plan, f"{len(cells.possible)} keys of groups, of public columns", {})
    return {"keys": [list(key) for key in cells.possible]}


@task(discloses=promise_sum)
def count_units(island: Any, message: Any) -> Any:
    """Units of each cell and condition, of each table that is released."""
    cells = local_cells(island, message, fresh=not cells_named(message))
    write_event(island, message, cells.plan, f"the units of {len(keys_of(message))} groups, masked", cells.behind(keys_of(message)))  # fmt: skip
    return _whole([cells.units(key) for key in keys_of(message)])


@task(discloses=promise_sum)
def add_words(island: Any, message: Any) -> Any:
    """The words of the addends of each released cell."""
    cells = local_cells(island, message, fresh=not cells_named(message) and cells_least(message) <= 1)
    hidden = [frozenset(int(place) for place in one) for one in message["hidden"]]
    record_units(island, cells, keys_of(message), hidden)
    write_event(island, message, cells.plan, f"the sums of {len(keys_of(message))} groups, masked", cells.behind(keys_of(message)))  # fmt: skip
    return _whole([cells.words(key, one) for key, one in zip(keys_of(message), hidden, strict=True)])


def keys_of(message: Any) -> list[tuple[str | None, ...]]:
    """The cells that a request names."""
    return [tuple(key) for key in message["cells"]]


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

    reducer: SecureAggregation = field(default_factory=SecureAggregation)

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> QueryPlan:
        """A plan; see `atoll.query.plan`."""
        tables = {table: dict(columns) for table, columns in catalog.tables.items()}
        told = policy.told({table: [c.lower() for c in columns] for table, columns in tables.items()})
        made: QueryPlan = plan_once(make_plan, statement.sql, tables, [told])
        return replace(made, statement=statement)

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse one site, whose sums no mask hides."""
        del helper
        if sites < 2:
            raise CompositionError("one site, whose sums no other one's masks hide", where="sums", remedy="name two sites or more")  # fmt: skip

    def steps(self, plan: QueryPlan) -> Sequence[PlanStep]:
        """The steps of a plan."""
        what = ", ".join(one.text for one in plan.aggregates) or "the groups"
        found = []
        if plan.keys:
            found.append(PlanStep("each site", "plain", f"name the values of {', '.join(one.text for one in plan.keys)}: public columns"))  # fmt: skip
        if plan.counted:
            units = ", ".join(
                f"{one.table}.{one.unit}" if one.unit else f"rows of {one.table}" for one in plan.released
            )
            found.append(PlanStep("each site, added up masked", "masked", f"count {units} of each group{_and_conditions(plan)}"))  # fmt: skip
            found.append(PlanStep("coordinator", "plain", f"leave out groups of fewer than {plan.policy.min_count}"))
        found.append(PlanStep("each site, added up masked", "masked", f"{what}: {8 * (1 + plan.words)} bytes a group"))
        found.append(PlanStep("coordinator", "plain", plan.finish))
        return found

    def exposures(self, plan: QueryPlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        masks = "the coordinator follows the protocol; between organisations it may lie about who replied"
        found = []
        if plan.keys:
            found.append(Exposure("coordinator", f"the values of {', '.join(one.text for one in plan.keys)} at each site", "these columns are public", "keys"))  # fmt: skip
        if plan.counted:
            found.append(Exposure("coordinator", "the number of units of every group and condition over all sites, also of those that the answer leaves out", masks, "count"))  # fmt: skip
        sums = "sums over all sites, from which the answer follows: counts, sums"
        sums += ", sums of squares and products" if any(one.kind in ("square", "product") for one in plan.addends) else ""  # fmt: skip
        found.append(Exposure("coordinator", sums, masks, "sum"))
        found.append(Exposure("analyst", "the answer, and how many groups it leaves out", "", "sum"))
        return found

    def predict_cost(self, plan: QueryPlan, sites: int, groups: Sequence[Sequence[str | None]] = ((),)) -> float:
        """Bytes of all sites, for a coordinator that is honest.

        A masked sum over n sites costs each of them its words, the message and ``721 + 1657 n`` bytes; a request for keys costs the message and the keys. Between organisations a masked sum has one more
        exchange, in which sites vote.
        """
        asked = M.nbytes(message_of(plan.statement, plan.catalog, plan.policy, "x" * 8, self)) + CONTACT_NBYTES
        keys = float(M.nbytes([list(key) for key in groups]))
        sums = 1 + bool(plan.counted) if groups else 0  # nothing is added up where no site has a group
        words = 8.0 * len(groups) * (1 + plan.words + plan.counted)
        hidden = M.nbytes([[] for _ in groups])  # which aggregates of a group are withheld
        listed = asked + CONTACT_NBYTES + keys if plan.keys else 0.0
        return sites * (listed + sums * (asked + keys + _SUM + _NEIGHBOUR * sites) + min(sums, 1) * hidden + words)

    async def run(self, fed: Federation, plan: QueryPlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        parties = fed.parties
        asked = {**message, "grouped": bool(plan.keys), "cells": [[]]}
        rounds = 0
        if plan.keys:
            told = await fed.ask_all(parties, list_keys, asked)
            seen = {tuple(key) for one in told.values for key in one["keys"]}
            asked["cells"] = [list(key) for key in sorted(seen, key=lambda key: [(part is None, part or "") for part in key])]  # fmt: skip
            rounds += 1
        units = np.zeros((len(asked["cells"]), len(plan.conditions), len(plan.released)), np.int64)
        if plan.counted and asked["cells"]:
            units = (await self._add(fed, count_units, asked)).reshape(units.shape)
            rounds += 1
        least = plan.least(len(parties))
        groups = asked["cells"]
        few: Any = (
            # None is as few: if it were told from one, a statement would say whether somebody is there.
            (units[:, 0] < least).any(axis=1) if plan.counted else np.zeros(len(units), bool)
        )
        told_cells = [k for k in range(len(units)) if not few[k]]  # fmt: skip
        asked["cells"] = [asked["cells"][k] for k in told_cells]
        cells: list[tuple[Any, ...]] = []
        withheld = 0
        if asked["cells"]:
            asked["hidden"] = [_hidden(plan, one, least) for one in units[told_cells]]
            words = (await self._add(fed, add_words, asked)).reshape(len(asked["cells"]), plan.words + 1)
            rounds += 1
            for key, row, hidden in zip(asked["cells"], words, asked["hidden"], strict=True):
                if plan.keys and not row[0]:
                    continue
                withheld += len(hidden)
                cells.append((*key, *read_values(plan, row[1:], hidden)))
        rows = finish_cells(plan, cells)
        statement = plan.statement
        return QueryAnswer(statement.columns, statement.types, rows, int(few.sum()), withheld, rounds, groups)

    async def _add(self, fed: Federation, what: Any, message: Mapping[str, Any]) -> Any:
        found = await fed.sum(fed.parties, what, message, reducer=self.reducer, quorum=len(fed.parties))
        return np.asarray(found.value["words"], np.int64)


def _few(units: Any, least: int) -> bool:
    """Whether what two sets differ by is few, and not nothing: equal sets tell nothing of each other."""
    return bool(((units > 0) & (units < least)).any())


def _and_conditions(plan: QueryPlan) -> str:
    count = len(plan.conditions) - 1
    return "" if not count else f", and of {count} condition{'' if count == 1 else 's'} in it"


def _hidden(plan: QueryPlan, units: Any, least: int) -> list[int]:
    """Places of the aggregates of one cell that are withheld. The sites hear of it, so that they neither send them nor count them as answered."""
    if not plan.counted:
        return []
    return [k for k, one in enumerate(plan.aggregates) if (units[list(one.supports)] < least).any() or _few(units[list(one.rests)], least)]  # fmt: skip


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
    types = [*(one.type for one in plan.keys), *(one.type for one in plan.aggregates)]
    names = [*(f"k{k}" for k in range(len(plan.keys))), *(f"a{k}" for k in range(len(plan.aggregates)))]
    with shadow(plan.catalog) as connection:
        if names:
            connection.execute(f"CREATE TEMP TABLE texts ({', '.join(f'{name} VARCHAR' for name in names)})")
            for start in range(0, len(cells), _CHUNK):  # one statement a row takes DuckDB milliseconds
                some = cells[start : start + _CHUNK]
                row = f"({', '.join('?' * len(names))})"
                connection.execute(f"INSERT INTO texts VALUES {', '.join([row] * len(some))}", [value for cell in some for value in cell])  # fmt: skip
            shown = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in zip(names, types, strict=True))
            connection.execute(f"CREATE TEMP TABLE cells AS SELECT {shown} FROM texts")
        else:
            connection.execute("CREATE TEMP TABLE cells AS SELECT 1 AS one")
        try:
            return connection.execute(plan.finish).fetchall()  # type: ignore[no-any-return]
        except Exception as error:
            raise DataError(f"the released sums cannot be put together: {str(error).strip().partition(chr(10))[0]}", where="sql", remedy="correct what is written around the aggregates") from error  # fmt: skip
