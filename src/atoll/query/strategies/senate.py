"""``senate``: the plan of smcql among 2 to 16 owners, of whom all but one may cheat (after Poddar et al. 2021, "Senate: A Maliciously-Secure MPC Platform for Collaborative Analytics").

The circuit is that of `atoll.query.circuits.wires`, on authenticated bits in place of Senate's garbled circuits (`atoll.secure.shares.AuthenticatedBits`): whoever alters a bit is found out before a result leaves. What
an owner does by itself nobody sees, so that it is checked where it comes in:

* An owner commits to its rows before any owner shows something, and the commitments are compared: nobody changes its rows afterwards, or chooses them by those of others.
* Owners sort their own rows, and all together merge them. The circuit checks that each run ascends, which takes one comparison a row in place of log n, and that rows which count come first.
* Numbers that are added up must lie in the range from which no sum leaves 64 bits; the number of a row must be one of its own site; a missing value must be empty.

Who has no row of the statement's tables takes no part. Where it is less to send, fewer owners compute *parts* of the plan among themselves: unions of their sorted rows, joins of what only they have rows of
(`atoll.query.circuits.subplans`). Their result stays secret, and the others check it like rows of one owner.

One bit for each kind and owner is opened, and a wrong one names the owner and ends the computation. What an owner says of the world outside it may invent: rows that it does not have are rows for the circuit.

A dealer, a party without rows, hands out the triples of bits that ANDs use up: it follows the protocol and colludes with nobody, and sees how many there are. It compares what it was asked for with the owners too.
The coordinator gets each owner's part of the answer, with its code, and of the key: altered parts do not fit, so it has the right answer, or an error and no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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
from atoll.secure.shares import AuthenticatedBits, PartyDealer
from atoll.secure.shares.authenticated_bits import LEAST_ORDER, MOST_ORDER, PENDING
from atoll.secure.shares.dealer import serve_groups

from ..circuits.owner_rows import leaf_orders
from ..circuits.subplans import Division, PartCounter, PartRunner, PlanPart, divide_plan, measure_parts
from ..circuits.wire_values import WORD, WireTable, WireValues, lengthen, one_bit, turn_top
from ..circuits.wires import turn_bits
from ..local import plan_of, silo_of
from ..secure.costs import measure_extents, relayed_nbytes
from ..secure.limits.column_bounds import limit_columns
from ..secure.operators import SecurePlan, SharedColumn
from ..secure.plan import make_secure_plan
from .garbled import MOST_ROWS, GarbledSmcql, leaves_of, measure_local
from .shared_rows import ROW_BITS, compare_requests, local_rows, promised_of
from .strategy import HELPER, PlanStep, promise_min_count

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Island

    from ..slices import SliceSizes

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

    async def inspect(self, owners: Sequence[str], place: int, table: WireTable, *, ordered: bool = True) -> WireTable:
        """The rows of one owner, or of several that have computed them: what is missing is made empty, and the rest is checked."""
        columns = dict(table.columns)
        for column in self._plan.leaves[place].columns:
            there = columns[f"{column.name}?"]
            cells = columns[column.name] = await blank_rows(one_bit(there), columns[column.name])
            if column.number or column.bounded:
                await self.notice(owners, f"a number of {column.text} lies outside its range", await self._is_large(cells if column.number else turn_top(cells), self._most(column)), one_bit(there))  # fmt: skip
            if column.row:
                site, own = cells[ROW_BITS:], self.bits(len(table), 0)
                for owner in owners:  # one of them at most is equal; words have the top bit turned
                    number = self._owners.index(owner) ^ (1 << (WORD - ROW_BITS - 1))
                    own = own ^ await equal_wires(site, self.constant(number, WORD - ROW_BITS, len(table)))
                await self.notice(owners, "a row has the number of another site", ~own, one_bit(there))
        key = join_wires([*(turn_bits(columns[name], turned) for name, turned in reversed(self._orders.get(place, ()))), one_bit(~table.valid)])  # fmt: skip
        if ordered and len(table) > 1:
            falls = await less_wires(key[:, 1:], key[:, :-1])
            await self.notice(owners, "its rows are not in the order that it should sort them by" if len(owners) == 1 else "the union of their rows is not in order", falls)  # fmt: skip
        return replace(table, columns=columns)

    def _most(self, column: SharedColumn) -> int:
        """How large a column's numbers may be."""
        if self._plan.policy.min_count == 1:
            return self._extents.largest_of(column.name)
        return limit_columns(self._plan, self._extents)[1][column.name]

    async def _is_large(self, x: Wires, most: int) -> Wires:
        """1 where a number lies outside ``-most`` to ``most``."""
        n, width = x.shape[1], min(WORD, len(x) + 1)
        if most >> (len(x) - 1):
            return self.bits(n, 0)  # it has too few bits
        raised = await add_wires(lengthen(x, width), self.constant(most, width, n))
        return await less_wires(self.constant(2 * most, width, n), raised)

    async def notice(self, owners: Sequence[str], what: str, bits: Wires, there: Wires | None = None) -> None:
        """Note that these owners cheat where a bit is 1, of rows that are there."""
        wrong = bits if there is None else await self.gates.conjoin(bits, there)
        self._found.append((~await all_wires(~wrong.reshape(-1, 1)), ", ".join(owners), what))

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
    return measure_local(kept, island, message)


@task(discloses=promised_of)
async def compute_checked(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Take part as an owner that trusts none of the others; return this owner's part of the answer's rows."""
    message = request["message"]
    plan = plan_of(silo_of(island.data), message, make_secure_plan, "senate")
    await compare_requests(island, peers, plan, request, parties, me, by="senate")
    whole, sizes = _divided(plan, request), request["sizes"]
    terms = plan, sizes, request["widths"], request["bits"]

    def checking(gates: Gates) -> OwnerChecks:
        return OwnerChecks(gates, plan, sizes)

    layouts = measure_parts(plan, whole, *terms[1:], AuthenticatedBits.block, checking)[1] if whole.parts else {}
    runner = PartRunner(
        *terms,
        leaves_of(island, request, "senate"),
        _OwnerParts(island, peers, me, str(parties[-1])),
        checking,
        layouts,
    )
    tables = await runner.run(whole)
    return {"parts": [part for part, _, _ in tables], "layouts": [layout for _, layout, _ in tables], "rows": [rows for _, _, rows in tables]}  # fmt: skip


def _divided(plan: SecurePlan, request: Any) -> PlanPart:
    """The division of a plan that a request names. Any keeps what the strategy promises; each party makes it itself."""
    fan, joins = (int(one) for one in request["division"])
    return divide_plan(plan, request["sizes"], Division(fan, bool(joins)))


@dataclass(frozen=True)
class _OwnerParts:
    """The gates of each part's owners: a channel and a key of their own."""

    island: Island
    peers: Peers
    me: str
    dealer: str

    def takes_part(self, part: PlanPart) -> bool:
        return self.me in part.owners

    def open(self, part: PlanPart) -> AuthenticatedBits:
        channel = self.peers.channel(f"part {part.number}")
        dealer = PartyDealer(channel, self.dealer, first=self.me == part.owners[0])
        return AuthenticatedBits(self.island, channel, part.owners, self.me, dealer)

    async def lend(self, gates: Gates, part: PlanPart, x: Wires) -> Any:
        del part
        return await cast("AuthenticatedBits", gates).lend(x)

    async def borrow(self, gates: Gates, part: PlanPart, lent: Any, shape: tuple[int, int]) -> Wires:
        return await cast("AuthenticatedBits", gates).borrow(lent, shape, lenders=part.owners, number=part.number)


@task(discloses=promised_of)
async def deal_bits(island: Island, peers: Peers, *, request: Any, parties: Any, me: str) -> Any:
    """Deal what the owners' ANDs use up, to the owners of each part, after all have compared what they were asked for; see `deal`."""
    plan = plan_of(None, request["message"], make_secure_plan, "senate")
    await compare_requests(island, peers, plan, request, parties, me, by="senate")
    parts = _divided(plan, request).walk()
    return await serve_groups(island, peers, {f"part {part.number}": part.owners for part in parts})


# ---------------------------------------------------------------- the strategy


_DIVISIONS = (Division(), Division(joins=True), Division(2), Division(2, joins=True), Division(4, joins=True))
_GUESSED = 256


@dataclass(frozen=True)
class DividedPlan(SecurePlan):
    """A plan of which fewer owners compute parts.

    Attributes:
        what: in words.
        alone: bytes, if all owners computed all together.
        divided: bytes as it is.
    """

    what: str = field(default="", compare=False)
    alone: float = field(default=0.0, compare=False)
    divided: float = field(default=0.0, compare=False)


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
    in_slices: ClassVar[bool] = False
    most_gates: ClassVar[int] = 1 << 28
    """Triples come in blocks, so that the memory of a party follows the rows; bytes follow the ANDs, about 50 each for three owners."""
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
        if isinstance(plan, DividedPlan):
            found.insert(place + 2, PlanStep("some of the owners", self.form, f"{plan.what}: {plan.divided:,.0f} bytes in place of {plan.alone:,.0f} for {_GUESSED} rows of each table at each site; how it is in fact follows from their sizes"))  # fmt: skip
        return [PlanStep(HELPER, "dealt", "triples of random bits with codes, for each AND"), *found]

    def exposures(self, plan: SecurePlan) -> Sequence[Exposure]:
        """What a plan gives away."""
        return [
            Exposure(HELPER, "how many gates the circuit has and each part of it that some owners compute, and rows each site, up to the next power of two", "", "sizes"),
            Exposure(self.owners, "whether the rows of each site are in order, and its numbers in range", self.honest, "count"),
            Exposure(f"coordinator, {self.owners}", f"which sites have no row of {' and of '.join(leaf.name for leaf in plan.leaves)}: they do not take part", "", "sizes"),
            *super().exposures(plan),
        ]  # fmt: skip

    def choose_parties(self, plan: SecurePlan, names: Sequence[str]) -> list[str]:
        """The owners and the dealer."""
        del plan
        return [*names, HELPER]

    def fit_plan(self, plan: SecurePlan, sites: int) -> SecurePlan:
        """The plan with what of it fewer owners compute, if that is less to send."""
        sizes = {f"site {k}": [_GUESSED if leaf.size else 1 for leaf in plan.leaves] for k in range(sites)}
        if sites < 3 or measure_extents(plan, sizes).largest > MOST_ROWS:
            return plan
        alone, *others = [(self._nbytes(one), division) for division, one in self._ways(plan, sizes, {}, {})]
        least, division = min(others, key=lambda pair: pair[0], default=alone)
        if least >= alone[0]:
            return plan
        what = f"merge the sorted rows of {division.fan} owners, of the results those of {division.fan}, and so on, and check each result"  # fmt: skip
        return DividedPlan(**{one.name: getattr(plan, one.name) for one in fields(plan)}, what=what, alone=alone[0], divided=least)  # fmt: skip

    def _ways(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int]) -> Iterator[tuple[Division, list[PartCounter]]]:  # fmt: skip
        """What each division of a plan takes; first that of all owners together."""
        seen = []
        for division in _DIVISIONS:
            whole = divide_plan(plan, sizes, division)
            if whole not in seen:
                seen.append(whole)
                yield division, measure_parts(plan, whole, sizes, widths, bits, self.block, lambda gates: OwnerChecks(gates, plan, sizes))[0]  # fmt: skip

    def count(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int], slices: SliceSizes | None = None) -> tuple[list[PartCounter], dict[str, Any]]:  # fmt: skip
        """What each part of a plan and the checks of rows take, in the division that sends least; the request says which."""
        del slices
        division, counted = min(self._ways(plan, sizes, widths, bits), key=lambda pair: self._nbytes(pair[1]))
        return counted, {"division": division.told()}

    def _nbytes(self, counted: Sequence[GateCounter]) -> float:
        return sum(self._sent(counted)[:2])

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

    def _sent(self, counted: Sequence[GateCounter]) -> tuple[float, float, int]:
        parts = [_sent_by(cast("PartCounter", one)) for one in counted]
        return sum(part for part, _ in parts), len(counted[-1].roles) * 8.0 * sum(bits + 1 for bits in counted[-1].handed), sum(rounds for _, rounds in parts)  # fmt: skip


def _sent_by(counted: PartCounter) -> tuple[float, int]:
    """Bytes among the owners of a part and from the dealer, and messages that follow one another."""
    n = len(counted.roles)
    pairs = n * (n - 1)

    def carried(size: float) -> float:
        return float(relayed_nbytes(M.nbytes(np.zeros(round(size), np.uint8))))

    orders, size, left = [], LEAST_ORDER, counted.ands
    while left > 0 and size < MOST_ORDER:
        orders.append(size)
        left, size = left - size, 2 * size
    most = max(0, -(-left // MOST_ORDER))
    taken = sum(bits for bits, _ in counted.borrowed)
    told, shares = sum(counted.shared.values()) + counted.lent + taken, counted.shares
    passed = len(counted.borrowed) + (counted.lent > 0)
    checks = (
        counted.ands * 2 // PENDING + 2 * len(counted.shown[::n]) + len(counted.handed) + 2 * (counted.lent > 0) + 1
    )
    order, delivery, promise, coin, shown_part = map(relayed_nbytes, _MESSAGES)
    dealt = (len(orders) + most + shares + passed + 1) * (order + n * delivery) + 2 * (24 * (sum(orders) + most * MOST_ORDER) + 8 * told)  # fmt: skip
    opened = pairs * sum(count * carried(-(-gates // 4)) for gates, count in counted.sizes.items())
    given = shares * ((n - 1) * (promise + shown_part) + pairs * promise) + 2 * sum(counted.shared.values()) / 8 * (n - 1)  # fmt: skip
    checked = checks * pairs * 2 * (promise + coin)
    shown = pairs * (sum(carried(bits / 8) for _, bits in counted.shown[::n]) + (carried(counted.lent / 8) if counted.lent else 0))  # fmt: skip
    handed = sum((n - lenders) * carried(bits / 8) + pairs * promise for bits, lenders in counted.borrowed)
    return dealt + opened + given + checked + shown + handed, counted.layers + 3 * shares + 4 * checks + 3 * passed


_MESSAGES = (112, 150, 61, 95, 90)
"""Bytes of an order, a delivery beside its values, a commitment, an opened one, and an input beside its bits."""
