"""`Ecdh`: intersection by commuting exponents (Meadows 1986; Huberman, Franklin and Hogg 1999), on ristretto255."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError, LetterError
from atoll.core.exposure import Contract, ProtocolFrame

from ..encrypted.paillier import Paillier, PrivateKey, PublicKey, gmp, public_key, to_bytes, to_number
from .keys import name_columns
from .protocol import (
    AlignmentPlan,
    AlignmentSide,
    Matches,
    PsiProtocol,
    base_contract,
    no_message,
    receive_superset,
    send_superset,
)
from .ristretto import BYTES, draw_scalar, hash_keys, raise_points, require_points

if TYPE_CHECKING:
    from atoll.core.requests.island import Secret

__all__ = ["Ecdh", "add_shared", "draw_order", "open_sum", "require_order", "sum_frames"]

Order = NDArray[np.int64]


@dataclass(frozen=True)
class Ecdh(PsiProtocol):
    """Two parties with secret exponents a and b compare ``H(x)^(ab)``, which neither can compute alone.

    1. ``blinded``: each sends ``H(x)^a`` of its keys, in a secret order.
    2. ``twice``: each raises the other's points to its own exponent and sends them back to a role that learns the result, shuffled. The role knows then how many are
       shared, and not which: a count ends here, and a site with ``min_aligned`` refuses here. If both learn it, each first says a keyed hash of what it will send
       (``bound``, ``opening``): a role that waits could else blind the other's own points, send back what it receives, and seem to share all keys.
    3. ``order``: for ids, it sends the shuffle too.

    A sum (Ion et al. 2020) goes on from the count, which both roles learn: the holder of the column sends each key's value under Paillier, in the secret order of its
    blinded keys; the other role multiplies those that are shared and a mask, and the holder opens the masked sum. It is exact for numbers down to ``2^-400``: the column's sum
    in binary, rounded once. A key counts with all its rows; a missing value adds nothing.

    The exponents stay for the job, so a set that is aligned again has the same points, and a role that comes with another set is refused.

    With one learner the other role gets no ``twice``: it learns the number of keys alone, and with a superset which of its rows to use (``superset``, one bit a key). Both follow the protocol (semi-honest); points off the group, points that stand
    twice and frames beyond the announced sizes are refused, yet a party may claim keys that it does not have.
    """

    hides: ClassVar[bool] = True
    results: ClassVar[tuple[str, ...]] = ("ids", "count", "sum")

    def contract(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Contract:
        """Return 32 bytes a key once blinded and once raised twice, 8 bytes a key for the shuffle, and 64 bytes by which each binds itself."""
        self.require_plan(plan)
        pairs = [(role, other) for role in plan.roles for other in plan.others(role)]
        frames = [ProtocolFrame("blinded", a, b, sizes[a], BYTES, "H(x)^a, in secret order") for a, b in pairs]
        told = [(a, b) for a, b in pairs if b in _told(plan)]
        for name, what in (("bound", "keyed hash of 'twice'"), ("opening", "its key")):
            frames += [ProtocolFrame(name, a, b, 1, BYTES, what) for a, b in told if len(told) > 1]
        frames += [
            ProtocolFrame("twice", a, b, sizes[b], BYTES, "the other's points, raised and shuffled") for a, b in told
        ]
        if plan.result == "ids":
            frames += [ProtocolFrame("order", a, b, sizes[b], 8, "the shuffle") for a, b in told]
        if plan.result == "sum":
            frames += sum_frames(plan, sizes)
        if plan.superset:
            frames += [ProtocolFrame("superset", b, a, -(-sizes[a] // 8), 1, "a bit for each key") for a, b in told]
        return base_contract(self, plan, frames)

    def work(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return two exponents for each key, and for a sum the ciphertexts of the holder's."""
        keys = sum(sizes.values())
        counts = {"key": keys, "point": keys, "raise": 2 * keys, "check": sum(sizes[role] for role in _told(plan))}
        return counts | ({"cipher": sizes[plan.holder], "cipher key": 1} if plan.result == "sum" else {})

    async def match(self, side: AlignmentSide) -> Matches:
        """Return what this role learns."""
        twice = await _blind(side)
        shuffle = np.asarray(side.state["shuffle"])
        if "found" not in side.state:
            told = _told(side.plan)
            sent = side.send_rows("twice", side.other, twice[shuffle]) if side.other in told else no_message()
            got = side.receive_rows("twice", side.other, len(side.keys), BYTES) if side.me in told else no_message()
            _, found = await asyncio.gather(sent, got)
            if found is not None:
                require_points(found, side.other)
            if len(told) > 1:
                opening = await side.swap_rows("opening", _row(side.state["opening"]), 1, BYTES)
                if found is None or _bind_points(found, opening.tobytes(), side.other) != side.state["bound"]:
                    raise LetterError(f"other points from {side.other} than it had bound itself to", where="psi", remedy="look at the party that sent them: it does not follow the protocol")  # fmt: skip
            await side.keep(found=found)
        found = side.state["found"]
        held = None if found is None else _members(found, twice)
        count = None if held is None else int(held.sum())
        side.require_count(count)
        if side.plan.result == "count":
            return Matches(count=count)
        if side.plan.result == "sum":
            if side.me == side.plan.holder:
                return Matches(count=count, total=await open_sum(side, side.state["order"]))
            return Matches(count=count, total=await add_shared(side, _members(twice, found)))
        sent = side.send_rows("order", side.other, _wire(shuffle)) if side.learns(side.other) else no_message()
        got = side.receive_rows("order", side.other, len(side.keys), 8) if side.learns(side.me) else no_message()
        _, order = await asyncio.gather(sent, got)
        if held is None or order is None:
            mine = side.state["order"]
            return Matches(hidden=mine[await receive_superset(side, len(mine))]) if side.plan.superset else Matches()
        shared = np.zeros(len(side.keys), dtype=bool)
        places = side.state["order"][require_order(order.view("<i8").reshape(-1), side.other)]
        shared[places] = held
        if not side.plan.superset:
            return Matches(shared, count)
        known = {point.tobytes(): place for point, place in zip(found, places.tolist(), strict=True)}
        genuine = np.array([known.get(point.tobytes(), -1) for point in twice], dtype=np.int64)
        return Matches(shared, count, hidden=genuine[await send_superset(side, genuine >= 0, twice)])


async def _blind(side: AlignmentSide) -> NDArray[np.uint8]:
    """Swap the blinded points of both, and return the other's, raised.

    The points are never sent again after the checkpoint, and the exponent stays. Where both learn, each is bound to what it will send back from here on, also if the job aligns
    again: the sets and exponents are the same then.
    """
    if "scalar" in side.state:
        return raise_points(side.state["theirs"], side.state["scalar"], side.other)
    secret = side.island.secret
    scalar, opening = side.recall("scalar") or draw_scalar(secret), side.recall("opening") or secret.bytes(BYTES)
    order = draw_order(secret, len(side.keys))
    mine = raise_points(hash_keys(side.keys.names), scalar)[order]
    theirs = await side.swap_rows("blinded", mine, side.sizes[side.other], BYTES)
    require_points(theirs, side.other, raised=True)
    side.bind_set(theirs)
    twice, bound = raise_points(theirs, scalar, side.other), b""
    if len(_told(side.plan)) > 1:
        said = await side.swap_rows("bound", _row(_bind_points(twice, opening, side.me)), 1, BYTES)
        side.bind_set(said, what="answer")
        bound = said.tobytes()
    side.remember(scalar=scalar, opening=opening)
    shuffle = draw_order(secret, len(theirs))
    await side.keep(scalar=scalar, order=order, theirs=theirs, shuffle=shuffle, opening=opening, bound=bound)
    return twice


def _told(plan: AlignmentPlan) -> Sequence[str]:
    """The roles that receive their points, raised twice: those that learn the result, or of a sum both, which learn the count."""
    return plan.roles if plan.result == "sum" else plan.learners


def _bind_points(points: NDArray[np.uint8], key: bytes, role: str) -> bytes:
    """A hash of points in any order, and of whose they are, so that nobody sends it back. Without the key, a role that knows candidates could try them out."""
    raw = np.ascontiguousarray(points).tobytes()
    each = sorted(raw[at : at + BYTES] for at in range(0, len(raw), BYTES))
    return hashlib.blake2b(b"".join([role.encode(), *each]), key=key, digest_size=BYTES).digest()


def _row(raw: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(raw, dtype=np.uint8).reshape(1, -1)


def draw_order(secret: Secret, count: int) -> Order:
    """A secret order of so many places: a known one would tell where the shared keys lie."""
    return np.argsort(secret.uint64(count), kind="stable").astype(np.int64)


def _members(points: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """For each of some points, whether it is among others."""
    form = np.dtype((np.void, BYTES))
    mine, theirs = (np.ascontiguousarray(rows).view(form).reshape(-1) for rows in (points, others))
    known = set(theirs.tolist())
    return np.fromiter((one in known for one in mine.tolist()), dtype=bool, count=len(mine))


def require_order(order: Order, where: str) -> Order:
    """Refuse what is no order of so many places.

    Raises:
        LetterError: a place stands twice.
    """
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise LetterError("an order that names a place twice", where=where, remedy="look at the party that sent it: it does not follow the protocol")  # fmt: skip
    return order.astype(np.int64)


def _wire(order: Order) -> NDArray[np.int64]:
    return order.astype("<i8").reshape(-1, 1)


# ---------------------------------------------------------------------- sums

KEY_BITS = 2048
_CELL, _PLAIN = KEY_BITS // 4, KEY_BITS // 8
_SHIFT = 400
"""Values are whole numbers of ``2^-400``: sums of 2^28 float64 stay below ``2^1453``, half of any modulus, and the precision of a column does not show."""


def sum_frames(plan: AlignmentPlan, sizes: Mapping[str, int]) -> list[ProtocolFrame]:
    """The frames of `open_sum` and `add_shared`."""
    (adder,) = plan.others(plan.holder)
    holder, frames = plan.holder, []
    frames.append(ProtocolFrame("key", holder, adder, 1, _PLAIN + _CELL, "a Paillier key"))
    frames.append(ProtocolFrame("cells", holder, adder, sizes[holder], _CELL, "a key's value, encrypted"))
    frames.append(ProtocolFrame("sealed sum", adder, holder, 1, _CELL, "the sum and a mask, encrypted"))
    if adder in plan.learners:
        frames.append(ProtocolFrame("masked sum", holder, adder, 1, _PLAIN, "the sum and the mask"))
    if holder in plan.learners:
        frames.append(ProtocolFrame("mask", adder, holder, 1, _PLAIN, "the mask"))
    return frames


async def add_shared(side: AlignmentSide, shared: NDArray[np.bool_]) -> float | None:
    """The sum of the other's column over shared keys, for a role that learns it: the side that adds.

    Args:
        side: this role.
        shared: for each of the other's keys, in the order of its cells, whether it is shared.

    Raises:
        LetterError: the key or a ciphertext is not valid.
    """
    raw = (await side.receive_rows("key", side.other, 1, _PLAIN + _CELL)).reshape(-1)
    key = _checked_key(raw, side.other)
    cells = await side.receive_rows("cells", side.other, side.sizes[side.other], _CELL)
    mask = side.island.secret.integer(int(key.n))
    blind = gmp().powmod(side.island.secret.integer(int(key.n) - 1) + 1, key.n, key.square)  # h is the holder's choice
    total = (1 + mask * key.n) * blind % key.square
    for cell in cells[shared]:
        total = total * _checked_cell(cell, key, side.other) % key.square
    await side.send_rows("sealed sum", side.other, to_bytes(total, _CELL).reshape(1, -1))
    opened = None
    if side.learns(side.me):
        masked = to_number((await side.receive_rows("masked sum", side.other, 1, _PLAIN)).tobytes())
        opened = _decode((masked - mask) % int(key.n), int(key.n), side.plan.column)
    if side.learns(side.other):
        await side.send_rows("mask", side.other, to_bytes(mask, _PLAIN).reshape(1, -1))
    return opened


async def open_sum(side: AlignmentSide, order: Order) -> float | None:
    """The same sum: the holder's side.

    Args:
        side: this role.
        order: the order in which it sends the cells of its keys, which the other role knows only under their blinded names.

    Raises:
        DataError: the column has no such sum.
        LetterError: the ciphertext of the sum is not valid.
    """
    values = _column_of(side)
    public, private = Paillier(KEY_BITS).make_keys(side.island.secret)
    key = public_key(bytes(public["n"]), bytes(public["h"]))
    row = np.concatenate([public["n"], public["h"]]).reshape(1, -1)
    await side.send_rows("key", side.other, row)
    cells = [key.encrypt(values[place] % int(key.n), side.island.secret) for place in order.tolist()]
    await side.send_rows("cells", side.other, np.frombuffer(b"".join(bytes(to_bytes(cell, _CELL)) for cell in cells), dtype=np.uint8).reshape(-1, _CELL))  # fmt: skip
    sealed = (await side.receive_rows("sealed sum", side.other, 1, _CELL)).reshape(-1)
    opener = PrivateKey(to_number(private["p"]), to_number(private["q"]))
    masked = int(opener.decrypt(_checked_cell(sealed, key, side.other)))
    if side.learns(side.other):
        await side.send_rows("masked sum", side.other, to_bytes(masked, _PLAIN).reshape(1, -1))
    if not side.learns(side.me):
        return None
    mask = to_number((await side.receive_rows("mask", side.other, 1, _PLAIN)).tobytes())
    return _decode((masked - mask) % int(key.n), int(key.n), side.plan.column)


def _column_of(side: AlignmentSide) -> list[int]:
    """The value of each key, in the order of u, in units of ``2^-400``.

    Raises:
        DataError: the column is unknown, is no numbers, or has an infinity or a number that the units cannot write.
    """
    table, name, where = side.island.data, side.plan.column, f"the table of {side.me}"
    if name not in table:
        raise DataError(f"there is no column {name!r}", where=where, remedy=f"choose from {name_columns(table)}")
    column = np.asarray(table[name])
    if column.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} holds text, which has no sum", where=where, remedy="name a column of numbers")
    values, unit = [0] * len(side.keys), 1 << _SHIFT
    for row, (place, value) in enumerate(zip(side.keys.rows.tolist(), column.tolist(), strict=True)):
        if place < 0 or value != value:  # no key, or a missing value
            continue
        top, bottom = value.as_integer_ratio() if np.isfinite(value) else (0, 0)
        if bottom == 0 or unit % bottom:
            raise DataError(f"column {name!r} has {'an infinity' if bottom == 0 else 'a number below 2^-400'} in row {row + side.plan.row_offset}", where=where, remedy="correct it, or leave it empty")  # fmt: skip
        values[place] += top * (unit // bottom)
    return values


def _decode(number: int, modulus: int, column: str) -> float:
    exact = Fraction(number - modulus if number > modulus // 2 else number, 1 << _SHIFT)
    try:
        return int(exact) if exact.denominator == 1 and abs(exact) < 1 << 63 else float(exact)
    except OverflowError:
        raise DataError(f"the sum of {column!r} is beyond float64", where="psi", remedy="use a smaller unit of the column") from None  # fmt: skip


def _checked_key(raw: NDArray[np.uint8], where: str) -> PublicKey:
    n, h = raw[:_PLAIN].tobytes(), raw[_PLAIN:].tobytes()
    if to_number(n).bit_length() != KEY_BITS or to_number(n) % 2 == 0:
        raise LetterError(f"a Paillier key of {to_number(n).bit_length()} bits", where=where, remedy=f"look at the party that sent it: keys have {KEY_BITS} bits")  # fmt: skip
    return public_key(n, h)


def _checked_cell(raw: NDArray[np.uint8], key: PublicKey, where: str) -> Any:
    cell = gmp().mpz(to_number(raw.tobytes()))
    if not 0 < cell < key.square or gmp().gcd(cell, key.n) != 1:
        raise LetterError("an invalid ciphertext", where=where, remedy="look at the party that sent it: it does not follow the protocol")  # fmt: skip
    return cell
