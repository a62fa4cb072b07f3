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

**Once.** Against an active server a party binds itself in its ledger, before it votes and before it reveals, to one set of parties (`atoll.core.event.Promise`). The
ledger is durable when the party goes on, and never rolls back. So for every sum a party reveals shares for one set only, whatever crashes, resumes or is
replayed: nobody wins both seeds of a party. The shares travel as letters inside the letters, which only *reveal* opens.

`deal_to`, `masks_of` and `add_masks` of ``keystream`` serve other protocols that mask words.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import LetterError, PolicyError
from atoll.core.event import Promise
from atoll.core.requests.task import Batch, task

from ..keystream import SEED, add_between, add_masks, derived
from ..words import WordLayout, form_of
from .agreement import Agreement
from .seeds import commitment, pair_seed, public_key, shares_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atoll.core.requests.cohort import Cohort, TotalsBlock
    from atoll.core.requests.island import Island

_MOST = 1 << 29
"""Bytes of words that are masked together."""

__all__ = ["deal", "label_of", "masked", "masks_of", "reveal", "vote"]


def label_of(kept: list[int], lost: list[int]) -> str:
    """A hash of a set of parties: what they vote on, and the label of the requests that vote and reveal."""
    return hashlib.sha256(M.encode([sorted(kept), sorted(lost)])).hexdigest()[:32]


def _promised(message: Tree) -> int:
    """The least number of parties in the sum of an agreement; 0 for one that trusts the server."""
    agreed = Agreement.of(message)
    return max(agreed.least, agreed.threshold) if agreed.active and agreed.degree >= len(agreed.names) - 1 else 0


def _promised_before(message: Tree) -> int | None:
    """What *deal* has promised holds for the later steps: without it they refuse. Virtual masks promise nothing."""
    return 0 if isinstance(message, dict) and "names" in message else None


@task(promise=_promised)
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
    island.state = {"agreed": message, "key": key, "own": own, "public": public}
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
            seeds.append((_pair(island, name, letter, context), other < me))
    return seeds


def _pair(island: Island, name: str, letter: Any, context: bytes) -> bytes:
    """The seed that a party shares with the sender of a letter.

    Raises:
        LetterError: names the sender, whose letter has no usable key.
    """
    try:
        return pair_seed(island.state["key"], letter["key"], context)
    except (LetterError, TypeError, KeyError) as error:
        raise LetterError(
            f"{name} dealt a key that is not usable", where=island.name, remedy=f"leave {name} out, and look at it"
        ) from error


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
    agreed, public = island.state["agreed"], island.state["public"]
    island.state = {"agreed": agreed, "public": public, "shares": kept, "form": layout.form}


def _masked_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    """`masked` for a cohort in blocks."""
    if message is not None:
        yield from _unmasked_many(cohort, Agreement.of(message))
        return
    waiting, nbytes = list[_MaskedBlock](), 0
    for block in cohort.totals():
        waiting.append(_MaskedBlock.of(cohort, block))
        nbytes += sum(words.nbytes for words in waiting[-1].lanes.values())
        if nbytes > _MOST:
            yield from _together(waiting)
            waiting, nbytes = [], 0
    yield from _together(waiting)


@dataclass
class _MaskedBlock:
    """The words of a block of parties, before they are masked.

    Attributes:
        positions: their places in the cohort.
        islands: the parties.
        letters: what each has opened.
        lanes: their words.
        layout: of the words.
        agreed: the agreement.
        errors: place in the cohort -> why a party has no words.
    """

    positions: Any
    islands: list[Island]
    letters: list[Mapping[str, Any]]
    lanes: dict[str, Any]
    layout: WordLayout
    agreed: Agreement
    errors: dict[int, Exception]

    @classmethod
    def of(cls, cohort: Cohort, block: TotalsBlock) -> _MaskedBlock:
        """Encode the totals of a block."""
        islands = [cohort.island(i) for i in block.positions.tolist()]
        ready = [_prepared(island) for island in islands]
        agreed = ready[0][0]
        layout = agreed.layout(form_of(block.totals, block=True))
        made = layout.encode_block(block.totals, [island.name for island in islands])
        good = [i for i in range(len(islands)) if i not in made.errors]
        lanes = made.lanes if not made.errors else {lane: words[good] for lane, words in made.lanes.items()}
        errors = {int(block.positions[i]): error for i, error in made.errors.items()}
        mine = [islands[i] for i in good]
        letters: list[Mapping[str, Any]] = [ready[i][1] for i in good]
        return cls(block.positions[good], mine, letters, lanes, layout, agreed, errors)


def _together(blocks: list[_MaskedBlock]) -> Iterator[Batch]:
    """Mask the words of parties that run in one process: the stream of a pair that is here is made once, added at one end and subtracted at the other."""
    rows = [(block, i) for block in blocks for i in range(len(block.islands))]
    here = {block.islands[i].name: at for at, (block, i) in enumerate(rows)}
    contexts = [block.agreed.context(block.islands[i].asked, block.layout.fingerprint) for block, i in rows]
    seeds = list[tuple[bytes, int | None, int | None]]()
    for at, (block, i) in enumerate(rows):
        island, agreed = block.islands[i], block.agreed
        me = agreed.place(island.name)
        elsewhere = {}
        for name, letter in block.letters[i].items():
            other = here.get(name)
            if other is None or other == at or contexts[other] != contexts[at]:
                elsewhere[name] = letter
            elif agreed.place(name) > me and agreed.place(name) in agreed.graph[me]:
                seeds.append((_pair(island, name, letter, contexts[at]), at, other))
        mine = masks_of(island, agreed, elsewhere, contexts[at])
        seeds += [(seed, None, at) if subtract else (seed, at, None) for seed, subtract in mine]
    for lane in blocks[0].lanes if blocks else ():
        words = [block.lanes[lane][i].view(np.ndarray) for block, i in rows]
        add_between(words, ((derived(seed, f"lane {lane}"), plus, minus) for seed, plus, minus in seeds))
    for block in blocks:
        for island, letters in zip(block.islands, block.letters, strict=True):
            _leave(island, letters, block.layout)
        reply: dict[str, Aggregate] = {lane: Sum(words) for lane, words in block.lanes.items()}
        yield Batch(block.positions, reply, errors=block.errors)


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


@task(many=_masked_many, promise=_promised_before)
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


@task(promise=_promised_before)
def vote(island: Island, message: Tree) -> Tree:
    """Tell the holders of my shares who is in the sum, once."""
    agreed, kept, lost = _asked(island, message)
    for holder in agreed.holders(agreed.place(island.name)):
        if holder in kept:
            island.post(agreed.names[holder], label_of(sorted(kept), sorted(lost)))
    return None


@task(promise=_promised_before)
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
    if agreed.active:
        matter = f"masked sum {hashlib.sha256(state['public']).hexdigest()[:32]}"
        island.spend(Promise(what=matter, bound=label_of(sorted(kept), sorted(lost)), unit="island", scope=island.name))
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
