"""``senate``: the plan of smcql among 2 to 16 owners, of whom all but one may cheat (after Poddar et al. 2021, "Senate: A Maliciously-Secure MPC Platform for Collaborative Analytics").

The circuit is that of `atoll.query.secure.wires`, on authenticated bits in place of Senate's garbled circuits (`atoll.secure.shares.AuthenticatedBits`): whoever alters a bit is found out before a result leaves. What
an owner does by itself nobody sees, so that it is checked where it comes in:

* An owner commits to its rows before any owner shows something, and the commitments are compared: nobody changes its rows afterwards, or chooses them by those of others.
* Owners sort their own rows, and all together merge them. The circuit checks that each run ascends, which takes one comparison a row in place of log n, and that rows which count come first.
* Numbers that are added up must lie in the range from which no sum leaves 64 bits; the number of a row must be one of its own site; a missing value must be empty.

Who has no row of the statement's tables takes no part: the others compute among themselves, as Senate's sub-plans are computed among the owners concerned.

One bit for each kind and owner is opened, and a wrong one names the owner and ends the computation. What an owner says of the world outside it may invent: rows that it does not have are rows for the circuit.

A dealer, a party without rows, hands out the triples of bits that ANDs use up: it follows the protocol and colludes with nobody, and sees how many there are. It compares what it was asked for with the owners too.
The coordinator gets each owner's part of the answer, with its code, and of the key: altered parts do not fit, so it has the right answer, or an error and no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from atoll.core import message as M
from atoll.core.errors import CompositionError, LetterError
from atoll.core.exposure import Exposure
from atoll.core.requests.task import task
from atoll.secure.garbled import (
    GateCounter,
    Gates,
    Wires,
    add_wires,
    all_wires,
    blank_rows,
    equal_wires,
    join_wires,
    less_wires,
)
from atoll.secure.shares import AuthenticatedBits, Binary, BitSharing, PartyDealer, deal
from atoll.secure.shares.authenticated_bits import LEAST_ORDER, MOST_ORDER, PENDING

from ..local import plan_of, silo_of
from ..secure.costs import measure_extents, relayed_nbytes
from ..secure.operators import SecurePlan
from ..secure.owner_rows import count_gates, leaf_orders
from ..secure.plan import make_secure_plan
from ..secure.wire_values import WORD, WireTable, WireValues, lengthen, one_bit, turn_top
from ..secure.wires import turn_bits
from .garbled import GarbledSmcql, answer_on_wires, measure_local
from .smcql import ROW_BITS, compare_requests, local_rows, promised_of
from .strategy import HELPER, PlanStep, promise_min_count

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Island

__all__ = ["MOST_OWNERS", "Senate", "compute_checked", "deal_bits", "measure_concerned"]

MOST_OWNERS = 16


# ---------------------------------------------------------------- what owners check of each other's rows


class OwnerChecks(WireValues):
    """What the circuit checks of the rows that each owner shares.

    Args:
        gates: one party's side.
        plan: the plan.
        sizes: rows of each leaf at each owner.
    """

    def __init__(self, gates: Gates, plan: SecurePlan, sizes: Mapping[str, Sequence[int]]) -> None:
        super().__init__(gates)
        self._plan, self._owners, self._orders = plan, list(sizes), leaf_orders(plan)
        self._extents = measure_extents(plan, sizes)
        self._found: list[tuple[Wires, str, str]] = []

    async def inspect(self, owner: str, place: int, table: WireTable) -> WireTable:
        """The rows of one owner: what is missing is made empty, and the rest is checked."""
        columns = dict(table.columns)
        for column in self._plan.leaves[place].columns:
            there = columns[f"{column.name}?"]
            cells = columns[column.name] = await blank_rows(one_bit(there), columns[column.name])
            if column.number or column.bounded:
                await self._notice(owner, f"a number of {column.text} lies outside its range", await self._is_large(cells if column.number else turn_top(cells), self._extents.largest_of(column.name)), there)  # fmt: skip
            if column.row:
                number = self._owners.index(owner) ^ (1 << (WORD - ROW_BITS - 1))  # words have the top bit turned
                own = await equal_wires(cells[ROW_BITS:], self.constant(number, WORD - ROW_BITS, len(table)))
                await self._notice(owner, "a row has the number of another site", ~own, there)
        key = join_wires([*(turn_bits(columns[name], turned) for name, turned in reversed(self._orders.get(place, ()))), one_bit(~table.valid)])  # fmt: skip
        if len(table) > 1:
            falls = await less_wires(key[:, 1:], key[:, :-1])
            await self._notice(owner, "its rows are not in the order that it should sort them by", falls)
        return replace(table, columns=columns)

    async def _is_large(self, x: Wires, most: int) -> Wires:
        """1 where a number lies outside ``-most`` to ``most``."""
        n, width = x.shape[1], min(WORD, len(x) + 1)
        if most >> (len(x) - 1):
            return self.bits(n, 0)  # it has too few bits
        raised = await add_wires(lengthen(x, width), self.constant(most, width, n))
        return await less_wires(self.constant(2 * most, width, n), raised)

    async def _notice(self, owner: str, what: str, bits: Wires, there: Wires | None = None) -> None:
        wrong = bits if there is None else await self.gates.conjoin(bits, one_bit(there))
        self._found.append((~await all_wires(~wrong.reshape(-1, 1)), owner, what))

    async def require_honest(self) -> None:
        """Open whether rows are as they should be: one bit for each owner and check.

        Raises:
            LetterError: names the owner whose are not.
        """
        if not self._found:
            return
        told = await self.gates.reveal(join_wires([bit.reshape(1, 1) for bit, _, _ in self._found], axis=1))
        for bit, (_, owner, what) in zip(() if told is None else told, self._found, strict=False):
            if bit:
                raise LetterError(f"{owner}: {what}", where="senate", remedy=f"do not use any result of this computation; look at {owner}, which does not follow the protocol")  # fmt: skip


@task(discloses=promise_min_count)
def measure_concerned(island: Any, message: Any) -> Any:
    """What `measure_columns` tells; and no row of a table that has none, so that owners compute without whom it does not concern."""
    kept = local_rows(island, message, fresh=True, by="senate")
    kept.sizes = [size if count else 0 for size, count in zip(kept.sizes, kept.counts, strict=True)]
    return measure_local(kept)


@task(discloses=promised_of)
async def compute_checked(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part as an owner that trusts none of the others; return this owner's part of the answer's rows."""
    plan = plan_of(silo_of(island.data), request["message"], make_secure_plan, "senate")
    await compare_requests(island, peers, plan, request, parties, me, by="senate")
    owners = [str(one) for one in parties[:-1]]
    dealer = PartyDealer(peers, parties[-1], first=me == owners[0])
    async with AuthenticatedBits(island, peers, owners, me, dealer) as gates:
        return await answer_on_wires(
            plan, gates, island, request, OwnerChecks(gates, plan, request["sizes"]), by="senate"
        )


@task(discloses=promised_of)
async def deal_bits(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Deal what the owners' ANDs use up, after all have compared what they were asked for; see `deal`."""
    plan = plan_of(None, request["message"], make_secure_plan, "senate")
    await compare_requests(island, peers, plan, request, parties, me, by="senate")
    owners = [str(one) for one in parties[:-1]]
    return await deal.run(island, peers, owners, BitSharing(Binary(), len(owners)).spec())


# ---------------------------------------------------------------- the strategy


@dataclass(frozen=True)
class Senate(GarbledSmcql):
    """The plan of smcql among 2 to 16 owners, of whom all but one may cheat."""

    name: ClassVar[str] = "senate"
    takes_helper: ClassVar[bool] = True
    no_options: ClassVar[frozenset[str]] = frozenset({"mode", "slices", "joins"})
    form: ClassVar[str] = "authenticated"
    block: ClassVar[int] = AuthenticatedBits.block
    owners: ClassVar[str] = "the owners together"
    honest: ClassVar[str] = "one owner at least follows the protocol; the dealer follows it and colludes with nobody"
    gates: ClassVar[type[Gates]] = AuthenticatedBits
    measuring: ClassVar[Any] = measure_concerned
    most_gates: ClassVar[int] = 1 << 25
    smaller: ClassVar[str] = "ask for fewer rows or columns, or use smcql, whose parties follow the protocol"

    def wants_helper(self, sites: int) -> bool:
        """The dealer."""
        del sites
        return True

    def require_parties(self, sites: int, *, helper: bool) -> None:
        """Refuse other than 2 to 16 sites, and no dealer."""
        if not 2 <= sites <= MOST_OWNERS:
            raise CompositionError(f"{sites} sites, and 2 to {MOST_OWNERS} owners compute together", where=self.name, remedy="use smcql, in which three parties compute for all sites")  # fmt: skip
        if not helper:
            raise CompositionError("no party deals the triples of bits that owners use up", where=self.name, remedy=f"ask for the strategy {self.name} by its name, between organisations with helper: true")  # fmt: skip

    def steps(self, plan: SecurePlan) -> Sequence[PlanStep]:
        """The steps of a plan, in order."""
        found = list(super().steps(plan))
        place = len(plan.leaves)
        found[place] = PlanStep("each site", self.form, "commit to these rows, sorted and filled up to a power of two, before any site shows something")  # fmt: skip
        found.insert(place + 1, PlanStep(self.owners, self.form, "check that each site's rows ascend, and that numbers lie in the range in which sums have 64 bits"))  # fmt: skip
        return [PlanStep(HELPER, "dealt", "triples of random bits with codes, for each AND"), *found]

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        return [
            Exposure(HELPER, "how many gates the circuit has, and rows each site, up to the next power of two", "", "sizes"),
            Exposure(self.owners, "whether the rows of each site are in order, and its numbers in range", self.honest, "count"),
            Exposure(f"coordinator, {self.owners}", f"which sites have no row of {' and of '.join(leaf.name for leaf in plan.leaves)}: they do not take part", "", "sizes"),
            *super().exposures(plan),
        ]  # fmt: skip

    def choose_parties(self, plan: SecurePlan, names: Sequence[str]) -> list[str]:
        """The owners and the dealer."""
        del plan
        return [*names, HELPER]

    def count(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int]) -> GateCounter:  # fmt: skip
        """What a plan and the checks of rows take."""
        return count_gates(plan, sizes, widths, bits, self.block, lambda gates: OwnerChecks(gates, plan, sizes))

    def concerned(self, sizes: dict[str, list[int]]) -> dict[str, list[int]]:
        """Those who have rows of the statement's tables, two at least."""
        names = [name for name, own in sizes.items() if any(own)]
        names += [name for name in sizes if name not in names][: max(0, 2 - len(names))]
        return {name: own for name, own in sizes.items() if name in names}

    def roles(self, request: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[str, Any]]:
        """The owners, and the dealer."""
        parties = self.choose_parties(cast("Any", None), names)
        made: dict[str, tuple[str, Any]] = {name: (name, compute_checked.with_args(request=request, parties=parties, me=name)) for name in names}  # fmt: skip
        return {**made, HELPER: (HELPER, deal_bits.with_args(request=request, parties=parties, me=HELPER))}

    def _sent(self, counted: GateCounter) -> tuple[float, float, int]:
        n = len(counted.roles)
        pairs = n * (n - 1)

        def carried(size: float) -> float:
            return float(relayed_nbytes(M.nbytes(np.zeros(round(size), np.uint8))))

        orders, size, left = [], LEAST_ORDER, counted.ands
        while left > 0:
            orders.append(size)
            left, size = left - size, min(2 * size, MOST_ORDER)
        told, shares = sum(counted.shared.values()), counted.shares
        checks = counted.ands * 2 // PENDING + 2 * len(counted.shown[::n]) + len(counted.handed) + 1
        order, delivery, promise, coin, shown_part = map(relayed_nbytes, _MESSAGES)
        dealt = (len(orders) + shares + 1) * (order + n * delivery) + 2 * (24 * sum(orders) + 8 * told)
        opened = pairs * sum(count * carried(-(-gates // 4)) for gates, count in counted.sizes.items())
        given = shares * ((n - 1) * (promise + shown_part) + pairs * promise) + 2 * told / 8 * (n - 1)
        checked = checks * pairs * 2 * (promise + coin)
        shown = pairs * sum(carried(bits / 8) for _, bits in counted.shown[::n])
        outward = n * 8.0 * sum(bits + 1 for bits in counted.handed)
        return dealt + opened + given + checked + shown, outward, counted.layers + 3 * shares + 4 * checks


_MESSAGES = (112, 150, 61, 95, 90)
"""Bytes of an order, a delivery beside its values, a commitment, an opened one, and an input beside its bits."""
