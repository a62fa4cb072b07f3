"""``conclave``: statements over rows of different sites, with as little under shares as policies allow (Volgushev et al. 2019).

It is ``smcql`` behind a smaller frontier (`atoll.query.secure.frontier`): sites add their own groups up, keys that are public are matched by everyone, and keys that all owners trust one party with
(``trusted: [regulator]`` in their policies) that party matches and sorts, shuffled. Other columns stay shares. Where no policy trusts anyone, or with ``conclave:trusted=none``, all keys stay shares too.

The coordinator proposes a plan, and no site believes it: each makes its own, by its own policy, and before a row is shared the sites and parties compare digests of what they are about to do. So a coordinator
that says of a column what the policy of its owner does not say opens nothing: the plans differ, and nobody begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import PolicyError
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.secure.shares import Trio
from atoll.secure.tables import (
    KeyReader,
    SharedTable,
    attach_rows_by_reader,
    group_rows_by_reader,
    join_many_by_reader,
)

from ..secure.costs import RehearsedKeys
from ..secure.extents import Extents
from ..secure.frontier import (
    EVERYONE,
    ClearExtents,
    ClearGroups,
    ClearJoin,
    ClearLookup,
    GroupedLeaf,
    move_frontier,
    readers_of,
)
from ..secure.near import refuse_near
from ..secure.operators import GroupedRows, JoinedRows, Looked, SecurePlan, walk_operators
from ..secure.plan import make_row_plan
from ..secure.tables import REPEATED_KEY, SEVERAL_ROWS, SecureTables
from .shared_rows import MOST_ROWS, compute_answer, local_rows, promised_of, require_size, send_leaves
from .smcql import Smcql
from .strategy import PlanStep, QueryAnswer, promise_min_count, read_strategy

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..policy import QueryPolicy
    from ..statement import Catalog, SqlStatement

__all__ = ["Conclave", "compute_clear_keys", "measure_frontier", "share_frontier"]

_GROUPS = 32
"""Groups of a site, as long as nobody knows."""


# ---------------------------------------------------------------- at a party


class HybridTables(SecureTables):
    """The tables of a plan, some of whose keys a party reads.

    Args:
        trio: the three parties.
        leaves: the shared rows of each leaf.
        parties: their names.
        usual: what a rehearsal takes for the rows of joins whose size only the reader knows, as multiples of the longer table's; 1 where it is not said.

    Attributes:
        sizes: these multiples, as they were.
    """

    def __init__(self, trio: Trio, leaves: Sequence[SharedTable], parties: Sequence[str], usual: Sequence[float] = ()) -> None:  # fmt: skip
        super().__init__(trio, leaves, most=MOST_ROWS)
        self._parties, self._usual = list(parties), list(usual)
        self.sizes: list[float] = []

    def _reader(self, name: str) -> KeyReader:
        if name != EVERYONE and name not in self._parties:
            raise PolicyError(f"{name} reads keys, and is none of the parties {', '.join(self._parties)}", where="conclave", remedy="use conclave:trusted=none")  # fmt: skip
        return KeyReader(self.trio, None if name == EVERYONE else self._parties.index(name))

    async def _join(self, op: JoinedRows) -> SharedTable:
        if not isinstance(op, ClearJoin):
            return await super()._join(op)
        left, right = await self._table(op.left), await self._table(op.right)
        on, reader = await self._pairs(left, right, op.pairs), self._reader(op.reader)
        if op.right_most == 1 or op.left_most == 1:
            turned = op.right_most == 1
            one, other = (right, left) if turned else (left, right)
            pairs = [(b, a) for a, b in on] if turned else on
            table, found, matched, repeated = await attach_rows_by_reader(reader, one, other, pairs, list(one.columns))
            self._failures.append((repeated, REPEATED_KEY))
            table = table.with_columns(found)
            if op.side == "inner":
                table = await table.filter_rows(matched)
        else:
            usual = self._usual[len(self.sizes)] if len(self.sizes) < len(self._usual) else 1.0
            table = await join_many_by_reader(reader, left, right, on, most=MOST_ROWS, usual=usual)
            self.sizes.append(len(table) / max(len(left), len(right)))
        return table if op.condition is None else await table.filter_rows((await self._truth(table, op.condition))[0])

    async def _look(self, op: Looked) -> SharedTable:
        if not isinstance(op, ClearLookup):
            return await super()._look(op)
        table, inner = await self._table(op.source), await self._table(op.inner)
        names = [name for column in op.columns for name in self._all_names(inner, column)]
        on = [(b, a) for a, b in await self._pairs(table, inner, op.pairs)]
        table, found, matched, repeated = await attach_rows_by_reader(self._reader(op.reader), inner, table, on, names)
        if names:
            self._failures.append((repeated, SEVERAL_ROWS))
        return table.with_columns({**found, op.flag: matched})

    async def _make_groups(self, op: GroupedRows, table: SharedTable, keys: Any, made: Any, keep: Any) -> SharedTable:
        if not isinstance(op, ClearGroups):
            return await super()._make_groups(op, table, keys, made, keep)
        return await group_rows_by_reader(self._reader(op.reader), table, keys, made, keep=keep)


@functools.lru_cache(maxsize=64)
def planner_of(trusted: str) -> Callable[..., SecurePlan]:
    """Makes the plan of a statement with a trusted party, ``"auto"`` or ``"none"``: always the same function for one name."""

    def make(statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
        return move_frontier(refuse_near(make_row_plan(statement, catalog, policy), "conclave"), trusted)

    return make


def _planner(message: Mapping[str, Any]) -> Callable[..., SecurePlan]:
    said: Any = read_strategy(message)
    return planner_of(str(getattr(said, "trusted", "none")))


@task(discloses=promise_min_count)
def measure_frontier(island: Any, message: Any) -> Any:
    """How many rows, or groups of rows, the tables of each leaf have, rounded up to a power of two, and how long texts are, in steps of 8 bytes."""
    kept = local_rows(island, message, fresh=True, make=_planner(message), by="conclave")
    kept.tell_sizes(island, message)
    return {"rows": kept.sizes, "words": kept.widths()}


@task(discloses=promised_of)
async def share_frontier(island: Island, peers: Peers, *, request: Any, parties: Any) -> Any:
    """Share a site's rows with three other parties, once all have the same plan."""
    await send_leaves(island, peers, request, parties, _planner(request["message"]), "conclave")
    return {}


@task(discloses=promised_of)
async def compute_clear_keys(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part in the computation, once all have the same plan; return this party's part of the answer's rows, and the sizes that the reader told."""
    made: list[HybridTables] = []

    def tables(trio: Trio, leaves: Sequence[SharedTable]) -> HybridTables:
        made.append(HybridTables(trio, leaves, list(parties)))
        return made[0]

    found = await compute_answer(island, peers, request, parties, me, make=_planner(request["message"]), tables=tables, by="conclave")  # fmt: skip
    return {**found, "joins": made[0].sizes}


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class Conclave(Smcql):
    """Joins and groups of rows of different sites, with keys in the clear at parties that policies trust.

    Attributes:
        trusted: the party that reads keys: a name, ``"auto"`` for the one that policies let read those of the most operators, or ``"none"``.
    """

    name: ClassVar[str] = "conclave"
    offers: ClassVar[frozenset[str]] = frozenset()
    no_options: ClassVar[frozenset[str]] = frozenset({"mode", "slices", "joins"})

    trusted: str = "auto"

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
        """A plan under shares whose frontier is moved; see `atoll.query.secure.frontier`."""
        return planner_of(self.trusted)(statement, catalog, policy)

    def require_named(self, plan: SecurePlan, names: Sequence[str]) -> None:
        """Refuse a reader of keys who takes no part."""
        reader = _reader_of(plan)
        if reader and reader not in names:
            raise PolicyError(f"policies trust {reader} with keys, and it takes no part", where="conclave", remedy="let it be a site, or use conclave:trusted=none")  # fmt: skip

    def steps(self, plan: SecurePlan) -> Sequence[PlanStep]:
        """The steps of a plan, in order; a step with a reader says who reads what."""
        readers = {one.what: one.reader for one in walk_operators(plan.root) if isinstance(one, ClearJoin | ClearLookup | ClearGroups)}  # fmt: skip
        return [PlanStep(f"three parties, keys at {readers[one.what] or 'all'}", one.form, one.what) if one.what in readers else one for one in super().steps(plan)]  # fmt: skip

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away: what ``smcql`` does, groups in place of rows where sites add up, and keys to their readers."""
        made = list(super().exposures(plan))
        grouped = [leaf.name for leaf in plan.leaves if isinstance(leaf, GroupedLeaf)]
        if grouped:
            made.insert(1, Exposure("coordinator, three parties", f"of {' and of '.join(grouped)} these rows are groups that a site adds up: how many groups it has", "", "sizes"))  # fmt: skip
        for reader, (bases, rows) in readers_of(plan).items():
            shown = ", ".join(f"{table}.{column}" for table, column in sorted(bases)) or "no column"
            counted = ", ".join(f"{table}.{column}" for table, column in sorted(rows - bases))
            which = f"the rows that count{f', as {counted} decide' if counted else ''}"
            if reader == EVERYONE:
                made.append(Exposure("three parties", f"the values of {shown} of {which}, as each site has them", "these columns are public", "keys"))  # fmt: skip
            else:
                made.append(Exposure(reader, f"the values of {shown} of {which}, of all sites together and shuffled: which rows have equal keys, and not whose they are", "policies trust it with these columns, and it puts nothing together with another party", "keys"))  # fmt: skip
        if any(isinstance(one, ClearJoin) and one.many for one in walk_operators(plan.root)):
            made.append(Exposure("three parties", "how many pairs a join has whose keys are read, up to the next power of two", "", "count"))  # fmt: skip
        return made

    @staticmethod
    def guess_sizes(plan: SecurePlan, sites: int) -> dict[str, list[int]]:
        """Rows of each leaf at each site, as long as nobody has told them; few groups."""
        made = Smcql.guess_sizes(plan, sites)
        return {name: [min(rows, _GROUPS) if isinstance(leaf, GroupedLeaf) else rows for rows, leaf in zip(own, plan.leaves, strict=True)] for name, own in made.items()}  # fmt: skip

    def choose_parties(self, plan: SecurePlan, names: Sequence[str]) -> list[str]:
        """The three parties, the reader of keys among them."""
        usual, reader = super().choose_parties(plan, names), _reader_of(plan)
        return usual if not reader or reader in usual else [reader, *(name for name in names if name != reader)][:3]

    def keys_read(self, plan: SecurePlan, parties: Sequence[str], joins: Sequence[float]) -> RehearsedKeys | None:
        """Tables whose keys a party reads, or everyone."""
        return _RehearsedReader(list(parties), list(joins)) if readers_of(plan) else None

    async def run(self, fed: Federation, plan: SecurePlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        sizes, widths, _ = await self.measure(fed, message, measure_frontier)
        require_size(plan, sizes, kind=ClearExtents)
        request = {"message": dict(message), "sizes": sizes, "widths": widths}
        made, told = await self.open_rows(fed, plan, request, compute_clear_keys, share_frontier)
        joins = [float(one) for one in told["joins"]]
        return self.with_cost(plan, replace(made, joins=joins))


class _RehearsedReader:
    """Tables for a rehearsal of each of the parties.

    Args:
        parties: the three.
        joins: rows of joins whose size only the run tells, as in `QueryAnswer`.
    """

    extents: type[Extents] = ClearExtents

    def __init__(self, parties: Sequence[str], joins: Sequence[float]) -> None:
        self._parties, self._joins = parties, joins

    def make_tables(self, trio: Trio, leaves: Sequence[SharedTable]) -> SecureTables:
        """What computes the tables."""
        return HybridTables(trio, leaves, self._parties, self._joins)


def _reader_of(plan: SecurePlan) -> str:
    """The one party that reads keys of a plan; empty for none, or everyone."""
    return next((name for name in readers_of(plan) if name != EVERYONE), "")
