"""`Circuit`: an intersection that nobody learns, as shares on which two parties compute (Pinkas, Schneider, Tkachenko, Yanai 2019, "Efficient circuit-based PSI with linear communication").

The *receiver*, the party with fewer keys, has a bin for each key as in `Oprf`, with a function ``F_b`` a bin. The *sender* draws a number ``t_b`` for each bin and sends one `KeyValueTable` from
which its key y reads ``F_b(y) ^ t_b`` in each bin b where it may be. What the receiver reads in a bin is ``t_b`` if the key there is shared, and random if it is not, which it cannot tell apart. Both
compare their numbers on shares, bit by bit. So each party has a share of "is shared" for each bin, and both together know no more than that there are bins.

Columns of the sender travel in the table too, each under a mask of its own a bin; the receiver's are shares already. Where the key is not shared the values are multiplied by 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError, PolicyError
from atoll.core.exposure import Contract, Exposure, ProtocolFrame

from ..oblivious import transpose_bits
from ..shares import (
    AdditiveComputation,
    AdditiveSharing,
    ObliviousDealer,
    SharedArray,
    WordRing,
    less,
    opened,
    transfer_frames,
)
from ..shares.dealer import Order
from ..shares.operations import all_of
from .cuckoo import TABLES, bins_for
from .keys import name_columns
from .opprf import KeyValueTable
from .oprf import answer_functions, ask_functions, bind_digest, function_frames, function_work, settle
from .protocol import AlignmentPlan, AlignmentSide, Matches, PsiProtocol, base_contract

if TYPE_CHECKING:
    from atoll.core.requests.island import Island

__all__ = ["Circuit", "read_shares"]

Words = NDArray[np.uint64]

_SEED, _WORD = 32, 8
_BITS = 64
"""Bits that are compared: two different keys agree in one of 2^20 bins with a probability of 2^-44."""
_BLOCK = 1 << 16
"""Bins that are compared at once: 2 million transfers for the widest step."""
_STEPS = tuple(_BITS >> i for i in range(1, 7))
"""Products of bits a bin in each step of the tree."""
_LEAST = (62, 32, 16, 8, 4, 2)
"""The same for one comparison of two numbers of 64 bits: `circuits.borrow` of 63 rows."""


@dataclass(frozen=True)
class Circuit(PsiProtocol):
    """Two parties; nobody learns who is shared, nor, unless that is the result, how many.

    1. ``salt``, ``points``, ``corrections``: as in `Oprf`. The receiver is the role with fewer keys.
    2. ``places``, ``table``: 8 bytes a cell, and 8 a column of the sender, in 4.05 cells a key of the sender.
    3. Both compare 64 bits a bin by oblivious transfers (`ObliviousDealer`): 2,016 bytes, and 32 and 16 for the bit and each column.
    4. If the plan has a ``min_count``, one bit says whether fewer keys are shared, and the parties stop then.
    5. ``opened``: a count or a sum is opened to the roles that learn it. Of ``shares`` nothing is opened: both keep theirs, see `read_shares`.

    Values are whole numbers of ``2^-fraction``; a sum is that of the rounded values. Semi-honest: both follow the protocol. What a party of another version sends is refused by name.
    Later alignments of a job say the same bytes for the same keys and values, and other ones are refused, also after a crash.
    """

    results: ClassVar[tuple[str, ...]] = ("count", "sum", "shares")
    rounds: ClassVar[bool] = True

    def contract(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Contract:
        """Return the frames: about 2.8 kB a bin, of which there are 1.305 for each of the receiver's keys, and 32 bytes for each of the sender's."""
        self.require_plan(plan)
        me, other = _roles(plan, sizes)
        frames = _frames(plan, sizes, me, other) if all(sizes.values()) else []
        made = base_contract(self, plan, frames)
        learns = [one for one in made.learns if plan.result == "count" or one.kind != "count"]
        if plan.result != "count" and plan.min_count > 1:
            learns += [Exposure(a, f"whether fewer than {plan.min_count} keys are shared", "", "count", b) for a, b in ((me, other), (other, me))]  # fmt: skip
        return Contract(made.protocol, made.frames, tuple(learns))

    def work(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return what the functions of `Oprf` take, a cell for each of the sender's bins, and 63 products of bits a bin."""
        mine, theirs = (sizes[role] for role in _roles(plan, sizes))
        counts = function_work(mine, theirs)
        counts["base transfer"] += 2 * 128
        return counts | {"cell": TABLES * theirs, "bit": sum(_STEPS) * bins_for(mine)}

    async def match(self, side: AlignmentSide) -> Matches:
        """Return what this role learns, or its shares."""
        plan, rules = side.plan, side.island.rules
        if plan.result != "count" and rules.min_aligned > plan.min_count:
            raise PolicyError(f"min_aligned={rules.min_aligned}, and nobody learns how many keys are shared", where="policy", remedy=f"give the job min_count={rules.min_aligned}, which the protocol checks, or lower min_aligned in the site's policy")  # fmt: skip
        if not all(side.sizes.values()):
            side.require_count(0)
            nothing = np.zeros(bins_for(0), dtype=np.uint64)
            found = _Found(nothing, np.zeros((len(nothing), len(_columns(plan))), dtype=np.uint64), 0, 0.0)
        else:
            if "target" not in side.state:
                me, _ = _roles(plan, side.sizes)
                await (_read(side) if side.me == me else _write(side))
            found = await _compare(side)
        side.enough = plan.result != "count"
        if plan.result == "shares":
            kept = {
                "shared": found.shared,
                "values": found.values,
                "columns": list(plan.payload),
                "fraction": plan.fraction,
            }
            return Matches(shares=kept)
        if not side.learns(side.me):
            return Matches()
        return Matches(count=found.count) if plan.result == "count" else Matches(total=found.total)


@dataclass(frozen=True)
class _Found:
    """Shares of "is shared" and of the columns for each bin, and the count or the sum if it is opened to this role."""

    shared: Words
    values: Words
    count: int | None = None
    total: float | None = None


def read_shares(island: Island, by: AdditiveComputation, label: str = "aligned") -> tuple[SharedArray, SharedArray]:
    """The shares that an alignment with ``result="shares"`` has left at this party, in a computation of the same two parties in the same order.

    Args:
        island: the party's place.
        by: the computation, over `WordRing` of 64 bits.
        label: the alignment's.

    Returns:
        For each slot 1 if a shared key lies there and 0 if not, ``(slots,)``, and the columns of ``payload`` in units of ``2^-fraction``, 0 where none lies there, ``(slots, columns)``.

    Raises:
        ConfigError: there are none.
    """
    known = island.state if isinstance(island.state, dict) else {}
    kept = known[label] if label in known else island.left(label)
    if "shared" not in kept:
        raise ConfigError(f"no shares under {label!r}", where="read_shares", remedy="align first, with result='shares' and this label")  # fmt: skip
    return SharedArray(by, (np.asarray(kept["shared"]),)), SharedArray(by, (np.asarray(kept["values"]),))


def _roles(plan: AlignmentPlan, sizes: Mapping[str, int]) -> tuple[str, str]:
    """The receiver and the sender."""
    me, other = sorted(plan.roles, key=lambda role: (sizes[role], plan.roles.index(role)))
    return me, other


def _columns(plan: AlignmentPlan) -> Sequence[tuple[str, str]]:
    """The role and the name of each column of values."""
    if plan.result == "sum":
        return [(plan.holder, plan.column)]
    found = []
    for name in plan.payload:
        role = max((role for role in plan.roles if name.startswith(f"{role}.")), key=len)
        found.append((role, name.removeprefix(f"{role}.")))
    return found


def _frames(plan: AlignmentPlan, sizes: Mapping[str, int], me: str, other: str) -> list[ProtocolFrame]:
    columns, bins = _columns(plan), bins_for(sizes[me])
    words, theirs = -(-bins // 64), sum(role == other for role, _ in columns)
    steps = [(rows, words) for rows in _STEPS]
    orders = [Order("select", ((bins, 1 + len(columns)),))]
    numbers = 0
    if plan.result != "count" and plan.min_count > 1:
        steps += [(rows, 1) for rows in _LEAST]
        orders += [Order("mask", ((1,),)), Order("bit", ((1,),))]
        numbers = 3  # the masked count, the bit as a number, and the bit
    orders += [Order("triple", (shape,), bitwise=True) for shape in steps]
    differences = sum(2 * rows * width for rows, width in steps) + numbers
    frames = function_frames(me, other, sizes[me])
    frames.append(ProtocolFrame("places", other, me, 1, _SEED, "the seed of the table's places"))
    cells = KeyValueTable.cells_for(TABLES * sizes[other])
    frames.append(ProtocolFrame("table", other, me, cells, _WORD * (1 + theirs), "a cell, random for the receiver"))
    frames += transfer_frames(plan.roles, orders)
    frames += [ProtocolFrame("", a, b, differences, _WORD, "differences from random numbers") for a, b in ((me, other), (other, me))]  # fmt: skip
    if plan.result != "shares":
        frames += [ProtocolFrame("opened", a, b, 1, _WORD, f"its share of the {plan.result}") for a, b in ((me, other), (other, me)) if b in plan.learners]  # fmt: skip
    return frames


# The numbers of both in each bin.


async def _read(side: AlignmentSide) -> None:
    """The receiver: keep a number for each bin, and its part of the columns."""
    columns = _columns(side.plan)
    theirs = [i for i, (role, _) in enumerate(columns) if role == side.other]
    width = 1 + len(theirs)
    own = _values_of(side)
    hashed, table, functions = await ask_functions(side, _WORD * width)
    await settle(side, "corrections")
    seed = (await side.receive_rows("places", side.other, 1, _SEED)).tobytes()
    size = KeyValueTable.cells_for(TABLES * side.sizes[side.other])
    cells = await side.receive_rows("table", side.other, size, _WORD * width)
    bind_digest(side, hashlib.blake2b(cells.data, digest_size=_SEED).digest())
    full = np.flatnonzero(table >= 0)
    items = table[full]
    read = KeyValueTable(seed, cells.view("<u8").astype(np.uint64)).decode(_keys(full, hashed.words[items]))
    read ^= functions[items].view("<u8").astype(np.uint64)
    drawn = np.zeros((len(table), width), dtype=np.uint64)  # bins without a key: the sender's number is random
    drawn[full] = read
    values = np.zeros((len(table), len(columns)), dtype=np.uint64)
    values[full] = own[items]
    values[:, theirs] = drawn[:, 1:]
    await side.keep(target=drawn[:, 0].copy(), values=values)


async def _write(side: AlignmentSide) -> None:
    """The sender: draw the numbers, and send the table. It is made once a job, before it is sent: two tables under the same functions would tell which keys it has."""
    columns = _columns(side.plan)
    mine = [i for i, (role, _) in enumerate(columns) if role == side.me]
    own = _values_of(side)
    hashed, bins, functions = await answer_functions(side, _WORD * (1 + len(mine)))
    said, about = side.recall("Circuit said"), _digest_of(side, own)
    if said is None:
        secret, count = side.island.secret, bins_for(side.sizes[side.other])
        drawn = secret.uint64((count, 1 + len(mine)))
        values = np.repeat(own, TABLES, axis=0)[:, mine] - drawn[bins, 1:]
        told = np.concatenate([drawn[bins, :1], values], axis=1)
        told ^= functions.view("<u8").astype(np.uint64)
        made = KeyValueTable.encode(_keys(bins, np.repeat(hashed.words, TABLES, axis=0)), told, secret)
        said = {"about": about, "places": made.seed, "cells": made.cells, "drawn": drawn}
        side.remember(**{"Circuit said": said})
    if said["about"] != about:
        raise DataError("this party's values are not those that it began to align in this job", where="psi", remedy="bring back the table as it was, or align changed values or other columns in a job of their own")  # fmt: skip
    await settle(side, "corrections")
    await side.send_rows("places", side.other, np.frombuffer(said["places"], dtype=np.uint8).reshape(1, -1))
    await side.send_rows("table", side.other, np.asarray(said["cells"]).astype("<u8"))
    drawn = np.asarray(said["drawn"])
    values = np.zeros((len(drawn), len(columns)), dtype=np.uint64)
    values[:, mine] = drawn[:, 1:]
    await side.keep(target=drawn[:, 0].copy(), values=values)


def _keys(bins: NDArray[np.int64], words: NDArray[np.uint8]) -> list[bytes]:
    joined = np.concatenate([bins.astype("<i8").view(np.uint8).reshape(-1, 8), words], axis=1)
    raw, size = joined.tobytes(), joined.shape[1]
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def _digest_of(side: AlignmentSide, values: Words) -> bytes:
    content = repr((side.plan.result, _columns(side.plan), side.plan.fraction)).encode() + values.tobytes()
    return hashlib.blake2b(content, digest_size=_SEED).digest()


def _values_of(side: AlignmentSide) -> Words:
    """This role's values of each key in units of ``2^-fraction``, ``(keys, columns)``; zeros in the other's columns.

    Raises:
        DataError: a column is unknown, is no numbers, or has a value that is missing, infinite or too large.
    """
    columns, keys = _columns(side.plan), side.keys
    values = np.zeros((len(keys), len(columns)), dtype=np.int64)
    for i, (role, name) in enumerate(columns):
        if role != side.me:
            continue
        where, table = f"the table of {side.me}", side.island.data
        if name not in table:
            raise DataError(f"there is no column {name!r}", where=where, remedy=f"choose from {name_columns(table)}")  # fmt: skip
        column = np.asarray(table[name])
        if column.dtype.kind not in "biuf":
            raise DataError(f"column {name!r} holds text", where=where, remedy="name a column of numbers")
        known, rows = keys.rows, np.arange(len(keys.rows))
        if side.plan.result == "sum":  # a key counts with all its rows, and a missing value adds nothing
            use = known >= 0
        else:
            use = np.zeros(len(rows), dtype=bool)
            use[keys.places] = True
        numbers = column.astype(np.float64)
        missing = np.flatnonzero(use & np.isnan(numbers))
        if len(missing) and side.plan.result != "sum":
            raise DataError(f"column {name!r} has no value in row {missing[0] + side.plan.row_offset}", where=where, remedy="fill it, or leave the row out")  # fmt: skip
        use[missing] = False
        endless = np.flatnonzero(use & np.isinf(numbers))
        if len(endless):
            raise DataError(f"column {name!r} has an infinity in row {endless[0] + side.plan.row_offset}", where=where, remedy="correct it, or leave it empty")  # fmt: skip
        scaled = np.where(use, numbers, 0.0) * 2.0**side.plan.fraction
        if not np.abs(scaled).sum() < 2.0**62:
            raise DataError(f"column {name!r} adds up to more than 2^{62 - side.plan.fraction}", where=where, remedy="correct it, or use a smaller unit or fraction")  # fmt: skip
        np.add.at(values[:, i], known[use], np.rint(scaled[use]).astype(np.int64))
    return values.view(np.uint64)


# The comparison.


async def _compare(side: AlignmentSide) -> _Found:
    plan, first = side.plan, side.me == side.plan.roles[0]
    dealer = await ObliviousDealer.begin(side.island.secret, side.peers, side.other, first=first)
    sharing = AdditiveSharing(WordRing(64), 2)
    by = AdditiveComputation(side.island, side.peers, plan.roles, side.me, sharing, dealer)
    target, values = np.asarray(side.state["target"]), np.asarray(side.state["values"])
    ones = np.full((len(target), 1), first, dtype=np.uint64)
    words, found = np.concatenate([ones, values], axis=1), []
    for at in range(0, len(target), _BLOCK):
        part = slice(at, at + _BLOCK)
        same = await _equal_bits(by, ~target[part] if first else target[part])
        found.append(await dealer.select_words(same, words[part]))
    shares = np.concatenate(found)
    shared, columns = shares[:, 0].copy(), shares[:, 1:].copy()
    if plan.result != "count" and plan.min_count > 1:
        few = await less(SharedArray(by, (shared.sum(keepdims=True, dtype=np.uint64),)), by.constant(np.array([plan.min_count])))  # fmt: skip
        if (await opened(few))[0]:
            raise PolicyError(f"fewer than {plan.min_count} keys are shared", where="policy", remedy="align larger sets, or lower min_count in the job")  # fmt: skip
    if plan.result == "count":
        return _Found(shared, columns, count=await _open_to_learners(side, shared))
    if plan.result == "sum":
        number = await _open_to_learners(side, columns[:, 0])
        return _Found(shared, columns, total=None if number is None else number / 2.0**plan.fraction)
    return _Found(shared, columns)


async def _equal_bits(by: AdditiveComputation, numbers: Words) -> NDArray[np.bool_]:
    """This party's part of the bits that say where both numbers are equal: the first party gives its own inverted, so that all 64 bits of the XOR are 1 there."""
    padded = np.concatenate([numbers, np.zeros(-len(numbers) % 64, dtype=np.uint64)])
    rows = transpose_bits(padded.astype("<u8").view(np.uint8).reshape(len(padded), _WORD)).view("<u8").astype(np.uint64)
    same = await all_of(SharedArray(by.bitwise, (rows,)))
    raw = np.ascontiguousarray(same.parts[0]).astype("<u8").view(np.uint8)
    return np.unpackbits(raw, count=len(numbers), bitorder="little").astype(bool)


async def _open_to_learners(side: AlignmentSide, numbers: Words) -> int | None:
    """The sum of shared numbers, signed, for a role that learns it."""
    share = numbers.sum(keepdims=True, dtype=np.uint64)
    if side.learns(side.other):
        await side.send_rows("opened", side.other, share.astype("<u8").reshape(1, 1))
    if not side.learns(side.me):
        return None
    told = (await side.receive_rows("opened", side.other, 1, _WORD)).view("<u8").astype(np.uint64)
    return int((told[0] + share).astype(np.int64)[0])
