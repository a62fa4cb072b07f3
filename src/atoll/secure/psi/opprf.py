"""`Opprf`: three and more parties, of which nobody learns what only some share (Kolesnikov, Matania, Pinkas, Rosulek and Trieu 2017)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError, PolicyError
from atoll.core.exposure import Contract, Exposure, ProtocolFrame

from .ecdh import draw_order
from .protocol import AlignmentPlan, AlignmentSide, Matches, PsiProtocol, base_contract
from .ristretto import BYTES, draw_scalar, hash_keys, invert_scalar, raise_points, require_points

if TYPE_CHECKING:
    from atoll.core.requests.island import Secret

__all__ = ["KeyValueTable", "Opprf"]

Values = NDArray[np.uint64]
"""Some words a key, ``(keys, words)``; two in this protocol."""

VALUE = 16
_SEED = 32


@dataclass(frozen=True)
class KeyValueTable:
    """A table from which every key reads a value, and which tells nothing of which keys it was made for if their values are random (Garimella et al. 2021).

    A key has a cell in each third of the table, and its value is the exclusive or of the three. Cells that no key decides are random.

    Attributes:
        seed: of the cells' places, 32 bytes.
        cells: ``(cells, words)``.
    """

    seed: bytes
    cells: Values

    @staticmethod
    def cells_for(keys: int) -> int:
        """The number of cells, which follows from the number of keys alone: 1.35 a key and 96 more, where all but few seeds succeed."""
        return 3 * -(-(135 * keys + 9600) // 300)

    @classmethod
    def encode(cls, keys: Sequence[bytes], values: Values, secret: Secret) -> KeyValueTable:
        """Make a table for distinct keys. A seed whose cells cannot be decided one by one is drawn again, whatever the values.

        Args:
            keys: the keys.
            values: their values.
            secret: the source of the seed and the random cells.
        """
        size = cls.cells_for(len(keys))
        while True:
            seed = secret.bytes(_SEED)
            places = _cells_of(keys, seed, size)
            rounds = _peel(places, size)
            if rounds is not None:
                break
        cells = secret.uint64((size, values.shape[1]))
        for chosen, cell in reversed(rounds):
            cells[cell] = 0
            cells[cell] = values[chosen] ^ np.bitwise_xor.reduce(cells[places[chosen]], axis=1)
        return cls(seed, cells)

    def decode(self, keys: Sequence[bytes]) -> Values:
        """What each key reads; for a key that the table was not made for, a value that looks random."""
        read: Values = np.bitwise_xor.reduce(self.cells[_cells_of(keys, self.seed, len(self.cells))], axis=1)
        return read


def _cells_of(keys: Sequence[bytes], seed: bytes, size: int) -> NDArray[np.int64]:
    """Three cells of each key, ``(keys, 3)``, one in each third."""
    words = np.frombuffer(b"".join(hashlib.blake2b(key, key=seed, digest_size=24).digest() for key in keys), dtype="<u8").reshape(-1, 3)  # fmt: skip
    third = size // 3
    return (words % np.uint64(third)).astype(np.int64) + third * np.arange(3)


def _peel(places: NDArray[np.int64], size: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]] | None:
    """An order in which each key has a cell that no later key has: rounds of keys and their cells; ``None`` if there is none."""
    left, rounds = len(places), []
    degree, names = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    np.add.at(degree, places, 1)
    np.bitwise_xor.at(names, places, np.arange(len(places))[:, None])
    while left:
        single = np.flatnonzero(degree == 1)
        if not len(single):
            return None
        chosen, first = np.unique(names[single], return_index=True)
        rounds.append((chosen, single[first]))
        np.subtract.at(degree, places[chosen], 1)
        np.bitwise_xor.at(names, places[chosen], chosen[:, None])
        left -= len(chosen)
    return rounds


@dataclass(frozen=True)
class Opprf(PsiProtocol):
    """Two or more parties, by shares of zero that only a key of all makes whole.

    The *leader* is the learner with the smallest set. Every two parties share a seed, and each has a share ``s_i(x)`` for any key, all of which together are zero.

    1. ``seed``: between every two roles. ``asked``: the leader sends the others ``H(x)^r`` of its keys, in a secret order.
    2. ``answered``: role i raises them to its exponent, so that the leader knows ``F_i(x)`` of its own keys and of no others. ``table``: it sends a `KeyValueTable` in which its
       key y reads ``F_i(y) ^ s_i(y)``.
    3. For each of its keys the leader adds up what the tables read, the ``F_i`` and its own share: zero, if all have the key. If one lacks it, a share is missing and the rest
       look random, so no intersection of fewer parties shows.
    4. ``shared``: the leader tells each other learner a hash of ``F_i(x)`` for each of its keys, random where it is not shared.

    The roles follow the protocol, and no two of them put together what they know (with the leader, they would see what they and the others share).
    """

    results: ClassVar[tuple[str, ...]] = ("ids",)
    most_roles: ClassVar[int] = 1000

    def contract(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Contract:
        """Return 64 bytes of a key of the leader for each other role, and 22 bytes a key of each table."""
        self.require_plan(plan)
        leader = _leader(plan, sizes)
        frames = [ProtocolFrame("seed", a, b, 1, _SEED, "a secret of two") for a, b in _pairs(plan.roles)]
        for other in plan.others(leader):
            cells = KeyValueTable.cells_for(sizes[other])
            frames.append(ProtocolFrame("asked", leader, other, sizes[leader], BYTES, "H(x)^r, in secret order"))
            frames.append(ProtocolFrame("answered", other, leader, sizes[leader], BYTES, "the same, raised"))
            frames.append(ProtocolFrame("places", other, leader, 1, _SEED, "the seed of the table's places"))
            frames.append(ProtocolFrame("table", other, leader, cells, VALUE, "a cell, random without the leader's keys"))  # fmt: skip
            if other in plan.learners:
                frames.append(ProtocolFrame("shared", leader, other, sizes[leader], VALUE, "a shared key's hash, or random bytes"))  # fmt: skip
        made = base_contract(self, plan, frames)
        learns = [one if one.kind != "ids" else Exposure(one.who, "which of its own keys all have", f"{one.assuming}, and do not put together what they know", "ids", one.of) for one in made.learns]  # fmt: skip
        return Contract(made.protocol, made.frames, tuple(learns))

    def work(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return one exponent for each key, and two more of the leader's with each other role."""
        leader, keys, others = sizes[_leader(plan, sizes)], sum(sizes.values()), len(plan.roles) - 1
        return {"key": 2 * keys, "point": keys, "raise": keys + 2 * others * leader, "cell": keys - leader}

    async def match(self, side: AlignmentSide) -> Matches:
        """Return what this role learns."""
        leader = _leader(side.plan, side.sizes)
        if side.me != leader:
            side.require_count(None)  # the leader learns the keys and their number at once
        if "seeds" not in side.state:
            await _begin(side, leader)
        return await (_lead(side) if side.me == leader else _follow(side, leader))


def _leader(plan: AlignmentPlan, sizes: Mapping[str, int]) -> str:
    return min(plan.learners, key=lambda role: (sizes[role], plan.roles.index(role)))


def _pairs(roles: Sequence[str]) -> list[tuple[str, str]]:
    return [(one, two) for i, one in enumerate(roles) for two in roles[i + 1 :]]


async def _begin(side: AlignmentSide, leader: str) -> None:
    """Agree on the seeds, and swap the leader's blinded keys. In a later alignment of the job all is said again as it was, so that a changed set is seen."""
    secret, kept = side.island.secret, side.recall("Opprf") or {}
    seeds, digest = dict(kept.get("seeds", {})), _digest_of(side)
    if kept.get("keys", digest) != digest:
        raise DataError("this party's keys are not those that it began to align in this job", where="psi", remedy="bring back the table as it was, or align changed keys in a job of their own")  # fmt: skip
    for one, two in _pairs(side.plan.roles):
        if side.me == one:
            seeds[two] = seeds.get(two) or secret.bytes(_SEED)
            await side.send_rows("seed", two, np.frombuffer(seeds[two], dtype=np.uint8).reshape(1, -1))
    for one, two in _pairs(side.plan.roles):
        if side.me == two:
            row = await side.receive_rows("seed", one, 1, _SEED)
            side.bind_set(row, one, what="seed")
            seeds[one] = row.tobytes()
    if side.me != leader:
        asked = await side.receive_rows("asked", leader, side.sizes[leader], BYTES)
        require_points(asked, leader, raised=True)
        side.bind_set(asked, leader)
        said = kept.get("said")
        if said is not None and not np.array_equal(
            kept["asked"], asked
        ):  # a second table under the same seeds would tell which keys this role has
            raise PolicyError(f"{leader} comes with another set than before in this job, or in another order", where="policy", remedy="align changed sets in a job of their own, which the site's people see")  # fmt: skip
        said = said or _encode_set(side, asked, seeds, leader)
        side.remember(Opprf={"keys": digest, "seeds": seeds, "asked": asked, "said": said})
        await side.keep(seeds=seeds, **said)
        return
    scalar, order = kept.get("scalar") or draw_scalar(secret), kept.get("order")
    order = draw_order(secret, len(side.keys)) if order is None else np.asarray(order)
    asked = raise_points(hash_keys(side.keys.names), scalar)[order]
    for other in side.plan.others(leader):
        await side.send_rows("asked", other, asked)
    side.remember(Opprf={"keys": digest, "seeds": seeds, "scalar": scalar, "order": order})
    await side.keep(seeds=seeds, scalar=scalar, order=order)


def _digest_of(side: AlignmentSide) -> bytes:
    """Of a role's own keys in the order of u."""
    return hashlib.blake2b("\0".join(side.keys.names).encode(), digest_size=_SEED).digest()


def _encode_set(
    side: AlignmentSide, asked: NDArray[np.uint8], seeds: Mapping[str, bytes], leader: str
) -> dict[str, Any]:
    """All that another role says of its set, made before anything is said: shares of zero stand in one table alone.

    In two tables under two functions, as after a crash, a key of the leader would read one share from both exactly where this role has the key.
    """
    keys, scalar = [name.encode() for name in side.keys.names], draw_scalar(side.island.secret)
    functions = _functions(keys, raise_points(hash_keys(side.keys.names), scalar))
    table = KeyValueTable.encode(keys, functions ^ _share_of_zero(keys, seeds.values()), side.island.secret)
    answered = raise_points(asked, scalar, leader)
    return {"answered": answered, "functions": functions, "places": table.seed, "cells": table.cells}


async def _follow(side: AlignmentSide, leader: str) -> Matches:
    state = side.state
    if "sent" not in state:
        await side.send_rows("answered", leader, state["answered"])
        await side.send_rows("places", leader, np.frombuffer(state["places"], dtype=np.uint8).reshape(1, -1))
        await side.send_rows("table", leader, np.asarray(state["cells"]).astype("<u8"))
        await side.keep(sent=True)
    if not side.learns(side.me):
        return Matches()
    told = await side.receive_rows("shared", leader, side.sizes[leader], VALUE)
    known = {row.tobytes() for row in told}
    tellings = _tellings(np.asarray(state["functions"]))
    shared = np.fromiter((one in known for one in tellings), dtype=bool, count=len(side.keys))
    return Matches(shared, int(shared.sum()))


async def _lead(side: AlignmentSide) -> Matches:
    if "held" not in side.state:
        # What the others have said is settled before the leader tells anything: after a crash they cannot say something else.
        await side.keep(**await _read_tables(side))
    order, held = side.state["order"], np.asarray(side.state["held"])
    side.require_count(int(held.sum()))
    for other in side.plan.others(side.me):
        if side.learns(other):
            noise = np.frombuffer(side.island.secret.bytes(VALUE * len(held)), dtype=np.uint8).reshape(-1, VALUE)
            tellings = _tellings(np.asarray(side.state["functions"][other]))
            hashes = np.frombuffer(b"".join(tellings), dtype=np.uint8).reshape(-1, VALUE)
            await side.send_rows("shared", other, np.where(held[:, None], hashes, noise))
    shared = np.zeros(len(held), dtype=bool)
    shared[order] = held
    return Matches(shared, int(held.sum()))


async def _read_tables(side: AlignmentSide) -> dict[str, Any]:
    """Which of the leader's keys all have, and each other's function of each key, in the secret order."""
    keys = [side.keys.names[i].encode() for i in side.state["order"].tolist()]
    back, functions = invert_scalar(side.state["scalar"]), {}
    shares = [_share_of_zero(keys, side.state["seeds"].values())]
    for other in side.plan.others(side.me):
        answered = await side.receive_rows("answered", other, len(keys), BYTES)
        require_points(answered, other, raised=True)
        functions[other] = _functions(keys, raise_points(answered, back, other))
        seed = (await side.receive_rows("places", other, 1, _SEED)).tobytes()
        cells = await side.receive_rows("table", other, KeyValueTable.cells_for(side.sizes[other]), VALUE)
        side.bind_set(cells, other)
        shares.append(_read_share(KeyValueTable(seed, cells.view("<u8").astype(np.uint64)), keys, functions[other]))
    return {"held": (np.bitwise_xor.reduce(shares) == 0).all(axis=1), "functions": functions}


def _read_share(table: KeyValueTable, keys: Sequence[bytes], functions: Values) -> Values:
    """What the leader reads for each of its keys: the other's share of zero if that one has the key, else what looks random. The two look alike."""
    return table.decode(keys) ^ functions


def _functions(keys: Sequence[bytes], points: NDArray[np.uint8]) -> Values:
    """``F(x)``: BLAKE2b of the raised point, keyed by nothing but the point, and of the key, ``(keys, 2)``."""
    raw = points.tobytes()
    rows = (hashlib.blake2b(raw[BYTES * i : BYTES * (i + 1)] + key, digest_size=VALUE).digest() for i, key in enumerate(keys))  # fmt: skip
    return np.frombuffer(b"".join(rows), dtype="<u8").reshape(-1, 2).astype(np.uint64)


def _tellings(functions: Values) -> list[bytes]:
    """A hash of each value, by which its owner knows it and nobody else's value shows."""
    raw = functions.astype("<u8").tobytes()
    return [hashlib.blake2b(raw[at : at + VALUE], digest_size=VALUE, person=b"shared").digest() for at in range(0, len(raw), VALUE)]  # fmt: skip


def _share_of_zero(keys: Sequence[bytes], seeds: Iterable[bytes]) -> Values:
    """One role's share of zero for each key: BLAKE2b under each seed that it has with another, ``(keys, 2)``."""
    total = np.zeros((len(keys), 2), dtype=np.uint64)
    for seed in seeds:
        rows = b"".join(hashlib.blake2b(key, key=seed, digest_size=VALUE, person=b"zero").digest() for key in keys)
        total ^= np.frombuffer(rows, dtype="<u8").reshape(-1, 2).astype(np.uint64)
    return total
