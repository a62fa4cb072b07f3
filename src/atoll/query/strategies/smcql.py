"""``smcql``: statements over rows of different sites, under shares at three parties, one of which may be curious (after Bater et al. 2017, with sharing in place of garbled circuits).

1. Each site computes the leaves of the plan from its own rows (`atoll.query.secure.plan`), and says how many rows their tables have, rounded up to a power of two.
2. All roles compare a digest of the statement, the policy, the owners and their sizes: a coordinator cannot ask them for different things.
   Sites share their rows among three parties: the first three sites, or two sites and a helper. Filling rows hide how many there are.
3. The parties join, filter, group and sort (`atoll.query.secure.tables`); what each sees depends on these sizes alone (`atoll.secure.tables`).
   Where policies make the column public by which rows are joined, grouped or ranked, they work slice by slice, and slices of one site it computes alone (`atoll.query.slices`).
4. The parties hand the rows of the answer to the coordinator, which puts two parts of three together, and computes what is written around the aggregates.

With a ``min_count`` the parties count the units behind each group and hand out those of enough (`atoll.query.secure.units`). Before its rows leave, a site writes down which of its units they are, in the record
that it has for masked sums too, and refuses units that differ from those of an earlier answer by few. What sites and parties do for this is in `atoll.query.strategies.shared_rows`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.exposure import Exposure
from atoll.core.sealing import sealed_nbytes
from atoll.secure.tables import join_parts

from ..column_codes import LONGEST
from ..local import message_of
from ..secure.costs import WITHHELD, RehearsedCuts, RehearsedKeys, predict_cost
from ..secure.limits.column_bounds import tell_bounds
from ..secure.operators import (
    Expanded,
    Filtered,
    GroupedRows,
    LeafRows,
    NearPairs,
    SecurePlan,
    prune_held,
    walk_operators,
)
from ..slices import SlicedRows, SliceSizes, sliced_rows
from .shared_rows import DIGEST, compute_shares, list_bases, measure_rows, planner_of, require_size, share_rows
from .strategy import CONTACT_NBYTES, ROLE_NBYTES, PlanStep, QueryAnswer, Strategy
from .sums import finish_cells

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..policy import QueryPolicy
    from ..statement import Catalog, SqlStatement

__all__ = ["Smcql", "divide_slices", "read_answer", "read_cells", "shown_operators"]

_GUESSED = 256
MODES = ("auto", "shares", "garbled")
SLICES = ("public", "none")
JOINS = ("hidden", "told")


def _told_sizes(plan: SecurePlan) -> list[Exposure]:
    """What the sizes of tables, texts and numbers give away."""
    tables = " and of ".join(leaf.name for leaf in plan.leaves)
    made = [Exposure("coordinator, three parties", f"how many rows of {tables} each site has, up to the next power of two", "", "sizes")]  # fmt: skip
    return [*made, *tell_bounds(plan)]


@dataclass(frozen=True)
class Smcql(Strategy):
    """Joins, groups and orders of rows of different sites, under shares at three parties, or of two owners by a garbled circuit.

    Args:
        mode: ``"shares"``, ``"garbled"``, or ``"auto"``: garbled where there are two sites and no helper.
        slices: ``"public"``: the parties work slice by slice where public columns are compared; or ``"none"``, which says no value of them.
        joins: ``"hidden"``: joins are as large as policies and sizes let them be; ``"told"``: the parties open how many pairs they have, and work on no row more. It has no slices.
    """

    name: ClassVar[str] = "smcql"
    shares_rows: ClassVar[bool] = True
    takes_helper: ClassVar[bool] = True
    form: ClassVar[str] = "shared"
    """What rows are on their way, for EXPLAIN."""
    contacts: ClassVar[int] = 2
    """How often the coordinator asks the sites."""
    offers: ClassVar[frozenset[str]] = frozenset({"matching"})

    ways: ClassVar[dict[str, type[Smcql]]] = {}
    """Mode -> the class that answers in its way, where that is another one; its module puts it in."""
    variants: ClassVar[tuple[str, ...]] = ("mode=garbled",)
    mode: str = "auto"
    slices: str = "public"
    joins: str = "hidden"

    def __post_init__(self) -> None:
        if self.slices not in SLICES:
            raise ConfigError(f"slices={self.slices}", where="smcql", remedy=f"use slices={' or '.join(SLICES)}")
        if self.joins not in JOINS:
            raise ConfigError(f"joins={self.joins}", where="smcql", remedy=f"use joins={' or '.join(JOINS)}")
        if self.mode not in MODES:
            raise ConfigError(f"mode={self.mode}", where="smcql", remedy=f"use mode={', '.join(MODES)}")

    def for_parties(self, sites: int, *, helper: bool) -> Strategy:
        """The way of the mode: shares, or a garbled circuit."""
        garbled = self.mode == "garbled" or (self.mode == "auto" and sites == 2 and not helper)
        if not garbled or type(self) is not Smcql:
            return self
        if "garbled" not in self.ways:  # a way registers itself; like a strategy, its module is found by its name alone
            importlib.import_module(f"{__package__}.garbled")
        return self.ways["garbled"](self.mode, self.slices, self.joins)

    def wants_helper(self, sites: int) -> bool:
        """Two sites that garble need none."""
        return self.mode != "garbled" and super().wants_helper(sites)

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
        """A plan; see `atoll.query.secure.plan`, and `atoll.query.slices`."""
        return planner_of({"strategy": self.told()})(statement, catalog, policy)

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse fewer than three parties."""
        if sites < 3 and not (sites == 2 and helper):
            raise CompositionError(f"{sites} sites, and shares need three parties", where=self.name, remedy=f"ask for the strategy {self.name} by its name: then a helper is the third beside two sites, between organisations with helper: true")  # fmt: skip

    def steps(self, plan: SecurePlan) -> Sequence[PlanStep]:
        """The steps of a plan, in order."""
        found = [PlanStep("each site", "plain", leaf.text) for leaf in prune_held(plan).leaves]
        sliced = sliced_rows(plan)
        if sliced is not None:
            found += self.slice_steps(sliced, "among three parties")
        elif found:
            found.append(PlanStep("each site", "shared", "share these rows, filled up to a power of two, among three parties"))  # fmt: skip
        found += [PlanStep("three parties", "shared", one.what) for one in shown_operators(plan)]
        return [*found, *([PlanStep("coordinator", "plain", plan.finish)] if plan.finish else [])]

    def slice_steps(self, sliced: SlicedRows, where: str) -> list[PlanStep]:
        """What each site does where parties work in slices; ``where`` says whom it shares its rows with."""
        values = list_bases(sliced.bases)
        whole = [one for one in dict.fromkeys(walk_operators(sliced.source)) if one.what and not isinstance(one, LeafRows)]  # fmt: skip
        told = [
            ("plain", f"name the values of {values}, and how many rows each has, up to a power of two"),
            ("plain", f"of the values that it alone has: {'; '.join(one.what for one in whole)}"),
            (self.form, f"share this, and its rows of other values, slice by slice of {values}, {where}"),
        ]
        return [PlanStep("each site", form, what) for form, what in told]

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        shared = "at most one of the three parties is curious, and none departs from the protocol"
        least = plan.policy.min_count
        who = f"the {'groups' if plan.grouped else 'rows'} of the answer"
        if plan.limit is not None:
            who = f"the first {plan.limit} of {who}"
        made = _told_sizes(plan)
        sliced = sliced_rows(plan)
        if sliced is not None:
            made.insert(0, Exposure("coordinator, every site", f"the values of {list_bases(sliced.bases)} at each site, and how many rows each has, up to the next power of two", "these columns are public", "keys"))  # fmt: skip
        claims = sorted({f"{table}.{column}" for leaf in plan.leaves for table, column, _ in leaf.claims})
        if claims:
            made.append(Exposure("three parties", f"whether the policies are right about how many rows have one value of {', '.join(claims)}", shared, "count"))  # fmt: skip
        made += [Exposure("three parties", one.shows, shared, "count") for one in walk_operators(plan.root) if one.shows]  # fmt: skip
        for one in walk_operators(plan.root):
            if isinstance(one, NearPairs):
                who += f", and pairs that are up to {one.slack:g} farther away, which it leaves out; of all of these the columns that the statement compares or shows"
        if plan.grouped and " WHERE " in plan.finish:
            who += ", also those that HAVING leaves out"
        if least > 1:
            who += f": of those that {least} units or more stand behind, of each table"
        found = [*made, Exposure("three parties", "nothing else", shared), Exposure("coordinator", who, shared, "sum")]
        if plan.withheld is not None:
            found.append(Exposure("coordinator, analyst", f"how many groups of fewer than {least} units there are, if {least} units or more stand behind them together", shared, "count"))  # fmt: skip
        seen = (
            ""
            if least == 1
            else "each site compares the rows of its own that it shares with those behind its earlier answers"
        )
        if seen and not _is_recorded(plan):
            seen += (
                "; which of them a join, a subquery or a group of groups leaves out or puts together, it does not see"
            )
        return [*found, Exposure("analyst", "the answer", seen, "sum")]

    def predict_cost(self, plan: SecurePlan, sites: int, groups: Sequence[Sequence[str | None]] = ((),)) -> float:
        """Bytes for 256 rows of each table at each site, as long as nobody knows how many there are; of all pairs of rows, if a join has them."""
        del groups
        return self.predict_plan(plan, sites)[0]

    def predict_rounds(self, plan: SecurePlan, sites: int) -> int:
        """Messages that follow one another, for 256 rows of each table at each site."""
        return self.predict_plan(plan, sites)[1]

    def predict_plan(self, plan: SecurePlan, sites: int) -> tuple[float, int]:
        """Bytes and rounds for 256 rows of each table at each site."""
        sizes, sliced = self.guess_sizes(plan, sites), sliced_rows(plan)
        slices = None if sliced is None else SliceSizes.guess(sliced, list(sizes))
        sizes = sizes if slices is None else slices.with_rows(sizes)
        return self._cost(plan, sizes, {}, self.cuts_before(plan, sizes), slices=slices, orders=1)

    @staticmethod
    def guess_sizes(plan: SecurePlan, sites: int) -> dict[str, list[int]]:
        """Rows of each leaf at each site, as long as nobody has told them."""
        return {f"site {k}": [_GUESSED if leaf.size else 1 for leaf in plan.leaves] for k in range(max(2, sites))}

    def predict_answer(self, plan: SecurePlan, sites: int, answer: QueryAnswer) -> float:
        """Bytes for the sizes that the sites told."""
        return self.predict_cost(plan, sites) if answer.expected is None else answer.expected

    def with_cost(self, plan: SecurePlan, answer: QueryAnswer, slices: SliceSizes | None = None) -> QueryAnswer:
        """The answer with the bytes and rounds that its sizes let expect."""
        expected, rounds = self._cost(plan, answer.sizes, answer.widths, self.cuts_after(plan, answer), answer.joins, answer.noted, slices)  # fmt: skip
        return replace(answer, expected=expected, rounds=rounds)

    def _cost(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], cuts: RehearsedCuts | None, joins: Sequence[float] = (), noted: Mapping[str, Sequence[int]] | None = None, slices: SliceSizes | None = None, orders: int = 4) -> tuple[float, int]:  # fmt: skip
        names, parties = list(sizes), self.choose_parties(plan, list(sizes))
        asked = float(M.nbytes(message_of(plan.statement, plan.catalog, plan.policy, names[0], self)))
        cost = predict_cost(plan, sizes, widths, parties, cuts, self.keys_read(plan, parties, joins), noted, slices, orders)  # fmt: skip
        roles = len({*sizes, *parties})
        words = float(M.nbytes({"sizes": {name: list(own) for name, own in sizes.items()}, "widths": dict(widths), **({} if slices is None else {"slices": slices.told()})}))  # fmt: skip
        agreed = roles * (roles - 1) * 2 * sealed_nbytes(M.nbytes(np.zeros(DIGEST, np.uint8)))
        nbytes = agreed + cost.nbytes + cost.outward + len(sizes) * (asked + 2 * CONTACT_NBYTES) + roles * (asked + words + ROLE_NBYTES) + self.further_bytes(plan, sizes, asked)  # fmt: skip
        return nbytes, self.contacts + 1 + math.ceil(cost.messages)  # and one for the digests

    def cuts_before(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]]) -> RehearsedCuts | None:
        """Tables that the parties will cut, as far as anybody can tell; none."""
        del plan, sizes
        return None

    def cuts_after(self, plan: SecurePlan, answer: QueryAnswer) -> RehearsedCuts | None:
        """Tables that the parties have cut; none."""
        del plan, answer
        return None

    def keys_read(self, plan: SecurePlan, parties: Sequence[str], joins: Sequence[float]) -> RehearsedKeys | None:
        """Tables whose keys a party reads; none. ``joins`` as in `QueryAnswer`."""
        del plan, parties, joins
        return None

    def further_bytes(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], asked: float) -> float:
        """Bytes beside those of the plan; none."""
        del plan, sizes, asked
        return 0.0

    async def run(self, fed: Federation, plan: SecurePlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        sizes, widths, told = await self.measure(fed, message)
        slices, more = divide_slices(plan, sizes, told)
        request = {"message": dict(message), "sizes": sizes, "widths": widths, **more}
        require_size(plan, request["sizes"], slices=slices)
        made, _ = await self.open_rows(fed, plan, request, compute_shares, share_rows)
        return self.with_cost(plan, made, slices)

    @staticmethod
    async def measure(fed: Federation, message: Mapping[str, Any], task: Any = measure_rows) -> tuple[dict[str, list[int]], dict[str, int], dict[str, Any]]:  # fmt: skip
        """The sizes of the leaves at each site, the words of each column of text, and all that the sites told.

        Args:
            fed: the sites.
            message: the request.
            task: what asks for them.
        """
        names = list(fed.parties.names)
        told = await fed.ask_all(fed.parties, task, message)
        known = dict(zip(told.senders.names, told.values, strict=True))
        missing = next((name for name in names if name not in known), None)
        if missing is not None:
            why = told.rejected.get(missing) or told.errors.get(missing) or "it did not answer"
            raise DataError(f"{missing} does not say how many rows it has: {why}", where="shares", remedy="start all sites, and ask within what they allow")  # fmt: skip
        sizes = {name: [int(one) for one in known[name]["rows"]] for name in names}
        widths: dict[str, int] = {}
        for one in known.values():
            for column, count in one["words"].items():
                widths[str(column)] = max(widths.get(str(column), 1), min(int(count), LONGEST))
        return sizes, widths, known

    async def open_rows(self, fed: Federation, plan: SecurePlan, request: Mapping[str, Any], compute: Any, share: Any) -> tuple[QueryAnswer, Any]:  # fmt: skip
        """The answer, and what the first party told beside its part of the rows.

        Args:
            fed: the sites.
            plan: the plan.
            request: what is asked: the message, sizes and widths.
            compute: the task of the three parties.
            share: the task of other sites.
        """
        names = list(request["sizes"])
        parties = self.choose_parties(plan, names)
        roles = {name: (name, compute.with_args(request=request, parties=parties, me=name) if name in parties else share.with_args(request=request, parties=parties)) for name in dict.fromkeys([*parties, *names])}  # fmt: skip
        got = await fed.session(roles)
        first = got[parties[0]]
        layout = {str(name): int(bits) or None for name, bits in first["layout"].items()}
        found = join_parts({party: got[party]["part"] for party in parties[:2]}, layout=layout, rows=int(first["rows"]))  # fmt: skip
        few = None if plan.withheld is None else join_parts({party: got[party]["few"] for party in parties[:2]}, layout={WITHHELD: None}, rows=1)  # fmt: skip
        rows, withheld, values = read_answer(plan, found, few)
        noted = {str(name): [int(one) for one in sizes] for name, sizes in first["noted"].items()}
        compared = sum(one.steps for one in walk_operators(plan.root) if isinstance(one, NearPairs))
        made = QueryAnswer(plan.statement.columns, plan.statement.types, rows, withheld, values, comparisons=compared, sizes=request["sizes"], widths=request["widths"], noted=noted)  # fmt: skip
        return made, first


def _is_recorded(plan: SecurePlan) -> bool:
    """Whether parties only add up, by groups that sites know, what sites chose."""
    made = dict.fromkeys(walk_operators(plan.root))
    chosen = (GroupedRows, LeafRows, Expanded, Filtered)
    inner = sum(isinstance(one, GroupedRows) and bool(one.what) for one in made)
    return len(plan.leaves) == 1 and inner < 2 and all(isinstance(one, chosen) for one in made)


def divide_slices(plan: SecurePlan, sizes: Mapping[str, Sequence[int]], told: Mapping[str, Any]) -> tuple[SliceSizes | None, dict[str, Any]]:  # fmt: skip
    """The slices that sites have told, and what a request says of them beside its widths: sizes too; ``None`` and nothing for a plan without."""
    sliced = sliced_rows(plan)
    if sliced is None:
        return None, {}
    slices = SliceSizes.of_replies(sliced, {name: told[name]["slices"] for name in sizes})
    return slices, {"sizes": slices.with_rows(sizes), "slices": slices.told()}


def shown_operators(plan: SecurePlan) -> list[Any]:
    """The operators that EXPLAIN shows."""
    return [one for one in dict.fromkeys(walk_operators(prune_held(plan).root)) if one.what and not isinstance(one, LeafRows)]  # fmt: skip


def read_answer(plan: SecurePlan, found: Mapping[str, Any], few: Mapping[str, Any] | None = None) -> tuple[list[tuple[Any, ...]], int | None, int]:  # fmt: skip
    """The rows of the answer, how many groups are withheld (``None`` for none or few), and how many aggregates.

    Args:
        plan: the plan.
        found: the rows that were opened, by column.
        few: the number of groups that are left out, if any can be.
    """
    cells, values = read_cells(plan, found)
    rows = finish_cells(plan, cells)
    if plan.policy.min_count == 1:
        return rows, 0, values
    if few is None:  # one group, shown or not
        return rows, 1 - len(cells), values
    return rows, int(few[WITHHELD][0]) if len(few[WITHHELD]) else None, values


def read_cells(plan: SecurePlan, found: Mapping[str, Any]) -> tuple[list[tuple[Any, ...]], int]:
    """Keys and aggregates as text, a row for each group; and how many aggregates are withheld."""
    withheld = 0
    columns = [column.code.decode(_words(found, column.name), found[f"{column.name}?"]) for column in plan.key_columns]
    for one in plan.outputs:
        if not one.parts[0].number:
            (part,) = one.parts
            columns.append(part.code.decode(_words(found, part.name), found[f"{part.name}?"]))
            continue
        there = found[f"{one.parts[0].name}?"] if one.guarded else np.ones(len(found[one.parts[0].name]))
        withheld += int((there == 0).sum())
        totals = [[part.code.value(int(value)) for value in found[part.name]] for part in one.parts]
        columns.append([one.aggregate.finish([int(n), *rest]) if told else None for told, n, *rest in zip(there, *totals, strict=True)])  # fmt: skip
    cells = list(zip(*columns, strict=True))
    if plan.copies is not None:
        cells = [cell for cell, count in zip(cells, found[plan.copies.name], strict=True) for _ in range(int(count))]
    return cells, withheld


def _words(found: Mapping[str, Any], name: str) -> list[Any]:
    words: list[Any] = []
    while f"{name}.{len(words)}" in found:
        words.append(found[f"{name}.{len(words)}"].astype(np.uint64))
    return words
