"""The party's half of a masked sum (Bonawitz et al. 2017; Bell et al. 2020), as tasks.

=========  ==================================================================  ==============================================
superstep  the party                                                           the server gets
=========  ==================================================================  ==============================================
deal       draws a key and a seed of its own, splits both among its holders,   the public key, and commitments to the shares
           and sends each a sealed letter
masked     runs the task, encodes its totals as words, and adds its masks:     masked words, which the engine adds up
           one from its own seed, and one for each neighbour that has dealt
vote       tells the others who is in the sum (against an active server)       nothing
reveal     opens, for each party in the sum, its share of that party's own     the shares
           seed, and for each that was lost its share of that one's key
=========  ==================================================================  ==============================================

**Once.** A party binds itself in its record (`Island.promise`) to the words that it masks, and before it votes and reveals, to one set of parties. The
record is durable when a reply leaves, and never rolls back. So for every sum a party masks one update and reveals shares for one set only, whatever crashes, resumes or
is replayed: nobody wins both seeds of a party. The shares travel as letters inside the letters, which only *reveal* opens.

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
from atoll.core.requests.task import task

from ..ballot import bind_set
from ..keystream import SEED, add_masks
from ..noise import ExcessNoise
from ..words import form_of
from .agreement import Agreement, known_form
from .blocks import masked_many
from .excess import add_parts
from .party import leave, masks_of, prepare_agreement
from .seeds import commitment, public_key, shares_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.core.requests.cohort import Cohort
    from atoll.core.requests.island import Island
    from atoll.core.requests.task import Batch

__all__ = ["deal", "label_of", "masked", "read_promise", "require_votes", "reveal", "vote"]


def label_of(kept: list[int], lost: list[int]) -> str:
    """A hash of a set of parties: what they vote on, and the label of the requests that vote and reveal."""
    content = np.array([len(kept), *sorted(kept), *sorted(lost)], dtype="<i8")
    return hashlib.sha256(content.tobytes()).hexdigest()[:32]


def read_promise(message: Tree) -> int:
    """The least number of parties in the sum of an agreement; 0 for one that trusts the server."""
    agreed = Agreement.of(message)
    return max(agreed.least, agreed.threshold) if agreed.active else 0


def _promised_before(message: Tree) -> int | None:
    """What *deal* has promised holds for the later steps: without it they refuse. Virtual masks promise nothing."""
    return 0 if isinstance(message, dict) and "names" in message else None


@task(promise=read_promise)
def deal(island: Island, message: Tree) -> Tree:
    """Deal shares of a new key and of a new seed to the holders, in sealed letters."""
    agreed = Agreement.of(message)
    agreed.require_active(island)
    island.bind_letters(agreed.fingerprint)
    holders = agreed.holders(agreed.place(island.name))
    key, own = island.secret.bytes(SEED), island.secret.bytes(SEED)
    secrets, more = [key, own], dict[str, bytes]()
    if agreed.parts:
        more["parts"] = island.secret.bytes(SEED)
        secrets += [ExcessNoise.link(more["parts"], k) for k in range(agreed.parts)]
    shares = {
        use: shares_of(secret, len(holders), agreed.threshold, island.secret)
        for use, secret in zip(agreed.uses, secrets, strict=True)
    }
    public = public_key(key)
    for place, holder in enumerate(holders):
        name = agreed.names[holder]
        sealed = island.seal(name, {use: rows[place] for use, rows in shares.items()})
        island.post(name, {"key": public, "shares": sealed})
    island.state = {"agreed": message, "key": key, "own": own, "public": public, **more}
    commitments = b"".join(commitment(use, row) for use, rows in shares.items() for row in rows)
    anchor = {"anchor": ExcessNoise.link(secrets[-1])} if agreed.parts else {}
    return {"key": public, "own": commitment("seed", own), "shares": commitments, **anchor}


def _masked_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    """`masked` for a cohort in blocks."""
    return masked_many(cohort, message, deal.name)


async def _reveal_party(island: Island, agreed: Agreement) -> Tree:
    """The same for one party.

    Raises:
        PolicyError: letters are really sealed here, so masks must be real too.
    """
    if island.sealing.real:
        raise PolicyError("words without masks", where="masked sum", remedy="use masks='real'")
    totals = await island.totals(agreed.least)
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    island.state = {"form": np.frombuffer(M.encode(layout.form), dtype=np.uint8)}
    return {lane: Sum(words) for lane, words in lanes.items()}


@task(many=_masked_many, promise=_promised_before, adds_excess=True)
async def masked(island: Island, message: Tree) -> Tree:
    """Reply with the masked words of the party's totals, by lane. A message, the agreement, asks for virtual masks, which only a simulation grants."""
    if message is not None:
        return await _reveal_party(island, Agreement.of(message))
    agreed, letters = prepare_agreement(island, deal.name)
    totals = await island.totals(agreed.least)
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    add_parts(island, layout, lanes)
    context = agreed.context(island.asked, layout.fingerprint)
    add_masks(lanes, masks_of(island, agreed, letters, context))
    leave(island, letters, layout)
    return {lane: Sum(words) for lane, words in lanes.items()}


@task(promise=_promised_before)
def vote(island: Island, message: Tree) -> Tree:
    """Tell the parties in the sum, all of which hold my shares, who is in it, once."""
    agreed, kept, lost = _read_request(island, message)
    for place in sorted(kept):
        island.post(agreed.names[place], label_of(sorted(kept), sorted(lost)))
    return None


@task(promise=_promised_before)
def reveal(island: Island, message: Tree) -> Tree:
    """Reply with the shares that the sum of one set of parties needs, once."""
    if island.state and "agreed" not in island.state:  # with virtual masks there are no shares
        return {"shares": {}, "form": known_form(np.asarray(island.state["form"]).tobytes())}
    agreed, kept, lost = _read_request(island, message)
    if agreed.active:
        island.bind_letters(agreed.fingerprint, vote.name)
        require_votes(island, agreed, label_of(sorted(kept), sorted(lost)))
        island.bind_letters(agreed.fingerprint, deal.name)
    shares, excess, state = {}, {}, island.state
    for use, places in (("own", kept), ("key", lost)):
        for place in sorted(places):
            name = agreed.names[place]
            if name in state["shares"]:
                held = island.open(name, state["shares"][name])
                shares[name] = held[use]
                if use == "own" and (part := agreed.excess(len(kept))) is not None:
                    excess[name] = held[part]
    island.state = {**state, "shares": {}}
    return {"shares": shares, "form": state["form"], **({"excess": excess} if excess else {})}


def _read_request(island: Island, message: Tree) -> tuple[Agreement, set[int], set[int]]:
    """The agreement and the set of parties that a request names.

    Raises:
        PolicyError: the request is for a second set, or for one that would tell a sum of a few.
    """
    state = island.state
    if not state or not state.get("shares"):
        raise PolicyError("a second set of seeds", where="masked sum", remedy="look at the server: it asked twice")
    agreed = Agreement.of(state["agreed"])
    kept, lost = set(message["kept"]), set(message["lost"])
    island.bind_letters(agreed.fingerprint)
    agreed.require_set(kept, lost, agreed.place(island.name), island.organisation)
    bind_set(island, [agreed.names[i] for i in kept], state["matter"])
    # By the key that the shares open, not by the request: whatever the sum is called, they open for one set.
    matter = f"masked sum {hashlib.sha256(state['public']).hexdigest()[:32]}"
    island.promise(matter, label_of(sorted(kept), sorted(lost)))
    return agreed, kept, lost


def require_votes(island: Island, agreed: Agreement, label: str) -> None:
    """Require that as many parties as the threshold have voted for the same set.

    Raises:
        PolicyError: names a party that has voted for another.
    """
    votes: dict[str, Any] = {}
    for name, letter in island.letters.items():
        if name in agreed.names:
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
