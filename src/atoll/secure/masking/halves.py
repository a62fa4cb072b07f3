"""The party's half of a masked sum (Bonawitz et al. 2017; Bell et al. 2020), as tasks.

=========  ==================================================================  ==============================================
superstep  the party                                                           the server gets
=========  ==================================================================  ==============================================
deal       draws a key and a seed of its own, splits both among its holders,   the public key, and commitments to the shares
           and sends each a sealed letter
masked     runs the task, encodes its totals as words, and adds its masks:     masked words, which the engine adds up
           one from its own seed, and one for each neighbour that has dealt
vote       tells its holders who is in the sum (against an active server)      nothing
reveal     opens, for each party in the sum, its share of that party's own     the shares
           seed, and for each that was lost its share of that one's key
=========  ==================================================================  ==============================================

**Once.** The shares travel as letters inside the letters, and only *reveal* opens them. A letter that was opened in one request opens in no other, and that is
durable before the reply leaves (`atoll.core.sealing.receipts`). The request of *reveal* is named after the set that it opens, and the party checks the name. So for every
sum a party reveals shares for one set only, whatever crashes, resumes or is replayed. The same holds for its vote.

`deal_to`, `masks_of` and `add_masks` of ``keystream`` serve other protocols that mask words.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import LetterError, PolicyError
from atoll.core.requests.task import Batch, task

from ..keystream import SEED, add_masks, derived
from ..words import WordLayout, form_of
from .agreement import Agreement
from .seeds import commitment, pair_seed, public_key, shares_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atoll.core.requests.cohort import Cohort
    from atoll.core.requests.island import Island

__all__ = ["deal", "label_of", "masked", "masks_of", "reveal", "vote"]


def label_of(kept: list[int], lost: list[int]) -> str:
    """The label of the requests that vote on and reveal for a set of parties: a hash of the set."""
    return hashlib.sha256(M.encode([sorted(kept), sorted(lost)])).hexdigest()[:32]


@task
def deal(island: Island, message: Tree) -> Tree:
    """Deal shares of a new key and of a new seed to the holders, in sealed letters."""
    agreed = Agreement.of(message)
    holders = agreed.holders(agreed.place(island.name))
    key, own = island.secret.bytes(SEED), island.secret.bytes(SEED)
    shares = {
        use: shares_of(secret, len(holders), agreed.threshold, island.secret)
        for use, secret in (("key", key), ("own", own))
    }
    public = public_key(key)
    for place, holder in enumerate(holders):
        name = agreed.names[holder]
        sealed = island.seal(name, {use: rows[place] for use, rows in shares.items()})
        island.post(name, {"key": public, "shares": sealed})
    ballot = island.seal(island.name, None) if agreed.active else b""
    island.state = {"agreed": message, "key": key, "own": own, "ballot": ballot}
    commitments = b"".join(commitment(use, row) for use, rows in shares.items() for row in rows)
    return {"key": public, "own": commitment("seed", own), "shares": commitments}


def masks_of(island: Island, agreed: Agreement, letters: Mapping[str, Any], context: bytes) -> list[tuple[bytes, bool]]:
    """The seeds of a party's masks, and which of them are subtracted.

    Args:
        island: the party; its state has its key and its own seed.
        agreed: the agreement.
        letters: dealer's name -> its letter.
        context: what the masks are bound to.
    """
    me = agreed.place(island.name)
    seeds = [(derived(island.state["own"], "own", context), False)]
    near = set(agreed.graph[me])
    for name, letter in letters.items():
        other = agreed.place(name)
        if other in near:
            seeds.append((pair_seed(island.state["key"], letter["key"], context), other < me))
    return seeds


def _prepared(island: Island) -> tuple[Agreement, dict[str, Any]]:
    """The agreement, and the letters of the parties that have dealt.

    Raises:
        PolicyError: the party has dealt no shares for this sum, or too few others have.
    """
    if island.state is None or "key" not in island.state:
        raise PolicyError(
            "masked words without shares", where="masked sum", remedy="look at the server: it left out a step"
        )
    agreed = Agreement.of(island.state["agreed"])
    letters = island.inbox
    if len(letters) < agreed.threshold:
        raise PolicyError(
            f"{len(letters)} parties have dealt shares, fewer than the threshold of {agreed.threshold}",
            where="masked sum",
            remedy="invite more parties",
        )
    return agreed, letters


def _leave(island: Island, letters: Mapping[str, Any], layout: WordLayout) -> None:
    """Keep what *reveal* needs, and forget the secrets."""
    kept = {name: letter["shares"] for name, letter in letters.items()}
    agreed, ballot = island.state["agreed"], island.state["ballot"]
    island.state = {"agreed": agreed, "ballot": ballot, "shares": kept, "form": layout.form}


def _masked_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    """`masked` for a cohort in blocks."""
    if message is not None:
        yield from _unmasked_many(cohort, Agreement.of(message))
        return
    layout: WordLayout | None = None
    for block in cohort.totals():
        islands = [cohort.island(i) for i in block.positions.tolist()]
        ready = [_prepared(island) for island in islands]
        agreed = ready[0][0]
        if layout is None:
            layout = agreed.layout(form_of(block.totals, block=True))
        made = layout.encode_block(block.totals, [island.name for island in islands])
        for i, (island, (_, letters)) in enumerate(zip(islands, ready, strict=True)):
            if i not in made.errors:
                context = agreed.context(island.asked, layout.fingerprint)
                add_masks(
                    {lane: words[i] for lane, words in made.lanes.items()}, masks_of(island, agreed, letters, context)
                )
                _leave(island, letters, layout)
        good = [i for i in range(len(islands)) if i not in made.errors]
        errors = {int(block.positions[i]): error for i, error in made.errors.items()}
        lanes = made.lanes if not errors else {lane: words[good] for lane, words in made.lanes.items()}
        yield Batch(block.positions[good], {lane: Sum(words) for lane, words in lanes.items()}, errors=errors)


def _unmasked_many(cohort: Cohort, agreed: Agreement) -> Iterator[Batch]:
    """The words themselves, for a simulation with virtual masks."""
    for block in cohort.totals():
        layout = agreed.layout(form_of(block.totals, block=True))
        made = layout.encode_block(block.totals)
        keep = np.array([i not in made.errors for i in range(len(block.positions))])
        lanes = made.lanes if keep.all() else {lane: words[keep] for lane, words in made.lanes.items()}
        errors = {int(block.positions[i]): error for i, error in made.errors.items()}
        form = np.frombuffer(M.encode(layout.form), dtype=np.uint8)
        states = {"form": np.broadcast_to(form, (int(keep.sum()), len(form)))}
        yield Batch(block.positions[keep], {lane: Sum(words) for lane, words in lanes.items()}, states, errors=errors)


async def _unmasked(island: Island, agreed: Agreement) -> Tree:
    """The same for one party.

    Raises:
        PolicyError: letters are really sealed here, so masks must be real too.
    """
    if island.sealing.real:
        raise PolicyError("words without masks", where="masked sum", remedy="use masks='real'")
    totals = await island.totals()
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    island.state = {"form": np.frombuffer(M.encode(layout.form), dtype=np.uint8)}
    return {lane: Sum(words) for lane, words in lanes.items()}


@task(many=_masked_many)
async def masked(island: Island, message: Tree) -> Tree:
    """Reply with the masked words of the party's totals, by lane. A message, the agreement, asks for virtual masks, which only a simulation grants."""
    if message is not None:
        return await _unmasked(island, Agreement.of(message))
    agreed, letters = _prepared(island)
    totals = await island.totals()
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    context = agreed.context(island.asked, layout.fingerprint)
    add_masks(lanes, masks_of(island, agreed, letters, context))
    _leave(island, letters, layout)
    return {lane: Sum(words) for lane, words in lanes.items()}


@task
def vote(island: Island, message: Tree) -> Tree:
    """Tell the holders of my shares who is in the sum, once."""
    agreed, kept, lost = _asked(island, message)
    island.open(island.name, island.state["ballot"])
    for holder in agreed.holders(agreed.place(island.name)):
        if holder in kept:
            island.post(agreed.names[holder], label_of(sorted(kept), sorted(lost)))
    return None


@task
def reveal(island: Island, message: Tree) -> Tree:
    """Reply with the shares that the sum of one set of parties needs, once."""
    if island.state and "agreed" not in island.state:  # with virtual masks there are no shares
        return {"shares": {}, "form": M.decode(np.asarray(island.state["form"]).tobytes())}
    agreed, kept, lost = _asked(island, message)
    if agreed.active:
        _require_votes(island, agreed, label_of(sorted(kept), sorted(lost)))
    shares, state = {}, island.state
    for use, places in (("own", kept), ("key", lost)):
        for place in sorted(places):
            name = agreed.names[place]
            if name in state["shares"]:
                shares[name] = island.open(name, state["shares"][name])[use]
    island.state = {**state, "shares": {}}
    return {"shares": shares, "form": state["form"]}


def _asked(island: Island, message: Tree) -> tuple[Agreement, set[int], set[int]]:
    """The agreement and the set of parties that a request names.

    Raises:
        PolicyError: the request is for a second set, or for one that would tell a sum of a few.
    """
    state = island.state
    if not state or not state.get("shares"):
        raise PolicyError("a second set of seeds", where="masked sum", remedy="look at the server: it asked twice")
    agreed = Agreement.of(state["agreed"])
    kept, lost = set(message["kept"]), set(message["lost"])
    agreed.require_set(kept, lost, agreed.place(island.name))
    if not island.request.endswith(f"@{label_of(sorted(kept), sorted(lost))}"):
        raise PolicyError(
            "a request that is not named after its set of parties",
            where=island.request,
            remedy="look at the server: it may ask for a second set",
        )
    return agreed, kept, lost


def _require_votes(island: Island, agreed: Agreement, label: str) -> None:
    """Require that as many holders as the threshold have voted for the same set.

    Raises:
        PolicyError: names a party that has voted for another.
    """
    near = {agreed.names[i] for i in agreed.holders(agreed.place(island.name))}
    votes: dict[str, Any] = {}
    for name, letter in island.letters.items():
        if name in near:
            try:
                votes[name] = island.open(name, letter)
            except LetterError:
                votes[name] = ""
    others = sorted(name for name, said in votes.items() if said != label)
    if len(votes) - len(others) < agreed.threshold:
        shown = f"; {others[0]} voted for another set" if others else ""
        raise PolicyError(
            f"{len(votes) - len(others)} parties agree on who is in the sum, fewer than the threshold of {agreed.threshold}{shown}",
            where="masked sum",
            remedy="look at the server: it may have told parties different sets",
        )
