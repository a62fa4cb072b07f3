"""`Unbalanced`: a small set against a large one whose pass is done once, kept, and grows (Kiss et al. 2017; Resende and Aranha 2018)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import LetterError
from atoll.core.exposure import Contract, Exposure, ProtocolFrame

from .ecdh import add_shared, draw_order, open_sum, require_order, sum_frames
from .protocol import AlignmentPlan, AlignmentSide, Matches, PsiProtocol, base_contract, no_message
from .ristretto import BYTES, draw_scalar, hash_keys, invert_scalar, raise_points, require_points

__all__ = ["TagFilter", "Unbalanced"]

Tags = NDArray[np.uint8]

TAG = 12
"""Bytes of a tag: two of so many pairs of keys have one tag with a probability of ``pairs / 2^96``, below 2^-40 for 2^28 keys on either side."""


@dataclass(frozen=True)
class TagFilter:
    """The tags of a large set, ascending, so that their order betrays nothing of the keys'.

    Attributes:
        tags: ``(keys, 12)``, ascending as bytes.
    """

    tags: Tags

    def grow(self, more: Tags) -> TagFilter:
        """The filter with further tags."""
        both = np.concatenate([self.tags, more])
        return TagFilter(both[np.lexsort((_tails(both), _heads(both)))])

    def digest(self) -> bytes:
        """32 bytes that name the filter."""
        return hashlib.blake2b(np.ascontiguousarray(self.tags).tobytes(), digest_size=BYTES).digest()

    def find(self, tags: Tags) -> NDArray[np.int64]:
        """The place of each of some tags, -1 where it is not in the filter."""
        heads, tails = _heads(self.tags), _tails(self.tags)
        wanted, ends = _heads(tags), _tails(tags)
        start, stop = np.searchsorted(heads, wanted, "left"), np.searchsorted(heads, wanted, "right")
        found = np.full(len(tags), -1, dtype=np.int64)
        for step in range(int((stop - start).max(initial=0))):  # once, unless two tags share 8 bytes
            at = start + step
            open_ones = np.flatnonzero(at < stop)
            same = tails[at[open_ones]] == ends[open_ones]
            found[open_ones[same]] = at[open_ones[same]]
        return found


@dataclass(frozen=True)
class Unbalanced(PsiProtocol):
    """Two parties. The larger set's owner, the *keeper*, has the secret exponent k, and a key's tag is ``BLAKE2b(H(y)^k)`` with 12 bytes.

    1. ``filter``: the keeper sends the tags of its keys once, ascending. Both keep them at their places; later alignments of the job send the tags of new keys alone.
    2. ``asked``: the other sends ``H(x)^r`` of its keys, in a secret order.
    3. ``answered``: the keeper raises them to k and sends them back shuffled. The other takes r off and finds how many of their tags the filter has. It tells the keeper
       (``told``) if that one learns the result.
    4. For ids, the keeper sends the shuffle (``order``), and the other sends a tag for each of its keys (``tags``), random where it is not shared.

    The keeper believes the count that it is told: it cannot tell a false one, since the asker has the whole filter. `Ecdh` binds both.

    A query costs four exponents a key of the small set, whatever the size of the large one. In a sum (see `Ecdh`) the holder of the column is the keeper, whatever the sizes. If keys left the keeper's set, it
    begins again with a new exponent.
    """

    results: ClassVar[tuple[str, ...]] = ("ids", "count", "sum")

    def contract(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Contract:
        """Return the frames of a first alignment, in which nothing is kept yet."""
        self.require_plan(plan)
        keeper, asker = _roles(plan, sizes)
        both = keeper in plan.learners or plan.result == "sum"
        frames = [
            ProtocolFrame("kept", asker, keeper, 1, BYTES, "which filter it has"),
            ProtocolFrame("growth", keeper, asker, 1, 8, "how many tags follow, and whether to keep the old ones"),
            ProtocolFrame("filter", keeper, asker, sizes[keeper], TAG, "the tag of a key, ascending"),
            ProtocolFrame("asked", asker, keeper, sizes[asker], BYTES, "H(x)^r, in secret order"),
            ProtocolFrame("answered", keeper, asker, sizes[asker], BYTES, "the same, raised and shuffled"),
        ]
        frames += [ProtocolFrame("told", asker, keeper, 1, 8, "the count")] if both else []
        frames += sum_frames(plan, sizes) if plan.result == "sum" else []
        if plan.result == "ids":
            frames += (
                [ProtocolFrame("order", keeper, asker, sizes[asker], 8, "the shuffle")]
                if asker in plan.learners
                else []
            )
            frames += (
                [ProtocolFrame("tags", asker, keeper, sizes[asker], TAG, "a shared key's tag, or random bytes")]
                if both
                else []
            )
        made = base_contract(self, plan, frames)
        learns = (
            [
                Exposure(
                    asker, "how many keys all share", "all follow the protocol with their true sets", "count", keeper
                )
            ]
            if asker not in plan.learners
            else []
        )
        return Contract(made.protocol, made.frames, (*made.learns, *learns, Exposure(asker, f"how many keys {keeper} adds, and when", "", "sizes", keeper)))  # fmt: skip

    def work(self, plan: AlignmentPlan, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return those of a first alignment: one exponent for each of the keeper's keys, three for each of the asker's."""
        keeper, asker = (sizes[role] for role in _roles(plan, sizes))
        counts = {"key": keeper + asker, "point": keeper + asker, "raise": keeper + 3 * asker}
        return counts | ({"cipher": keeper, "cipher key": 1} if plan.result == "sum" else {})

    async def match(self, side: AlignmentSide) -> Matches:
        """Return what this role learns."""
        keeper, _ = _roles(side.plan, side.sizes)
        return await (_answer(side) if side.me == keeper else _ask(side))


def _roles(plan: AlignmentPlan, sizes: Mapping[str, int]) -> tuple[str, str]:
    """The keeper and the asker: the keeper has the column of a sum, or else the larger set, the first of two equal ones."""
    one, two = plan.roles
    if plan.holder:
        return (one, two) if plan.holder == one else (two, one)
    return (two, one) if sizes[two] > sizes[one] else (one, two)


# The keeper.


async def _answer(side: AlignmentSide) -> Matches:
    if "scalar" not in side.state:
        asked_for = (await side.receive_rows("kept", side.other, 1, BYTES)).tobytes()
        kept = await _send_growth(side, asked_for)
        asked = await side.receive_rows("asked", side.other, side.sizes[side.other], BYTES)
        require_points(asked, side.other, raised=True)
        side.bind_set(asked)
        side.remember(keeper=kept)
        await side.keep(scalar=kept["scalar"], tags=kept["tags"], u=kept["u"], asked=asked)
    state = side.state
    if "shuffle" not in state:
        shuffle = draw_order(side.island.secret, len(state["asked"]))
        await side.send_rows("answered", side.other, raise_points(state["asked"], state["scalar"], side.other)[shuffle])
        await side.keep(shuffle=shuffle)
        state = side.state
    count = None
    if side.learns(side.me) or side.plan.result == "sum":
        count = int((await side.receive_rows("told", side.other, 1, 8)).view("<u8")[0, 0])
        if count > min(side.sizes.values()):
            raise LetterError(f"{count} shared keys of {min(side.sizes.values())}", where=side.other, remedy="look at the party that sent it: it does not follow the protocol")  # fmt: skip
    side.require_count(count)
    mine = state["tags"][np.searchsorted(state["u"], side.keys.u)]
    if side.plan.result == "count":
        return Matches(count=count)
    if side.plan.result == "sum":
        return Matches(count=count, total=await open_sum(side, np.lexsort((_tails(mine), _heads(mine)))))
    sent = side.send_rows("order", side.other, state["shuffle"].astype("<i8").reshape(-1, 1)) if side.learns(side.other) else no_message()  # fmt: skip
    got = side.receive_rows("tags", side.other, side.sizes[side.other], TAG) if side.learns(side.me) else no_message()
    _, tags = await asyncio.gather(sent, got)
    if tags is None:
        return Matches()
    known = TagFilter(np.zeros((0, TAG), dtype=np.uint8)).grow(tags)
    shared = known.find(mine) >= 0
    return Matches(shared, int(shared.sum()))


async def _send_growth(side: AlignmentSide, asked_for: bytes) -> dict[str, Any]:
    """Send the tags that the other role lacks; return the exponent, and the tag of each key by its u."""
    kept, u = side.recall("keeper"), side.keys.u
    known = kept is not None and asked_for == kept["digest"]
    if known and np.array_equal(kept["u"], u):
        await side.send_rows("growth", side.other, np.array([[0, 1]], dtype="<u4").view(np.uint8))
        return dict(kept)
    whole = not known or not np.isin(kept["u"], u).all()
    if whole:
        kept = {"scalar": draw_scalar(side.island.secret), "u": u[:0], "tags": np.zeros((0, TAG), dtype=np.uint8)}
    new = np.flatnonzero(~np.isin(u, kept["u"]))
    more = _tags(raise_points(hash_keys([side.keys.names[i] for i in new.tolist()]), kept["scalar"]))
    await side.send_rows("growth", side.other, np.array([[len(more), not whole]], dtype="<u4").view(np.uint8))
    await side.send_rows("filter", side.other, TagFilter(more[:0]).grow(more).tags)
    both = np.concatenate([kept["u"], u[new]])
    order = np.argsort(both)
    tags = np.concatenate([kept["tags"], more])[order]
    return {"scalar": kept["scalar"], "u": both[order], "tags": tags, "digest": TagFilter(tags[:0]).grow(tags).digest()}


# The asker.


async def _ask(side: AlignmentSide) -> Matches:
    if "scalar" not in side.state:
        kept = side.recall("asker")
        known = np.zeros((0, TAG), dtype=np.uint8) if kept is None else kept["filter"]
        scalar = draw_scalar(side.island.secret) if kept is None else kept["scalar"]
        held = TagFilter(known).digest() if kept is None else kept["digest"]
        await side.send_rows("kept", side.other, np.frombuffer(held, dtype=np.uint8).reshape(1, -1))
        more, keeps = (await side.receive_rows("growth", side.other, 1, 8)).view("<u4")[0].tolist()
        known = known if keeps else known[:0]
        if len(known) + more != side.sizes[side.other]:
            raise LetterError(f"{len(known) + more} tags of {side.sizes[side.other]} keys", where=side.other, remedy="look at the party that sent them: it does not follow the protocol")  # fmt: skip
        tags = await side.receive_rows("filter", side.other, more, TAG)
        order = draw_order(side.island.secret, len(side.keys))
        await side.send_rows("asked", side.other, raise_points(hash_keys(side.keys.names), scalar)[order])
        grown = TagFilter(known).grow(tags) if more or not keeps else TagFilter(known)
        digest = grown.digest() if more or not keeps else held
        side.remember(asker={"filter": grown.tags, "digest": digest, "scalar": scalar})
        await side.keep(scalar=scalar, order=order, filter=grown.tags)
    state = side.state
    if "answered" not in state:
        answered = await side.receive_rows("answered", side.other, len(side.keys), BYTES)
        require_points(answered, side.other, raised=True)
        await side.keep(answered=answered)
        state = side.state
    tags = _tags(raise_points(state["answered"], invert_scalar(state["scalar"]), side.other))
    found_at = TagFilter(state["filter"]).find(tags)
    held = found_at >= 0
    count = int(held.sum())
    side.require_count(count)
    if side.learns(side.other) or side.plan.result == "sum":
        await side.send_rows("told", side.other, np.array([[count]], dtype="<u8"))
    if side.plan.result == "sum":
        return Matches(count=count, total=await add_shared(side, np.isin(np.arange(len(state["filter"])), found_at)))
    found = Matches(count=count if side.learns(side.me) else None)
    if side.plan.result == "count":
        return found
    noise = np.frombuffer(side.island.secret.bytes(tags.size), dtype=np.uint8).reshape(tags.shape)
    sent = side.send_rows("tags", side.other, np.where(held[:, None], tags, noise)) if side.learns(side.other) else no_message()  # fmt: skip
    got = side.receive_rows("order", side.other, len(side.keys), 8) if side.learns(side.me) else no_message()
    _, places = await asyncio.gather(sent, got)
    if places is None:
        return found
    shared = np.zeros(len(side.keys), dtype=bool)
    shared[state["order"][require_order(places.view("<i8").reshape(-1), side.other)]] = held
    return Matches(shared, count)


def _tags(points: NDArray[np.uint8]) -> Tags:
    raw = points.tobytes()
    digests = (hashlib.blake2b(raw[at : at + BYTES], digest_size=TAG).digest() for at in range(0, len(raw), BYTES))
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, TAG)


def _heads(tags: Tags) -> NDArray[np.uint64]:
    return np.ascontiguousarray(tags[:, :8]).view(">u8").reshape(-1).astype(np.uint64)


def _tails(tags: Tags) -> NDArray[np.uint32]:
    return np.ascontiguousarray(tags[:, 8:]).view(">u4").reshape(-1).astype(np.uint32)
