"""`Ecdh`: intersection by commuting exponents (Meadows 1986; Huberman, Franklin and Hogg 1999), on ristretto255."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import LetterError
from atoll.core.exposure import Contract, ProtocolFrame

from .protocol import AlignmentPlan, AlignmentSide, Matches, PsiProtocol, base_contract
from .ristretto import BYTES, draw_scalar, hash_keys, raise_points, require_points

if TYPE_CHECKING:
    from atoll.core.requests.island import Secret

__all__ = ["Ecdh"]

Order = NDArray[np.int64]


@dataclass(frozen=True)
class Ecdh(PsiProtocol):
    """Two parties with secret exponents a and b compare ``H(x)^(ab)``, which neither can compute alone.

    1. ``blinded``: each sends ``H(x)^a`` of its keys, in a secret order.
    2. ``twice``: each raises the other's points to its own exponent and sends them back to a role that learns the result, shuffled. The role knows then how many are
       shared, and not which: a count ends here, and a site with ``min_aligned`` refuses here.
    3. ``order``: for ids, it sends the shuffle too.

    With one learner the other role gets no ``twice``: it learns the number of keys alone. Both follow the protocol (semi-honest); points off the group, points that stand
    twice and frames beyond the announced sizes are refused, yet a party may claim keys that it does not have.
    """

    results: ClassVar[tuple[str, ...]] = ("ids", "count")

    def contract(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Contract:
        """Return 32 bytes a key once blinded and once raised twice, and 8 bytes a key for the shuffle."""
        self.require_plan(plan)
        pairs = [(role, other) for role in plan.roles for other in plan.others(role)]
        frames = [ProtocolFrame("blinded", a, b, sizes[a], BYTES, "H(x)^a, in secret order") for a, b in pairs]
        told = [(a, b) for a, b in pairs if b in plan.learners]
        frames += [
            ProtocolFrame("twice", a, b, sizes[b], BYTES, "the other's points, raised and shuffled") for a, b in told
        ]
        if plan.result == "ids":
            frames += [ProtocolFrame("order", a, b, sizes[b], 8, "the shuffle") for a, b in told]
        return base_contract(self, plan, frames)

    async def match(self, side: AlignmentSide) -> Matches:
        """Return what this role learns."""
        await _blind(side)
        scalar, theirs = side.state["scalar"], side.state["theirs"]
        twice = raise_points(theirs, scalar, side.other)
        if "shuffle" not in side.state:
            shuffle = draw_order(side.island.secret, len(theirs))
            sent = side.send_rows("twice", side.other, twice[shuffle]) if side.learns(side.other) else _nothing()
            got = side.receive_rows("twice", side.other, len(side.keys), BYTES) if side.learns(side.me) else _nothing()
            _, found = await asyncio.gather(sent, got)
            if found is not None:
                require_points(found, side.other)
            await side.keep(shuffle=shuffle, found=found)
        found, shuffle = side.state["found"], side.state["shuffle"]
        held = None if found is None else _members(found, twice)
        count = None if held is None else int(held.sum())
        side.require_count(count)
        if side.plan.result != "ids":
            return Matches(count=count)
        sent = side.send_rows("order", side.other, shuffle.astype("<i8").reshape(-1, 1)) if side.learns(side.other) else _nothing()  # fmt: skip
        got = side.receive_rows("order", side.other, len(side.keys), 8) if side.learns(side.me) else _nothing()
        _, order = await asyncio.gather(sent, got)
        if held is None or order is None:
            return Matches()
        shared = np.zeros(len(side.keys), dtype=bool)
        shared[side.state["order"][_require_order(order.view("<i8").reshape(-1), side.other)]] = held
        return Matches(shared, count)


async def _blind(side: AlignmentSide) -> None:
    """Swap the blinded points of both. They are never sent again after the checkpoint, and the exponent stays."""
    if "scalar" in side.state:
        return
    scalar, order = draw_scalar(side.island.secret), draw_order(side.island.secret, len(side.keys))
    mine = raise_points(hash_keys(side.keys.names), scalar)[order]
    theirs = await side.swap_rows("blinded", mine, side.sizes[side.other], BYTES)
    require_points(theirs, side.other)
    await side.keep(scalar=scalar, order=order, theirs=theirs)


async def _nothing() -> None:
    return None


def draw_order(secret: Secret, count: int) -> Order:
    """A secret order of so many places: a known one would tell where the shared keys lie."""
    return np.argsort(secret.uint64(count), kind="stable").astype(np.int64)


def _members(points: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """For each of some points, whether it is among others."""
    form = np.dtype((np.void, BYTES))
    mine, theirs = (np.ascontiguousarray(rows).view(form).reshape(-1) for rows in (points, others))
    known = set(theirs.tolist())
    return np.fromiter((one in known for one in mine.tolist()), dtype=bool, count=len(mine))


def _require_order(order: Order, where: str) -> Order:
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise LetterError("an order that names a place twice", where=where, remedy="look at the party that sent it: it does not follow the protocol")  # fmt: skip
    return order.astype(np.int64)
