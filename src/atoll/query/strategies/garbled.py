"""`Smcql` of two owners without a helper: the plan of smcql as one garbled circuit, as SMCQL had it (Bater et al. 2017).

What sites compute by themselves, what they tell beforehand and what they write down is that of `atoll.query.strategies.shared_rows`. In place of sharing rows among three parties, the first site garbles the circuit of the
plan (`atoll.query.circuits.wires`) and the second one evaluates it (`atoll.secure.garbled`). Rows are sorted by networks, in place of SMCQL's oblivious memory. Nobody but the coordinator reads the
result: the garbler gives it a word of both labels of each bit, the evaluator one of the label that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import message as M
from atoll.core.errors import CompositionError, LetterError
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.secure.garbled import GateCounter, Gates, begin_garbling, message_sizes
from atoll.secure.garbled.garbling import Garbler

from ..circuits.owner_rows import measure_bits, read_wires
from ..circuits.slice_wires import count_gates, release_answer
from ..local import message_of, plan_of, silo_of
from ..secure.costs import RehearsedCuts, measure_extents, relayed_nbytes
from ..secure.extents import Extents, too_many_rows
from ..secure.limits.column_bounds import require_bounds
from ..secure.near import refuse_near
from ..secure.operators import MatchedRows, SecurePlan, walk_operators
from ..secure.plan import make_secure_plan
from ..slices import HERE, make_sliced_plan, sliced_rows
from .shared_rows import DIGEST, LocalRows, compare_requests, local_rows, own_result, own_rows, promised_of, slices_of
from .smcql import Smcql, divide_slices, read_answer, shown_operators
from .strategy import CONTACT_NBYTES, ROLE_NBYTES, PlanStep, QueryAnswer, promise_min_count, read_strategy

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..policy import QueryPolicy
    from ..slices import SliceSizes
    from ..statement import Catalog, SqlStatement

__all__ = [
    "MOST_ROWS",
    "GarbledSmcql",
    "OwnerAnswer",
    "answer_on_wires",
    "garble_answer",
    "leaves_of",
    "measure_columns",
    "measure_local",
]

MOST_ROWS = 1 << 15
_HELP = "let a helper take part: helper: true"


# ---------------------------------------------------------------- at an owner


def leaves_of(island: Island, request: Any, by: str = "smcql", make: Callable[..., SecurePlan] = make_secure_plan) -> Callable[[str, int], tuple[int, Mapping[str, Any]] | None]:  # fmt: skip
    """This site's rows of each leaf, and how many they are, as `share_leaves` takes them; nothing of other owners."""

    def own(owner: str, place: int) -> tuple[int, Mapping[str, Any]] | None:
        if owner != island.name:
            return None
        rows = own_rows(island, request, place, make=make, by=by)
        placed = HERE in rows  # as many as its slices have, some of which are none
        return len(rows[HERE]) if placed else local_rows(island, request["message"], fresh=False, make=make, by=by).rows[place].num_rows, rows  # fmt: skip

    return own


async def answer_on_wires(plan: SecurePlan, gates: Gates, island: Island, request: Any) -> dict[str, Any]:
    """Compute the answer as one of the owners; return this owner's part of its rows.

    Args:
        plan: the plan, as this owner makes it.
        gates: this owner's side.
        island: its site.
        request: what is asked: the message, sizes, widths and bits.
    """
    make, slices = planner_of_owners(request["message"]), slices_of(plan, request)

    def result(owner: str) -> Mapping[str, Any] | None:
        return own_result(island, request, slices, make, "smcql") if slices is not None and owner == island.name else None  # fmt: skip

    released = await release_answer(plan, gates, request["sizes"], request["widths"], request["bits"], leaves_of(island, request, make=make), slices, result)  # fmt: skip
    parts = [await gates.hand_out(records) for records, _ in released]
    return {"parts": parts, "layouts": [dict(layout) for _, layout in released], "rows": [len(x[0]) for x, _ in released]}  # fmt: skip


@task(discloses=promise_min_count)
def measure_columns(island: Any, message: Any) -> Any:
    """What `measure_rows` tells, and how many bits the largest number of each column of whole numbers has, in steps of 8: circuits cost by the bit."""
    return measure_local(local_rows(island, message, fresh=True, make=planner_of_owners(message)), island, message)


def planner_of_owners(message: Mapping[str, Any]) -> Callable[..., SecurePlan]:
    """What makes the plan of two owners for a request: in slices, if its strategy says so."""
    return make_sliced_plan if read_strategy(message).told().get("slices") == "public" else make_secure_plan


def measure_local(kept: LocalRows, island: Any, message: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of the rows at a site, as `measure_columns` tells them; the site writes down that they leave."""
    kept.tell_sizes(island, message, "the bits of the largest number of each column, in steps of 8")
    bits: dict[str, int] = {}
    for place, leaf in enumerate(kept.leaves):
        if leaf is not None:
            bits |= measure_bits(leaf, kept.encode(place, kept.widths(), Extents([1] * len(kept.leaves))), strict=kept.plan.policy.min_count > 1)  # fmt: skip
    return {"rows": kept.sizes, "words": kept.widths(), "bits": bits, **({"slices": kept.slices} if kept.slices else {})}  # fmt: skip


@task(discloses=promised_of)
async def garble_answer(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Garble or evaluate the circuit of a statement; return this owner's part of the answer's rows."""
    make = planner_of_owners(request["message"])
    plan = plan_of(silo_of(island.data), request["message"], make, "smcql")
    await compare_requests(island, peers, plan, request, parties, me, make)
    async with await begin_garbling(island.secret, peers, me, garbler=parties[0], evaluator=parties[1]) as gates:
        return await answer_on_wires(plan, gates, island, request)


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class OwnerAnswer:
    """Rows of an answer, of the parts that all owners hand out.

    Attributes:
        parts: of each table what each owner gave, in the order of the owners.
        layouts: bits of each column of each table.
        rows: rows of each table.
    """

    parts: list[list[Any]]
    layouts: list[dict[str, int]]
    rows: list[int]

    @classmethod
    def of_replies(cls, told: Sequence[Mapping[str, Any]], where: str) -> OwnerAnswer:
        """Put replies together.

        Raises:
            LetterError: owners do not agree on the form of the answer.
        """
        layouts = [[{str(name): int(bits) for name, bits in one.items()} for one in reply["layouts"]] for reply in told]
        rows = [[int(one) for one in reply["rows"]] for reply in told]
        if any([list(one.items()) for one in layout] != [list(one.items()) for one in layouts[0]] for layout in layouts) or any(one != rows[0] for one in rows):  # fmt: skip
            raise LetterError("the owners give rows of different forms", where=where, remedy="do not use any result of this computation: an owner does not follow the protocol")  # fmt: skip
        return cls([list(one) for one in zip(*(reply["parts"] for reply in told), strict=True)], layouts[0], rows[0])

    def read(self, plan: SecurePlan, gates: type[Gates]) -> list[dict[str, Any]]:
        """The rows that count, by column, of each table.

        Raises:
            LetterError: a part was altered.
        """
        found = []
        for parts, layout, rows in zip(self.parts, self.layouts, self.rows, strict=True):
            bits = 1 + sum(layout.values())
            made = gates.read_parts([np.asarray(one) for one in parts], bits * rows)
            found.append(read_wires(plan, made.reshape(bits, rows), layout))
        return found


def refuse_auctions(plan: SecurePlan, where: str) -> SecurePlan:
    """The plan, if circuits have all of its operators.

    Raises:
        CompositionError: it has a matching, or pairs of near points.
    """
    refuse_near(plan, where)
    if any(isinstance(one, MatchedRows) for one in walk_operators(plan.root)):
        raise CompositionError("a matching is an auction of three parties", where=where, remedy=_HELP)
    return plan


@dataclass(frozen=True)
class GarbledSmcql(Smcql):
    """Smcql of two owners without a helper, by a garbled circuit."""

    takes_helper: ClassVar[bool] = False
    form: ClassVar[str] = "garbled"
    block: ClassVar[int] = Gates.block
    owners: ClassVar[str] = "the two owners"
    gates: ClassVar[type[Gates]] = Garbler
    measuring: ClassVar[Any] = measure_columns
    """The task that tells sizes."""
    in_slices: ClassVar[bool] = True
    """Whether owners work slice by slice where ``slices`` says so."""
    most_gates: ClassVar[int] = 1 << 28
    """Most ANDs of a circuit."""
    smaller: ClassVar[str] = f"{_HELP}; or ask for fewer rows or columns"
    honest: ClassVar[str] = "both owners follow the protocol"

    def for_parties(self, sites: int, *, helper: bool) -> GarbledSmcql:
        """This one."""
        del sites, helper
        return self

    def plan(self, statement: SqlStatement, catalog: Catalog, policy: QueryPolicy) -> SecurePlan:
        """A plan; see `atoll.query.secure.plan`."""
        if self.joins == "told":
            raise CompositionError("joins=told, and a circuit has a fixed size", where=self.name, remedy=f"leave it out; or {_HELP}")  # fmt: skip
        make = make_sliced_plan if self.in_slices and self.slices == "public" else make_secure_plan
        return refuse_auctions(make(statement, catalog, policy), self.name)

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse other than two sites."""
        del helper
        if sites != 2:
            raise CompositionError(f"{sites} sites, and a garbled circuit is computed by two", where=self.name, remedy="leave mode=garbled out: three parties compute on shares")  # fmt: skip

    def steps(self, plan: SecurePlan) -> Sequence[PlanStep]:
        """The steps of a plan, in order."""
        found = [PlanStep("each site", "plain", leaf.text) for leaf in plan.leaves]
        sliced = sliced_rows(plan)
        if sliced is None:
            found.append(PlanStep("each site", self.form, "give these rows, filled up to a power of two, into a circuit"))  # fmt: skip
        else:
            found += self.slice_steps(sliced, "in a circuit")
        found += [PlanStep(self.owners, self.form, one.what.replace("three parties", "the owners")) for one in shown_operators(plan)]  # fmt: skip
        found.append(PlanStep("coordinator", "plain", plan.finish))
        return found

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        shared = "at most one of the three parties is curious, and none departs from the protocol"
        whole = any(column.code.kind == "whole" and not column.row for leaf in plan.leaves for column in leaf.columns)
        seen = "how many bits the largest number of each column that goes into the circuit has, in steps of 8"
        found = [Exposure(f"coordinator, {self.owners}", seen, "", "sizes")] if whole else []
        for one in super().exposures(plan):
            who, assuming = one.who.replace("three parties", self.owners), one.assuming.replace(shared, self.honest)
            found.append(replace(one, who=who, assuming=assuming))
        return found

    def choose_parties(self, plan: SecurePlan, names: Sequence[str]) -> list[str]:
        """The owners: the first one garbles."""
        del plan
        return list(names)

    def _cost(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], cuts: RehearsedCuts | None, joins: Sequence[float] = (), noted: Mapping[str, Sequence[int]] | None = None, slices: SliceSizes | None = None, orders: int = 4) -> tuple[float, int]:  # fmt: skip
        del cuts, joins, noted, orders
        return self._cost_of(plan, sizes, widths, self.count(plan, sizes, widths, {}, slices)[0], slices)

    def count(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int], slices: SliceSizes | None = None) -> tuple[Sequence[GateCounter], dict[str, Any]]:  # fmt: skip
        """What each part of a plan takes, for the sizes of the leaves at each owner, the words of each column of text, and the bits of each one of whole numbers; one part, of all. And what else the request says: nothing."""
        return [count_gates(plan, sizes, widths, bits, self.block, slices)], {}

    def _cost_of(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], counted: Sequence[GateCounter], slices: SliceSizes | None = None) -> tuple[float, int]:  # fmt: skip
        names = list(sizes)
        roles, asked = len(self.choose_parties(plan, names)), float(M.nbytes(message_of(plan.statement, plan.catalog, plan.policy, names[0], self)))  # fmt: skip
        told = {} if slices is None else {"slices": slices.told()}
        words = float(M.nbytes({"sizes": {name: list(own) for name, own in sizes.items()}, "widths": dict(widths), **told}))  # fmt: skip
        agreed = roles * (roles - 1) * relayed_nbytes(M.nbytes(np.zeros(DIGEST, np.uint8)))
        between, outward, rounds = self._sent(counted)
        nbytes = (
            agreed
            + between
            + outward
            + len(sizes) * (asked + 2 * CONTACT_NBYTES)
            + roles * (asked + words + ROLE_NBYTES)
        )
        return nbytes, self.contacts + 1 + rounds

    def _sent(self, counted: Sequence[GateCounter]) -> tuple[float, float, int]:
        """Bytes between owners, bytes of the parts of the answer, and messages that follow one another."""
        (whole,) = counted
        between = sum(count * relayed_nbytes(M.nbytes(np.zeros(size, np.uint8))) for size, count in message_sizes(whole).items())  # fmt: skip
        rounds = 4 + 2 * len(whole.shared) + len(whole.shown)
        return float(between), 24.0 * sum(whole.handed), rounds

    def _require_size(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int], slices: SliceSizes | None) -> tuple[Sequence[GateCounter], dict[str, Any]]:  # fmt: skip
        """What `count` says, refused if a table or the circuit is too large."""
        extents = measure_extents(plan, sizes, slices=slices)
        if extents.largest > MOST_ROWS:
            raise too_many_rows(extents.largest, MOST_ROWS)
        require_bounds(plan, extents)
        counted, terms = self.count(plan, sizes, widths, bits, slices)
        ands = sum(one.ands for one in counted)
        if ands > self.most_gates:
            raise CompositionError(f"a circuit of {ands:,} ANDs, and owners compute {self.most_gates:,}", where=self.name, remedy=self.smaller)  # fmt: skip
        return counted, terms

    def concerned(self, sizes: dict[str, list[int]]) -> dict[str, list[int]]:
        """The sizes of those who compute; all."""
        return sizes

    def roles(self, request: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[str, Any]]:
        """Who does what in the session: role -> party and task, the owners first."""
        return {name: (name, garble_answer.with_args(request=request, parties=list(names), me=name)) for name in names}

    async def run(self, fed: Federation, plan: SecurePlan, message: Mapping[str, Any]) -> QueryAnswer:
        """Carry a plan out."""
        sizes, widths, told = await self.measure(fed, message, self.measuring)
        sizes = self.concerned(sizes)
        slices, more = divide_slices(plan, sizes, told)
        sizes = more.get("sizes", sizes)
        bits: dict[str, int] = {}
        for one in told.values():
            for column, count in one["bits"].items():
                bits[str(column)] = max(bits.get(str(column), 8), min(int(count), 64))
        counted, terms = self._require_size(plan, sizes, widths, bits, slices)
        request = {"message": dict(message), "sizes": sizes, "widths": widths, "bits": bits, **terms, **more}
        got = await fed.session(self.roles(request, list(sizes)))
        found = OwnerAnswer.of_replies([got[name] for name in sizes], self.name).read(plan, self.gates)
        rows, withheld, values = read_answer(plan, *found)
        expected, rounds = self._cost_of(plan, sizes, widths, counted, slices)
        return QueryAnswer(plan.statement.columns, plan.statement.types, rows, withheld, values, rounds, sizes=sizes, widths=widths, expected=expected)  # fmt: skip


Smcql.ways["garbled"] = GarbledSmcql
