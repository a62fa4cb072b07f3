"""``smcql``: any equal join, group and order under shares at three parties, one of which may be curious (after Bater et al. 2017, with sharing in place of garbled circuits).

1. Each site computes the leaves of the plan from its own rows (`atoll.query.secure_plan`), and says how many rows their tables have, rounded up to a power of two.
2. Sites share their rows among three parties: the first three sites, or two sites and a helper. Filling rows hide how many there are.
3. The parties join, filter, group and sort; what each sees depends on these sizes alone (`atoll.secure.tables`).
4. The parties hand the rows of the answer to the coordinator, which puts two parts of three together, and computes what is written around the aggregates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import CompositionError, DataError
from atoll.core.exposure import Exposure
from atoll.core.extras import need
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task
from atoll.secure.shares import (
    ReplicatedComputation,
    ReplicatedSharing,
    SharedWords,
    Trio,
    WordRing,
    numbers_to_words,
    words_to_numbers,
)
from atoll.secure.shares.word_circuits import compare_limbs, interleave, match_limbs, negative_bits, pack_fields
from atoll.secure.tables import (
    RowAggregate,
    SharedTable,
    SortKey,
    concatenate_tables,
    group_rows,
    join_many,
    join_parts,
    outward_rows,
    send_table,
    share_table,
    sort_table,
    total_rows,
)

from ..column_codes import LONGEST, ColumnCode
from ..local import names_of, plan_of, prefix_of, silo_of
from ..secure_plan import PlanLeaf, SecurePlan, make_secure_plan
from .strategy import HELPER, PlanStep, QueryAnswer, Strategy
from .sums import finish_cells

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..policy import QueryPolicy
    from ..statement import Catalog, SqlStatement

__all__ = ["Smcql", "compute_shares", "measure_rows", "share_rows"]

_MOST = 1 << 21
"""Most rows of a join, of which the parties hold all pairs."""
_TOP = 1 << 63
_ROWS = "rows"


def _promised(message: Any) -> Disclosure:
    return Disclosure(int(message["policy"]["min_count"]))


def _one_row(message: Any) -> Disclosure:
    """The plan refuses a min_count above 1, so nothing is promised."""
    del message
    return Disclosure(1)


# ---------------------------------------------------------------- at a site


class _LocalRows:
    """The rows of the leaves at one site, of one snapshot."""

    def __init__(self, island: Any, message: Mapping[str, Any], plan: SecurePlan) -> None:
        silo = silo_of(island.data)
        names = names_of(silo, plan)
        prefix, tables = prefix_of(silo, plan, names), list(names.values())
        self.plan = plan
        first = island.name == message["first"]
        self.leaves = [leaf if first or not leaf.lone else None for leaf in plan.leaves]
        mine = [leaf for leaf in self.leaves if leaf is not None]
        texts = [f"{prefix} {text}" for leaf in mine for text in (leaf.size, leaf.text)]
        found = iter(silo.run_all(texts, tables, arrow=True))
        self.sizes, self.rows = [], list[Any]()
        for leaf in self.leaves:
            if leaf is None:
                self.sizes.append(0)
                self.rows.append(None)
                continue
            count = next(found).column(0)[0].as_py()
            grouped = leaf.group or not plan.grouped or len(plan.leaves) > 1
            self.sizes.append(1 << max(0, int(count) - 1).bit_length() if grouped else 1)
            self.rows.append(next(found))

    def widths(self) -> dict[str, int]:
        """Words that each column of text needs here."""
        compute = need("pyarrow.compute", "sql", "shares of text")
        found = {}
        for leaf, rows in zip(self.leaves, self.rows, strict=True):
            for place, column in enumerate(() if leaf is None else leaf.columns):
                if column.code.kind == "text":
                    longest = compute.max(compute.binary_length(rows.column(place))).as_py() or 0
                    if longest > 8 * LONGEST:
                        raise DataError(f"a text of {longest} bytes, and parties share {8 * LONGEST}", where=column.text, remedy="shorten it: left(x, 100)")  # fmt: skip
                    found[column.name] = max(1, -(-longest // 8))
        return found

    def encode(self, place: int, widths: Mapping[str, int], most: int) -> dict[str, Any]:
        """The columns of one leaf as `send_table` takes them.

        Args:
            place: the leaf.
            widths: words of each column of text.
            most: no sum of summands here may be larger.

        Raises:
            DataError: a sum of all sites might leave 64 bits.
        """
        made: dict[str, Any] = {}
        leaf = self.plan.leaves[place]
        for k, column in enumerate(leaf.columns):
            values = self.rows[place].column(k)
            if column.number:
                made[column.name] = values.fill_null(0).to_numpy().astype(np.int64)
                if sum(abs(int(value)) for value in made[column.name]) > most:
                    raise DataError(f"the sum of {column.text} might leave 64 bits", where="shares", remedy="scale the values down in the statement: SUM(CAST(x / 1000 AS DECIMAL(18,2)))")  # fmt: skip
                continue
            words, there = column.code.encode(values, widths.get(column.name, 1))
            made |= {f"{column.name}.{w}": one for w, one in enumerate(words)}
            made[f"{column.name}?"] = there
        return made


def _rows_of(island: Any, message: Mapping[str, Any], *, fresh: bool) -> _LocalRows:
    silo = silo_of(island.data)
    plan = plan_of(silo, message, make_secure_plan)
    if fresh or not isinstance(silo.kept, _LocalRows) or silo.kept.plan is not plan:
        silo.kept = _LocalRows(island, message, plan)
    kept: _LocalRows = silo.kept
    return kept


@task(discloses=_promised)
def measure_rows(island: Any, message: Any) -> Any:
    """How many rows the tables of each leaf have, rounded up to a power of two, and how long texts are, in steps of 8 bytes."""
    kept = _rows_of(island, message, fresh=True)
    return {"rows": kept.sizes, "words": kept.widths()}


def _layout(leaf: PlanLeaf, widths: Mapping[str, int]) -> dict[str, int | None]:
    made: dict[str, int | None] = {}
    for column in leaf.columns:
        if column.number:
            made[column.name] = None
        else:
            made |= {f"{column.name}.{w}": 64 for w in range(widths.get(column.name, 1))} | {f"{column.name}?": 1}
    return made


def _fan(sizes: Mapping[str, Sequence[int]], place: int) -> int:
    """How often a row of one leaf may be in a join."""
    totals = [sum(own) for own in zip(*sizes.values(), strict=True)]
    return int(np.prod([one for k, one in enumerate(totals) if k != place], dtype=object)) if len(totals) > 1 else 1


def _own_rows(island: Any, request: Mapping[str, Any], place: int) -> dict[str, Any]:
    kept = _rows_of(island, request["message"], fresh=False)
    sizes = request["sizes"]
    return kept.encode(place, request["widths"], (1 << 62) // (len(sizes) * _fan(sizes, place)))


@task(discloses=_one_row)
async def share_rows(island: Island, peers: Peers, *, request: Any, parties: Any) -> Any:
    """Share a site's rows with three other parties."""
    plan = plan_of(silo_of(island.data), request["message"], make_secure_plan)
    for place, leaf in enumerate(plan.leaves):
        size = int(request["sizes"][island.name][place])
        if size:
            rows = _own_rows(island, request, place)
            await send_table(peers, list(parties), island.secret, rows, layout=_layout(leaf, request["widths"]), capacity=size)  # fmt: skip
    return {}


@task(discloses=_one_row)
async def compute_shares(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part in the computation; return this party's part of the answer's rows."""
    own = None if island.data is None else silo_of(island.data)
    plan = plan_of(own, request["message"], make_secure_plan)
    sharing = ReplicatedSharing(WordRing(64))
    trio = await ReplicatedComputation(island, peers, list(parties), me, sharing).trio()
    leaves = []
    for place, leaf in enumerate(plan.leaves):
        tables = []
        for owner, sizes in request["sizes"].items():
            if sizes[place]:
                rows = _own_rows(island, request, place) if owner == me else None
                tables.append(await share_table(trio, owner, layout=_layout(leaf, request["widths"]), capacity=int(sizes[place]), rows=rows))  # fmt: skip
        leaves.append(concatenate_tables(tables))
    found = await _Computation(trio, plan, request["widths"]).answer(leaves)
    part = await outward_rows(found, ordered=plan.limit is not None)
    return {"part": part, "rows": len(found), "layout": {name: bits or 0 for name, bits in found.layout.items()}}


# ---------------------------------------------------------------- at the three parties


class _Computation:
    """What three parties compute on shared leaves."""

    def __init__(self, trio: Trio, plan: SecurePlan, widths: Mapping[str, int]) -> None:
        self.trio, self.plan, self._widths = trio, plan, widths

    async def answer(self, leaves: Sequence[SharedTable]) -> SharedTable:
        """The rows of the answer, in a table that others fill up."""
        plan, table = self.plan, leaves[0]
        for right, pairs in zip(leaves[1:], plan.joins, strict=True):
            on = [pair for one, other in pairs for pair in self._pair(table, one, right, other)]
            table, _ = await join_many(table, right, on, bound=len(table) * len(right))
        for node in plan.conditions:
            true, _ = await self._truth(table, node)
            table = await table.filter_rows(true)
        if plan.grouped:
            table = await self._group(table)
        if plan.limit is not None:
            keys = [key for name, down, first in plan.order for key in await self._order(table, name, down, first)]
            table = await sort_table(table, keys, limit=min(plan.limit, len(table)))
        names = [name for column in plan.key_columns for name in self._names(column.name)]
        counted = [name for k, _ in enumerate(plan.computed) for name in (f"a{k}", f"a{k}s", f"a{k}.0", f"a{k}?") if name in table.columns]  # fmt: skip
        return table.keep_columns([*dict.fromkeys(names), *counted])

    def _names(self, column: str) -> list[str]:
        return [*(f"{column}.{w}" for w in range(self._widths.get(column, 1))), f"{column}?"]

    def _limbs(self, table: SharedTable, column: str, count: int) -> list[SharedWords]:
        """The words of a column, the most significant first, filled up with zeros."""
        known = [table.words(name) for name in self._names(column)[:-1]]
        zeros = self.trio.constant(np.zeros(len(table), dtype=np.uint64), 64)
        return [*known, *[zeros] * (count - len(known))]

    def _pair(self, left: SharedTable, one: str, right: SharedTable, other: str) -> Iterator[tuple[SortKey, SortKey]]:
        count = max(self._widths.get(name, 1) for name in (one, other))
        sides = [(self._limbs(table, name, count), table.words(f"{name}?").inverted()) for table, name in ((left, one), (right, other))]  # fmt: skip
        for w in range(count):
            a, b = (SortKey(limbs[w], null=missing if w == 0 else None) for limbs, missing in sides)
            yield a, b

    async def _order(self, table: SharedTable, name: str, down: bool, first: bool) -> list[SortKey]:
        if name in table.columns:
            return [SortKey(await numbers_to_words(table.numbers(name), self.trio), descending=down)]
        words = [table.words(one) for one in self._names(name)[:-1]]
        missing = table.words(f"{name}?").inverted()
        return [SortKey(one, down, missing if w == 0 else None, first) for w, one in enumerate(words)]

    # ------------------------------------------------------------------ groups

    async def _group(self, table: SharedTable) -> SharedTable:
        """A row for each group: its keys and the aggregates."""
        plan = self.plan
        first = self._aggregates()
        keys = [column.name for column in plan.key_columns]
        if plan.distinct:
            table = await self._grouped(table, [*keys, plan.distinct], first)
            merged = {name: RowAggregate("sum", name) if one.operation in ("count", "sum") else RowAggregate(one.operation, name, self._there(name)) for name, one in first.items()}  # fmt: skip
            for k, one in enumerate(plan.computed):
                if one.distinct:
                    merged[f"a{k}"] = RowAggregate("count", where=f"{plan.distinct}?")
            return await self._grouped(table, keys, merged)
        return await self._grouped(table, keys, first)

    @staticmethod
    def _there(name: str) -> str | None:
        """The bits of rows that have a value, beside a least or largest word."""
        return f"{name.removesuffix('.0')}?" if name.endswith(".0") else None

    def _aggregates(self) -> dict[str, RowAggregate]:
        """What becomes of a group's rows, by the name that it has in the answer."""
        made = {}
        for k, one in enumerate(self.plan.computed):
            if one.distinct:
                continue
            if one.least:
                operation: Any = one.operation
                made[f"a{k}.0"] = RowAggregate(operation, f"{one.least}.0", f"{one.least}?")
                made[f"a{k}?"] = RowAggregate("max", f"{one.least}?")
                continue
            made[f"a{k}"] = RowAggregate("sum", one.count) if one.count else RowAggregate("count")
            if one.sum:
                made[f"a{k}s"] = RowAggregate("sum", one.sum)
        return made

    async def _grouped(self, table: SharedTable, columns: Sequence[str], aggregates: Mapping[str, RowAggregate]) -> SharedTable:  # fmt: skip
        if not columns:
            return await total_rows(table, aggregates)
        keys = [key for name in columns for key in await self._order(table, name, down=False, first=False)]
        names = [one for name in dict.fromkeys(columns) for one in self._names(name)]
        return await group_rows(table, keys, aggregates, keep=names)

    # ------------------------------------------------------------------ conditions

    async def _truth(self, table: SharedTable, node: Any) -> tuple[SharedWords, SharedWords]:
        """Where a condition is true, and where it is false: in neither it is NULL."""
        from sqlglot import exp

        if isinstance(node, exp.Paren):
            return await self._truth(table, node.this)
        if isinstance(node, exp.Not):
            true, false = await self._truth(table, node.this)
            return false, true
        if isinstance(node, exp.And | exp.Or):
            (a, not_a), (b, not_b) = await self._truth(table, node.left), await self._truth(table, node.right)
            if isinstance(node, exp.Or):
                a, not_a, b, not_b = not_a, a, not_b, b
            both, neither = await self.trio.conjoin_all([(a, b), (not_a.inverted(), not_b.inverted())])
            found = both, neither.inverted()
            return found[::-1] if isinstance(node, exp.Or) else found
        if isinstance(node, exp.Is):
            there = table.words(f"{self.plan.operands[node.this.sql('duckdb')]}?")
            return there.inverted(), there
        if isinstance(node, exp.Between):
            low = exp.GTE(this=node.this, expression=node.args["low"])
            high = exp.LTE(this=node.this, expression=node.args["high"])
            return await self._truth(table, exp.And(this=low, expression=high))
        return await self._compared(table, node)

    async def _compared(self, table: SharedTable, node: Any) -> tuple[SharedWords, SharedWords]:
        from sqlglot import exp

        x, y = node.left, node.right
        if isinstance(node, exp.GT | exp.LTE):
            x, y = y, x
        equal, turned = isinstance(node, exp.EQ | exp.NEQ), isinstance(node, exp.NEQ | exp.LTE | exp.GTE)
        found, there = await self._compare(table, x, y, equal=equal)
        found = found.inverted() if turned else found
        true, false = await self.trio.conjoin_all([(found, there), (found.inverted(), there)])
        return true, false

    async def _compare(self, table: SharedTable, x: Any, y: Any, *, equal: bool) -> tuple[SharedWords, SharedWords]:
        """Whether ``x = y`` or ``x < y``, and whether both are there."""
        plain = [one.sql("duckdb") in self.plan.operands for one in (x, y)]
        if not all(plain):
            (a, here), (b, there) = [await self._number(table, one) for one in (x, y)]
            less = await negative_bits(a - b, self.trio)
            if equal:
                more = await negative_bits(b - a, self.trio)
                less = await self.trio.conjoin(less.inverted(), more.inverted())
            return less, await self.trio.conjoin(here, there)
        sides = [self.plan.operands[one.sql("duckdb")] for one in (x, y)]
        count = max(self._widths.get(one, 1) if isinstance(one, str) else _constant_words(one) for one in sides)
        limbs, bits = zip(*(self._operand(table, one, count) for one in sides), strict=True)
        there = await self.trio.conjoin(*bits)
        one, other = (pack_fields(list(side)) for side in limbs)
        if equal:
            return await match_limbs(one, other), there
        return await compare_limbs([interleave(limb) for limb in one], [interleave(limb) for limb in other]), there

    def _operand(self, table: SharedTable, operand: Any, count: int) -> tuple[list[SharedWords], SharedWords]:
        if isinstance(operand, str):
            return self._limbs(table, operand, count), table.words(f"{operand}?")
        words, there = _constant(operand, count)
        n = len(table)
        limbs = [self.trio.constant(np.full(n, word, dtype=np.uint64), 64) for word in words]
        return limbs, self.trio.constant(np.full(n, there, dtype=np.uint8), 1)

    async def _number(self, table: SharedTable, node: Any) -> tuple[Any, SharedWords]:
        """A whole number of a row, and whether it is there."""
        from sqlglot import exp

        operand = self.plan.operands.get(node.sql("duckdb"))
        if operand is not None:
            (words,), there = self._operand(table, operand, 1)
            return await words_to_numbers(words) - np.array(_TOP, dtype=np.uint64), there
        if isinstance(node, exp.Paren):
            return await self._number(table, node.this)
        (a, here), (b, there) = [await self._number(table, one) for one in (node.left, node.right)]
        return a - b if isinstance(node, exp.Sub) else a + b, await self.trio.conjoin(here, there)


def _constant_words(operand: tuple[ColumnCode, Any]) -> int:
    code, value = operand
    return max(1, -(-len(str(value or "").encode()) // 8)) if code.kind == "text" else 1


def _constant(operand: tuple[ColumnCode, Any], count: int) -> tuple[list[int], int]:
    """The words of a constant, and 1 unless it is NULL."""
    pyarrow = need("pyarrow", "sql", "shares")
    code, value = operand
    kind = {"text": pyarrow.string(), "real": pyarrow.float64(), "whole": pyarrow.int64()}[code.kind]
    words, there = code.encode(pyarrow.chunked_array([[value]], kind), count)
    return [int(word[0]) for word in words] + [0] * (count - len(words)), int(there[0])


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class Smcql(Strategy):
    """Joins, groups and orders of rows of different sites, under shares at three parties."""

    name: ClassVar[str] = "smcql"
    shares_rows: ClassVar[bool] = True

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
        """A plan; see `atoll.query.secure_plan`."""
        return make_secure_plan(statement, catalog, policy)

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse fewer than three parties."""
        if sites < 3 and not (sites == 2 and helper):
            raise CompositionError(f"{sites} sites, and shares need three parties", where="smcql", remedy="ask for the strategy smcql by its name: then a helper is the third beside two sites")  # fmt: skip

    def steps(self, plan: SecurePlan) -> Sequence[PlanStep]:
        """The steps of a plan, in order."""
        found = [PlanStep("each site", "plain", leaf.text) for leaf in plan.leaves]
        found.append(PlanStep("each site", "shared", "share these rows, filled up to a power of two, among three parties"))  # fmt: skip
        for leaf, pairs in zip(plan.leaves[1:], plan.joins, strict=True):
            on = " and ".join(f"{plan.column(one).text} = {plan.column(other).text}" for one, other in pairs)
            found.append(PlanStep("three parties", "shared", f"join {leaf.name} on {on}"))
        found += [PlanStep("three parties", "shared", f"keep rows where {node.sql('duckdb')}") for node in plan.conditions]  # fmt: skip
        if plan.grouped:
            keys = f"group by {', '.join(one.text for one in plan.keys)}" if plan.keys else "one group"
            found.append(PlanStep("three parties", "shared", ": ".join(part for part in (keys, ", ".join(one.text for one in plan.aggregates)) if part)))  # fmt: skip
        if plan.limit is not None:
            found.append(PlanStep("three parties", "shared", f"sort, and keep the first {plan.limit}"))
        found.append(PlanStep("coordinator", "plain", plan.finish))
        return found

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        shared = "at most one of the three parties is curious, and none departs from the protocol"
        tables = ", ".join(leaf.name if leaf.name != "all" else ", ".join(plan.sources) for leaf in plan.leaves)
        who = f"the {'groups' if plan.grouped else 'rows'} of the answer"
        if plan.limit is not None:
            who = f"the first {plan.limit} of {who}"
        made = [Exposure("coordinator, three parties", f"how many rows of {tables} each site has, up to the next power of two", "", "sizes")]  # fmt: skip
        if any(column.code.kind == "text" for leaf in plan.leaves for column in leaf.columns):
            made.append(Exposure("coordinator, three parties", "the length of the longest text of each column that is shared, in steps of 8 bytes", "", "sizes"))  # fmt: skip
        return [*made, Exposure("three parties", "nothing else", shared), Exposure("coordinator", f"{who}, also those that HAVING leaves out", shared, "sum"), Exposure("analyst", "the answer", "", "sum")]  # fmt: skip

    def predict_cost(self, plan: SecurePlan, sites: int, groups: Sequence[Sequence[str | None]] = ((),)) -> float:
        """Bytes for 1,024 rows at each site: shares of the rows, and for each join and group a sort, 16 bytes a comparison and party, and eight passes over the rows."""
        del groups
        n = 1024.0 * sites
        width = sum(9.0 for leaf in plan.leaves for _ in leaf.columns) + 1
        sorts = 1 + 3 * len(plan.joins) + bool(plan.distinct) + (plan.limit is not None)
        return float(2 * n * width + sorts * 3 * n * (16 * 1.2 * np.log2(n) + 8 * width))

    async def run(self, fed: Federation, plan: SecurePlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        names = list(fed.parties.names)
        told = await fed.ask_all(fed.parties, measure_rows, message)
        known = dict(zip(told.senders.names, told.values, strict=True))
        sizes = {name: [int(one) for one in known[name]["rows"]] for name in names}
        widths: dict[str, int] = {}
        for one in known.values():
            for column, count in one["words"].items():
                widths[str(column)] = max(widths.get(str(column), 1), min(int(count), LONGEST))
        _require_size(sizes, plan)
        parties = names[:3] if len(names) > 2 else [*names, HELPER]
        request = {"message": dict(message), "sizes": sizes, "widths": widths}
        roles = {name: (name, compute_shares.with_args(request=request, parties=parties, me=name) if name in parties else share_rows.with_args(request=request, parties=parties)) for name in dict.fromkeys([*parties, *names])}  # fmt: skip
        got = await fed.session(roles)
        first = got[parties[0]]
        layout = {str(name): int(bits) or None for name, bits in first["layout"].items()}
        found = join_parts({party: got[party]["part"] for party in parties[:2]}, layout=layout, rows=int(first["rows"]))  # fmt: skip
        rows = finish_cells(plan, _cells(plan, found, widths))
        return QueryAnswer(plan.statement.columns, plan.statement.types, rows, rounds=2)


def _require_size(sizes: Mapping[str, Sequence[int]], plan: SecurePlan) -> None:
    totals = [sum(own) for own in zip(*sizes.values(), strict=True)]
    pairs = int(np.prod(totals, dtype=object)) if len(totals) > 1 else max(totals)
    if pairs > _MOST:
        shown = " x ".join(f"{total:,}" for total in totals)
        raise CompositionError(f"{shown} rows, filled up, and parties hold {_MOST:,}", where="smcql", remedy="let sites declare join: local where it is so, or ask for fewer rows by a view")  # fmt: skip


def _cells(plan: SecurePlan, found: Mapping[str, Any], widths: Mapping[str, int]) -> list[tuple[Any, ...]]:
    """Keys and aggregates as text, a row for each group."""
    columns: list[list[Any]] = []
    for column in plan.key_columns:
        words = [found[f"{column.name}.{w}"].astype(np.uint64) for w in range(widths.get(column.name, 1))]
        columns.append(column.code.decode(words, found[f"{column.name}?"]))
    for k, (one, computed) in enumerate(zip(plan.aggregates, plan.computed, strict=True)):
        if computed.least:
            columns.append(computed.code.decode([found[f"a{k}.0"].astype(np.uint64)], found[f"a{k}?"]))
            continue
        counts = [int(value) for value in found[f"a{k}"]]
        sums = [computed.code.value(int(value)) for value in found[f"a{k}s"]] if computed.sum else [Fraction(0)] * len(counts)  # fmt: skip
        columns.append([one.finish([n, total]) for n, total in zip(counts, sums, strict=True)])
    return list(zip(*columns, strict=True))
