"""`Oprf`: intersection by a batch of oblivious pseudo-random functions (Kolesnikov, Kumaresan, Rosulek, Trieu 2016), from oblivious transfers and AES.

One role, the *receiver*, places each of its keys in a bin of its own (`cuckoo`). A row of the OT extension gives each bin ``b`` a function ``F_b``, of which the receiver learns the value
at its own key and nothing else, and the other role, the *sender*, knows all values. The sender sends ``F_b(x)`` of each of its keys ``x`` in the three bins where ``x`` may be, in
an order that follows from these values alone. The receiver finds its own values among them.

With keys as hashes ``h(x)`` under a salt of both, ``F_b(x) = H(b, q_b ^ (C(h(x)) & s))``, cut to so many bytes that two different keys agree anywhere with a probability of at most
2^-40 (``mask_bytes``).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from atoll.core.errors import DataError, LetterError, PolicyError
from atoll.core.exposure import Contract, ProtocolFrame

from ..keystream import opened
from ..oblivious import CodeReceiver, CodeSender, PseudoRandomCode
from ..oblivious.base import POINT
from ..oblivious.extension import CODE_BITS
from .cuckoo import TABLES, bins_for, candidate_bins, place_items
from .ecdh import Ecdh
from .protocol import (
    AlignmentPlan,
    AlignmentSide,
    Matches,
    PsiProtocol,
    base_contract,
    receive_superset,
    send_superset,
    superset_size,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "HashedKeys",
    "Oprf",
    "answer_functions",
    "ask_functions",
    "find_masks",
    "mask_bytes",
    "mask_rows",
    "sort_masks",
]

_SALT = 16
"""Bytes of a role's half of the salt."""
_KEY, _WORD = 16, 8
"""Bytes of a hashed key for the code, and of one word for a bin."""
_HASHED = _KEY + TABLES * _WORD
_DIGEST = 64
"""Bytes of BLAKE2b at most."""
_BLOCK = 1 << 15
"""Bins whose rows are made at once: 2 MiB of corrections."""


class HashedKeys:
    """Keys under a salt: 16 bytes for the code, and three words that say in which bins a key may be.

    Args:
        names: the keys.
        salt: 32 bytes that both roles have drawn.

    Attributes:
        words: ``(keys, 16)``.
        digest: of all of them, so that a role that goes on after a crash can tell whether its keys are the same.
    """

    def __init__(self, names: Sequence[str], salt: bytes) -> None:
        blake, short, long = hashlib.blake2b, salt[:_SALT], salt[_SALT : 2 * _SALT]
        raw = bytearray(_HASHED * len(names))
        for start in range(0, len(names), _BLOCK):
            part = names[start : start + _BLOCK]
            hashed = [blake(name.encode(), digest_size=_HASHED, salt=short, person=long).digest() for name in part]
            raw[_HASHED * start : _HASHED * (start + len(part))] = b"".join(hashed)
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(len(names), _HASHED)
        self.words = np.ascontiguousarray(rows[:, :_KEY])
        self.digest = blake(raw, digest_size=32).digest()
        self._bins = np.ascontiguousarray(rows[:, _KEY:]).view("<u8").astype(np.uint64, copy=False)

    def __len__(self) -> int:
        return len(self.words)

    def candidates(self, bins: int) -> NDArray[np.int64]:
        """Bins where each key may be, ``(keys, 3)``."""
        return candidate_bins(self._bins, bins)


def mask_bytes(one: int, other: int) -> int:
    """Bytes of a mask between sets of these sizes: 40 bits more than the binary logarithm of all pairs, and 8 at least."""
    pairs = max(1, one) * max(1, other)
    return max(8, -(-(40 + math.ceil(math.log2(pairs))) // 8))


def mask_rows(rows: NDArray[np.uint8], bins: NDArray[np.int64], salt: bytes, length: int) -> NDArray[np.uint8]:
    """``H`` of rows of the extension, each with its bin: BLAKE2b, modelled as a random oracle, ``(rows, length)``; further 64 bytes each with a number above that of any bin."""
    if length > _DIGEST:
        more = mask_rows(rows, bins + (1 << 40), salt, length - _DIGEST)
        return np.concatenate([mask_rows(rows, bins, salt, _DIGEST), more], axis=1)
    size = 8 + rows.shape[1]
    joined = np.empty((len(rows), size), dtype=np.uint8)
    joined[:, :8] = bins.astype("<i8").view(np.uint8).reshape(-1, 8)
    joined[:, 8:] = rows
    raw, blake, short, long = joined.tobytes(), hashlib.blake2b, salt[:_SALT], salt[_SALT : 2 * _SALT]
    masks = [
        blake(raw[at : at + size], digest_size=length, salt=short, person=long).digest()
        for at in range(0, len(raw), size)
    ]
    return np.frombuffer(b"".join(masks), dtype=np.uint8).reshape(len(rows), length)


def sort_masks(masks: NDArray[np.uint8], length: int) -> NDArray[np.int64]:
    """The order in which a sender sends its masks ``(keys, 3 length)``: it follows from the masks alone, so it betrays nothing of the order of keys."""
    first, second = _prefixes(masks[:, :length]), _prefixes(masks[:, length : 2 * length])
    return np.lexsort((second, first))


def find_masks(mine: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> NDArray[np.int64]:
    """For each of some masks ``(n, length)``, the place of the equal one among others ``(m, length)``, -1 if there is none."""
    found = np.full(len(mine), -1, dtype=np.int64)
    if not len(theirs):
        return found
    prefixes = _prefixes(theirs)
    order = np.argsort(prefixes, kind="stable")
    prefixes = prefixes[order]
    wanted = _prefixes(mine)
    at = np.searchsorted(prefixes, wanted)
    open_ones = np.arange(len(mine))
    while len(open_ones):  # a second round only where two masks share 8 bytes
        open_ones = open_ones[at[open_ones] < len(prefixes)]
        open_ones = open_ones[prefixes[at[open_ones]] == wanted[open_ones]]
        places = order[at[open_ones]]
        same = (theirs[places] == mine[open_ones]).all(axis=1)
        found[open_ones[same]] = places[same]
        open_ones = open_ones[~same]
        at[open_ones] += 1
    return found


def _prefixes(masks: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(masks[:, :8]).view("<u8")[:, 0].astype(np.uint64, copy=False)


# The conversation.


@dataclass(frozen=True)
class Oprf(PsiProtocol):
    """Two parties; fast: 20 transfers of hashes a key and no public keys beyond 512.

    1. ``salt``, ``points``: the sender of masks draws half of a salt, then the receiver draws the other half, so that all of its keys have a bin; 512 base transfers.
    2. ``corrections``: 64 bytes of each bin, of which there are 1.305 a key (`bins_for`), from the receiver. They are uniform for the sender.
    3. ``masks``: three of each of the sender's keys, by which the receiver learns which keys are shared. All others are uniform for it.
    4. ``shared``: if the sender is to learn the result too, one bit for each of its masks; ``superset``: if its shared rows are to hide among others.

    The receiver is the role that learns the result; if both do, the one with fewer keys. If one set is empty, nothing is sent. Semi-honest: both follow the protocol with their
    true sets. Other frames than announced are refused, and masks or answers that name a key twice.

    Later alignments of a job use the same seeds, without ``salt`` and ``points``. So equal sets say equal bytes: a party refuses another set of the other, and refuses
    to go on with other keys of its own, also after a crash.

    The receiver has a function for each of its own keys, so it cannot help knowing which of them match: a count without the ids is not to be had from masks. A count and a sum
    are therefore found as by `Ecdh`, and the contract, the policy and the result name it. What transfers alone would need is an equality of 64 bits for each bin on shares: 63
    products of bits at 32 bytes, 2.7 kB a key in place of 100.
    """

    hides: ClassVar[bool] = True
    results: ClassVar[tuple[str, ...]] = Ecdh.results

    def carrier(self, result: str) -> PsiProtocol:
        """`Ecdh`, unless the result is ids."""
        return self if result == "ids" else Ecdh()

    def contract(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Contract:
        """Return the frames: 84 bytes for each of the receiver's keys, 30 for each of the sender's, for sets of up to 2^20; 17 KiB besides."""
        self.require_plan(plan)
        if plan.result != "ids":
            return self.carrier(plan.result).contract(plan, sizes)
        mine, other = choose_roles(plan, sizes)
        if not sizes[mine] or not sizes[other]:
            return base_contract(self, plan, [])
        length = mask_bytes(sizes[mine], sizes[other])
        frames = [
            *function_frames(mine, other, sizes[mine]),
            ProtocolFrame("masks", other, mine, sizes[other], TABLES * length, "three masks a key, sorted"),
        ]
        if other in plan.learners or plan.superset:
            name = "superset" if plan.superset else "shared"
            frames.append(ProtocolFrame(name, mine, other, -(-sizes[other] // 8), 1, "one bit for each row of masks"))
        return base_contract(self, plan, frames)

    def work(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return one row a bin, a mask for each of the receiver's keys and three for each of the sender's."""
        if plan.result != "ids":
            return self.carrier(plan.result).work(plan, sizes)
        return function_work(*(sizes[role] for role in choose_roles(plan, sizes)))

    async def match(self, side: AlignmentSide) -> Matches:
        """Return what this role learns."""
        if side.plan.result != "ids":
            return await self.carrier(side.plan.result).match(side)
        mine, _ = choose_roles(side.plan, side.sizes)
        if not all(side.sizes[role] for role in side.plan.roles):
            return _find_nothing(side)
        return await (_receive(side) if side.me == mine else _send(side))


def _find_nothing(side: AlignmentSide) -> Matches:
    """The result where a set is empty. All of the other's superset are dummies then, by the order of u."""
    hidden = None
    if side.plan.superset:
        (learner,) = side.plan.learners
        (other,) = side.plan.others(learner)
        rows = np.arange(superset_size(side.plan, side.sizes[other]))
        hidden = rows if side.me == other else np.full(len(rows), -1)
    if not side.learns(side.me):
        side.require_count(None)
        return Matches(hidden=hidden)
    side.require_count(0)
    return Matches(np.zeros(len(side.keys), dtype=bool), 0, hidden=hidden)


def choose_roles(plan: AlignmentPlan, sizes: Mapping[str, int]) -> tuple[str, str]:
    """The receiver and the sender of masks."""
    one, other = sorted(plan.roles, key=lambda role: (role not in plan.learners, sizes[role], plan.roles.index(role)))
    return one, other


def function_frames(me: str, other: str, size: int) -> list[ProtocolFrame]:
    """The frames of `ask_functions` for so many keys of a receiver ``me``, and of `answer_functions`."""
    return [
        ProtocolFrame("salt", other, me, 1, _SALT, "half of a random salt"),
        ProtocolFrame("salt", me, other, 1, _SALT, "half of a random salt"),
        ProtocolFrame("points", me, other, 1, POINT, "A = aG"),
        ProtocolFrame("points", other, me, CODE_BITS, POINT, "bG or bG + A, by secret bits"),
        ProtocolFrame("corrections", me, other, bins_for(size), CODE_BITS // 8, "one row a bin, uniform"),
    ]


def function_work(mine: int, theirs: int) -> dict[str, int]:
    """The operations of `ask_functions` for so many keys of the receiver, and of `answer_functions` for so many of the sender."""
    return {"key": mine + theirs, "base transfer": CODE_BITS, "row": bins_for(mine), "mask": mine + TABLES * theirs}


async def ask_functions(side: AlignmentSide, length: int) -> tuple[HashedKeys, NDArray[np.int64], NDArray[np.uint8]]:
    """The role that has a bin for each key: its hashed keys, the key of each bin, -1 for none, and ``F_b(x)`` of each key in its bin, ``(keys, length)``.

    All begins with a checkpoint, and later alignments of the job by the same protocol say the same bytes for the same keys.

    Raises:
        DataError: this party's keys are not those of an earlier alignment.
    """
    secret, bins = side.island.secret, bins_for(len(side.keys))
    placed, name = None, f"{side.protocol} receiver"
    if "code" not in side.state:
        begun = side.recall(name)
        if begun is None:
            salt, placed = await _draw_salt(side, bins)
            code = await CodeReceiver.begin(secret, side.peers.channel("points"), side.other)
            begun = {"code": code.captured(), "salt": salt, "keys": placed[0].digest, "empty": secret.bytes(32)}
            side.remember(**{name: begun})
        await side.keep(**begun)
    hashed, table = placed or _place(side, side.state["salt"], bins)
    if hashed.digest != side.state["keys"] or table is None:
        raise _other_keys()
    code, salt = CodeReceiver.restored(side.state["code"]), side.state["salt"]
    encode, empty = PseudoRandomCode(salt).encode, opened(side.state["empty"])
    mine = np.empty((len(hashed), length), dtype=np.uint8)
    for low in range(0, bins, _BLOCK):
        items = table[low : low + _BLOCK]
        full = items >= 0
        words = np.frombuffer(empty.update(bytes(_KEY * len(items))), dtype=np.uint8).reshape(-1, _KEY).copy()
        words[full] = hashed.words[items[full]]
        rows, corrections = code.extend(encode(words))
        await side.send_rows("corrections", side.other, corrections)
        mine[items[full]] = mask_rows(rows[full], low + np.flatnonzero(full), salt, length)
    return hashed, table, mine


async def _receive(side: AlignmentSide) -> Matches:
    length, bins = mask_bytes(*side.sizes.values()), bins_for(len(side.keys))
    hashed, table, mine = await ask_functions(side, length)
    await settle(side, "corrections")
    masks = await side.receive_rows("masks", side.other, side.sizes[side.other], TABLES * length)
    bind_digest(side, hashlib.blake2b(masks.data, digest_size=32).digest())
    await settle(side, "masks")
    found = np.full(len(hashed), -1, dtype=np.int64)
    places = np.flatnonzero(table >= 0)
    for i in range(TABLES):
        items = table[places[places // (bins // TABLES) == i]]
        found[items] = find_masks(mine[items], masks[:, length * i : length * (i + 1)])
    shared = found >= 0
    count = int(shared.sum())
    if len(np.unique(found[shared])) < count:
        raise _lie(side, "masks that name a key twice")
    side.require_count(count)
    if side.learns(side.other):
        flags = np.zeros(len(masks), dtype=bool)
        flags[found[shared]] = True
        await side.send_rows("shared", side.other, np.packbits(flags, bitorder="little").reshape(-1, 1))
    if not side.plan.superset:
        return Matches(shared, count)
    genuine = np.full(len(masks), -1, dtype=np.int64)
    genuine[found[shared]] = np.flatnonzero(shared)
    return Matches(shared, count, hidden=genuine[await send_superset(side, genuine >= 0, masks)])


async def answer_functions(side: AlignmentSide, length: int) -> tuple[HashedKeys, NDArray[np.int64], NDArray[np.uint8]]:
    """The other role: its hashed keys, the three bins of each, and ``F_b(y)`` of each key in each of them, ``(3 keys, length)``. The receiver is bound to its set then.

    Raises:
        DataError: this party's keys are not those of an earlier alignment.
        PolicyError: the receiver's are not.
    """
    secret, bins = side.island.secret, bins_for(side.sizes[side.other])
    hashed, name = None, f"{side.protocol} sender"
    if "code" not in side.state:
        begun = side.recall(name)
        if begun is None:
            salt = await _swap_salt(side)
            code = await CodeSender.begin(secret, side.peers.channel("points"), side.other)
            hashed = HashedKeys(side.keys.names, salt)
            begun = {"code": code.captured(), "salt": salt, "keys": hashed.digest}
            side.remember(**{name: begun})
        await side.keep(**begun)
    hashed = hashed or HashedKeys(side.keys.names, side.state["salt"])
    if hashed.digest != side.state["keys"]:
        raise _other_keys()
    code, salt = CodeSender.restored(side.state["code"]), side.state["salt"]
    encode = PseudoRandomCode(salt).encode
    flat = hashed.candidates(bins).ravel()
    order = np.argsort(flat, kind="stable")
    cuts = np.searchsorted(flat[order], np.arange(0, bins + _BLOCK, _BLOCK))
    masks, said = np.empty((len(flat), length), dtype=np.uint8), hashlib.blake2b(digest_size=32)
    for k, low in enumerate(range(0, bins, _BLOCK)):
        count = min(_BLOCK, bins - low)
        corrections = await side.receive_rows("corrections", side.other, count, CODE_BITS // 8)
        said.update(corrections.data)
        rows, at = code.extend(corrections, count, side.other), order[cuts[k] : cuts[k + 1]]
        masked = code.evaluate(rows[flat[at] - low], encode(hashed.words[at // TABLES]))
        masks[at] = mask_rows(masked, flat[at], salt, length)
    bind_digest(side, said.digest())
    return hashed, flat, masks


async def _send(side: AlignmentSide) -> Matches:
    if side.island.rules.min_aligned > 1:
        raise PolicyError(
            f"min_aligned={side.island.rules.min_aligned}, and Oprf tells {side.other} which keys are shared before {side.me} knows how many",
            where="policy",
            remedy="use protocol Ecdh, which tells the count first, or give this party the smaller set and the result",
        )
    length = mask_bytes(*side.sizes.values())
    hashed, _, masks = await answer_functions(side, length)
    await settle(side, "corrections")
    masks = masks.reshape(len(hashed), TABLES * length)
    sent = sort_masks(masks, length)
    await side.send_rows("masks", side.other, masks[sent])
    await settle(side, "masks")
    if side.plan.superset:
        return Matches(hidden=sent[await receive_superset(side, len(sent))])
    if not side.learns(side.me):
        return Matches()
    answer = await side.receive_rows("shared", side.other, -(-len(sent) // 8), 1)
    flags = np.unpackbits(answer.ravel(), bitorder="little").astype(bool)
    count = int(flags.sum())
    if flags[len(sent) :].any() or count > side.sizes[side.other]:
        raise _lie(side, f"{count} shared keys, more than there are,")
    shared = np.zeros(len(sent), dtype=bool)
    shared[sent[flags[: len(sent)]]] = True
    return Matches(shared, count)


Placed = tuple[HashedKeys, "NDArray[np.int64] | None"]


def _place(side: AlignmentSide, salt: bytes, bins: int) -> Placed:
    hashed = HashedKeys(side.keys.names, salt)
    return hashed, place_items(hashed.candidates(bins), bins)


async def _draw_salt(side: AlignmentSide, bins: int) -> tuple[bytes, Placed]:
    """The receiver's half: the first draw under which all keys have a bin, which only one set in 2^40 needs to repeat."""
    theirs = (await side.receive_rows("salt", side.other, 1, _SALT)).tobytes()
    while True:
        half = side.island.secret.bytes(_SALT)
        placed = _place(side, theirs + half, bins)
        if placed[1] is not None:
            await side.send_rows("salt", side.other, np.frombuffer(half, dtype=np.uint8).reshape(1, -1))
            return theirs + half, placed


async def _swap_salt(side: AlignmentSide) -> bytes:
    half = side.island.secret.bytes(_SALT)
    await side.send_rows("salt", side.other, np.frombuffer(half, dtype=np.uint8).reshape(1, -1))
    return half + (await side.receive_rows("salt", side.other, 1, _SALT)).tobytes()


def bind_digest(side: AlignmentSide, said: bytes) -> None:
    """Refuse another set than in an earlier alignment of the job: with the same seeds, an equal set says the same bytes."""
    side.bind_set(np.frombuffer(said, dtype=np.uint8).reshape(1, -1))


async def settle(side: AlignmentSide, frame: str) -> None:
    """Agree that a frame was said and bound, before it is answered: a party that dies with the answer could else say the frame of another set."""
    if frame not in side.state.get("settled", ()):
        await side.keep(settled=[*side.state.get("settled", ()), frame])


def _other_keys() -> DataError:
    return DataError(
        "this party's keys are not those that it began to align in this job",
        where="psi",
        remedy="bring back the table as it was, or align changed keys in a job of their own",
    )


def _lie(side: AlignmentSide, what: str) -> LetterError:
    return LetterError(
        f"{side.other} sent {what}",
        where="psi",
        remedy="look at the party that sent it: it does not follow the protocol",
    )
