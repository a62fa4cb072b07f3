"""The tasks of a bounded sum: what a party seals for each of two servers, and how these find out who is beyond the bound.

==========  ===========  =========================================================================  ===============================
superstep   who          what it does                                                               the server gets
==========  ===========  =========================================================================  ===============================
split       party        runs the task, and seals its masked words to the first server, and the     the form of the totals
                         seed of the mask to the second
receive     servers      keep what the parties have sealed                                          whose shares are usable
compare     servers,     draw projections together, project their shares, and compare on shares     one bit a party
            dealer
add         servers      add up their shares of the parties within the bound, once                  two shares of the sum
==========  ===========  =========================================================================  ===============================
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import LetterError, PolicyError
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.core.requests.task import task

from ..ballot import hash_set, ready_to_vote, require_majority
from ..keystream import SEED, add_masks, derived
from ..shares import (
    AdditiveComputation,
    AdditiveSharing,
    PartyDealer,
    SharedArray,
    WordRing,
    negative,
    opened,
    truncate,
)
from ..words import form_of
from .plan import BITS, BoundPlan
from .projections import MOST_OUTSIDE, PROJECTIONS, project_rows

if TYPE_CHECKING:
    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Island

    from ..shares import Computation
    from ..words import WordLayout
    from .plan import BoundedTotal

__all__ = ["DEALER", "SERVERS", "SHARING", "add", "compare", "receive", "split"]

SERVERS = ("first-server", "second-server")
DEALER = "dealer"
SHARING = AdditiveSharing(WordRing(BITS), 2)
Array = np.ndarray[Any, np.dtype[Any]]
_FINE = 8
"""Bits behind the point of a bound that is multiplied by a weight."""


@task
async def split(island: Island, message: Tree) -> Tree:
    """Run the program's task, and seal a share of its words to each server. Return the form of the totals, which is public."""
    plan = BoundPlan.of(message)
    island.bind_letters(plan.fingerprint)
    totals = await island.totals(plan.least)
    layout = plan.layout(form_of(totals))
    plan.find_bounded(layout)
    lanes = layout.encode(totals, island.name)
    seed = island.secret.bytes(SEED)
    add_masks(lanes, [(derived(seed, "bounded sum"), False)])
    bound = {"plan": plan.fingerprint, "asked": bytes.fromhex(island.asked), "layout": layout.fingerprint}
    island.post(SERVERS[0], {**bound, "lanes": lanes})
    island.post(SERVERS[1], {**bound, "seed": seed})
    island.state = ready_to_vote(island, plan.electorate())
    return {"form": layout.form}


@task
def receive(island: Island, message: Tree) -> list[str]:
    """At a server: keep the shares that have come, and say whose are usable."""
    plan = BoundPlan.of(message["plan"])
    layout, sent = plan.layout(message["form"]), list(message["sent"])
    island.bind_letters(plan.fingerprint, split.name)
    bound = {"plan": plan.fingerprint, "asked": bytes.fromhex(message["asked"]), "layout": layout.fingerprint}
    usable = {
        name: letter for name, letter in island.inbox.items() if name in sent and _is_share(letter, bound, layout)
    }
    require_majority(island, plan.electorate(), sent, message["votes"].get(island.name, {}))
    kept = {name: letter.get("lanes", letter.get("seed")) for name, letter in usable.items()}
    island.state = {"plan": message["plan"], "form": message["form"], "shares": kept}
    return sorted(usable)


def _is_share(letter: Any, bound: dict[str, bytes], layout: WordLayout) -> bool:
    """Whether a letter has a share for this plan, of this request and form."""
    if not isinstance(letter, dict) or any(letter.get(name) != value for name, value in bound.items()):
        return False
    if "seed" in letter:
        return isinstance(letter["seed"], bytes) and len(letter["seed"]) == SEED
    lanes = letter.get("lanes")
    forms = {lane: (length,) for lane, length in layout.lengths.items()}
    return (
        isinstance(lanes, dict)
        and {lane: np.shape(words) for lane, words in lanes.items()} == forms
        and all(np.asarray(words).dtype == word_dtype(int(lane)) for lane, words in lanes.items())
    )


def _lanes(share: Any, layout: WordLayout) -> dict[str, Array]:
    """A server's share of a party's words: what it was sent, or what follows from the seed."""
    if isinstance(share, dict):
        return {lane: np.asarray(words) for lane, words in share.items()}
    made = {lane: np.zeros(length, dtype=word_dtype(int(lane))) for lane, length in layout.lengths.items()}
    add_masks(made, [(derived(share, "bounded sum"), True)])
    return made


@task
async def compare(island: Island, peers: Peers, me: str, names: list[str]) -> list[str]:
    """A server's role: return the names of the parties beyond the bound, which is all that is opened."""
    state, other = island.state, SERVERS[1 - SERVERS.index(me)]
    plan = BoundPlan.of(state["plan"])
    layout = plan.layout(state["form"])
    own = island.secret.bytes(SEED)
    await peers.send(other, own)
    theirs = await peers.recv(other)
    if not isinstance(theirs, bytes) or len(theirs) != SEED:
        raise LetterError(f"{other} draws no projections", where="bounded sum", remedy=f"look at {other}")
    drawn = (own, theirs) if me == SERVERS[0] else (theirs, own)
    seed = hashlib.sha256(b"atoll projections" + b"".join(drawn)).digest()
    dealer = PartyDealer(peers, DEALER, first=me == SERVERS[0])
    async with AdditiveComputation(island, peers, SERVERS, me, SHARING, dealer) as it:
        rows = np.stack([_lanes(state["shares"][name], layout)[str(BITS)].view(np.ndarray) for name in names])
        wrong = it.constant(np.zeros(len(names), dtype=np.uint64))
        for place, (_, total) in enumerate(sorted(plan.find_bounded(layout).items())):
            wrong = wrong + await _beyond(it, plan, total, rows, derived(seed, f"total {place}"))
        flags = await opened(await negative(-wrong))
    beyond = [name for name, flag in zip(names, flags.tolist(), strict=True) if flag]
    island.state = {**state, "within": sorted(set(names) - set(beyond))}
    return beyond


async def _beyond(it: Computation, plan: BoundPlan, total: BoundedTotal, rows: Array, seed: bytes) -> SharedArray:
    """How many of its rules each party breaks, ``(parties,)``: the norm, and the range of the weight."""
    parties = len(rows)
    columns = np.concatenate([np.arange(slot.start, slot.start + slot.size) for slot in total.slots])
    values = rows if len(columns) == rows.shape[1] else rows[:, columns]
    y = SharedArray(it, (project_rows(values, seed),))
    broken = it.constant(np.zeros(parties, dtype=np.uint64))
    if total.weight is None:
        bound = it.constant(np.full((parties, 1), int(total.limit), dtype=np.uint64))
    else:
        weight = SharedArray(it, (rows[:, total.weight.start],))
        most = int(plan.max_weight * 2.0 ** -(total.weight.unit or 0))
        broken = broken + await negative(weight) + await negative(-weight + most)
        # The words of a mean are weight * value, so the bound is the weight times that of a value.
        factor = int(total.limit * 2.0 ** (total.weight.unit or 0) * 2**_FINE)
        bound = (await truncate(weight * factor, _FINE)).reshape(parties, 1)
    wide = SharedArray(it, tuple(np.broadcast_to(part, (parties, PROJECTIONS)) for part in bound.parts))
    outside = await negative(wide - y) + await negative(wide + y)
    return broken + await negative(-outside.sum(axis=1) + MOST_OUTSIDE)


@task
def add(island: Island, message: Tree) -> Tree:
    """At a server: its share of the sum of the parties within the bound, once.

    Raises:
        PolicyError: the set is another than the one that was found, or too small.
    """
    state = island.state
    if not state or "within" not in state:
        raise PolicyError(
            "a sum before its bound is checked", where="bounded sum", remedy="look at the server: it left out a step"
        )
    plan, kept = BoundPlan.of(state["plan"]), sorted(message["kept"])
    if kept != state["within"] or len(kept) < plan.least:
        raise PolicyError(
            f"a sum of {len(kept)} parties, {len(state['within'])} within the bound, at least {plan.least}",
            where="bounded sum",
            remedy="invite more parties, or raise the bound; a sum of others than those within it is given to nobody",
        )
    island.promise(f"added in {island.sum}", hash_set(kept))
    layout = plan.layout(state["form"])
    sums = {lane: np.zeros(length, dtype=word_dtype(int(lane))) for lane, length in layout.lengths.items()}
    for name in kept:
        for lane, words in _lanes(state["shares"][name], layout).items():
            sums[lane] += words.view(np.ndarray)
    island.state = {"plan": state["plan"]}
    return {lane: Words.of(words, int(lane)) for lane, words in sums.items()}
