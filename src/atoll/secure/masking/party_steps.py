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
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import LetterError, PolicyError
from atoll.core.requests.task import Batch, task
from atoll.privacy.discrete import SkellamLaw, sampler_of

from ..ballot import bind_set
from ..keystream import SEED, add_between, add_masks, derived
from ..noise import ExcessNoise
from ..words import CodedBlock, form_of
from .agreement import Agreement, known_form
from .unmasking import commitment, pair_seed, public_key, shares_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from atoll.core.requests.cohort import Cohort, TotalsBlock
    from atoll.core.requests.island import Island

    from ..keystream import Keystream
    from ..words import Slot, WordLayout

__all__ = [
    "add_missing",
    "add_parts",
    "deal",
    "label_of",
    "least_of",
    "leave",
    "masked",
    "masked_many",
    "masks_of",
    "pair_of",
    "prepare_agreement",
    "read_promise",
    "require_noise",
    "require_votes",
    "reveal",
    "subtract_parts",
    "vote",
]


# ------------------------------------------------------------------ excess noise in a masked sum
#
# Excess noise in a masked sum: parties add it in parts, and once it is known who is in the sum, the server takes the parts off that it does not need.
# ==========  ============================================================================================================================
# superstep   what is added to the steps of `halves`
# ==========  ============================================================================================================================
# deal        the party draws the seed of its first part, from which the others follow, and splits the seed of each part among its holders
# masked      it adds all parts to the words of the stage that relies on them (`atoll.secure.noise.ExcessNoise`)
# reveal      holders open, for each party in the sum, their shares of one seed: that of the first part which a sum of so many does not need
# ==========  ============================================================================================================================
#
# A holder computes which part that is from the number of parties in the sum, and from the agreement that its own words were made for; the server names none. So the server can take
# back more only if it names more parties than are in the sum. Then it misses the words of those, whose masks stay in the sum.
#
# A party that is lost after it has sent its words is in the sum, and its holders open its seed as they open that of its mask. If shares are wrong, the noise stays: the sum is then less
# exact, and never less private.


def require_noise(island: Island, agreed: Agreement) -> None:
    """Refuse a sum in which the stages of the party's reply would have less noise than they rely on.

    Raises:
        PolicyError: fewer replies may be opened than the stages rely on, or other parts of their noise than they add.
    """
    uplink = island.uplink
    noise: ExcessNoise | None = None if uplink is None else uplink.excess
    parts, most = (0, 0) if noise is None else (noise.parts, noise.most)
    # The server takes parts off by these numbers; with others it would take off noise that the guarantee needs.
    if (agreed.parts, agreed.most) != (parts, most):
        raise PolicyError(
            f"a masked sum that takes back noise in {agreed.parts} parts up to {agreed.most} replies, and stages with {parts} parts up to {most}",
            where="masked sum",
            remedy="look at the server: it would take back noise that the sum needs",
        )
    # A sum of fewer parties has less noise than the epsilon in the ledger was computed with.
    if uplink is not None and agreed.least < uplink.replies:
        raise PolicyError(
            f"a masked sum of {agreed.least} replies or more, and stages that rely on {uplink.replies}",
            where="masked sum",
            remedy="look at the server: it would open a sum with too little noise",
        )


def add_parts(island: Island, layout: WordLayout, lanes: Mapping[str, Any]) -> None:
    """Add all parts of a party's noise to its words, in place."""
    if island.uplink is not None and island.uplink.excess is not None:
        _add(island.uplink.excess, layout, lanes, island.state["parts"], 1, +1)


def subtract_parts(noise: ExcessNoise, layout: WordLayout, lanes: Mapping[str, Any], seed: bytes, first: int) -> None:
    """Take the parts from ``first`` on of one party off the sum of the words, in place."""
    _add(noise, layout, lanes, seed, first, -1)


def add_missing(
    noise: ExcessNoise, layout: WordLayout, lanes: Mapping[str, Any], replies: int, source: Keystream
) -> None:
    """Add what the parties of a simulation with virtual masks leave out: the noise that a sum of so many needs beside their bases, in one piece.

    It has the law of the parts that real parties add and the server does not take back.
    """
    variance = replies * (noise.needed(min(replies, noise.most)) - noise.needed(noise.most))
    pieces = math.ceil(variance / SkellamLaw.largest)
    for _ in range(pieces):
        sampler = sampler_of(SkellamLaw(variance / pieces))
        _put(layout, lanes, sampler.draw(source, sum(slot.size for slot in _slots(layout))))


def _slots(layout: WordLayout) -> list[Slot]:
    return [slot for slot in layout.slots if slot.unit is None]


def _add(noise: ExcessNoise, layout: WordLayout, lanes: Mapping[str, Any], seed: bytes, first: int, sign: int) -> None:
    _put(layout, lanes, sign * noise.drawn(seed, sum(slot.size for slot in _slots(layout)), first))


def _put(layout: WordLayout, lanes: Mapping[str, Any], drawn: NDArray[np.int64]) -> None:
    """Add one number to each word that a stage has made, in place."""
    at = 0
    for slot in _slots(layout):
        words = np.asarray(lanes[str(slot.bits)])[slot.where]
        words += drawn[at : at + slot.size].astype(words.dtype)  # modulo the dtype's 2^p, of which 2^bits is a divisor
        at += slot.size


# ------------------------------------------------------------------ what a party has between the steps of a masked sum
#
# What a party has between the steps of a masked sum: its key, its own seed, and the letters of its neighbours.


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
            seeds.append((pair_of(island, name, letter, context), other < me))
    return seeds


def pair_of(island: Island, name: str, letter: Any, context: bytes) -> bytes:
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


def prepare_agreement(island: Island, written_in: str) -> tuple[Agreement, dict[str, Any]]:
    """The agreement, and the letters of the parties that have dealt in a task of this name.

    Raises:
        PolicyError: the party has dealt no shares for this sum, or too few others have; or its stages rely on more noise than the sum would have.
    """
    if island.state is None or "key" not in island.state:
        raise PolicyError(
            "masked words without shares", where="masked sum", remedy="look at the server: it left out a step"
        )
    agreed = Agreement.of(island.state["agreed"])
    require_noise(island, agreed)
    island.bind_letters(agreed.fingerprint, written_in)
    letters = island.inbox
    if len(letters) < agreed.threshold:
        raise PolicyError(
            f"{len(letters)} parties have dealt shares, fewer than the threshold of {agreed.threshold}",
            where="masked sum",
            remedy="invite more parties",
        )
    return agreed, letters


def leave(island: Island, letters: Mapping[str, Any], layout: WordLayout) -> None:
    """Keep what *reveal* needs, and forget the secrets."""
    # The key and the own seed go: who takes the party's state after this can open no mask that a threshold has not opened.
    kept = {name: letter["shares"] for name, letter in letters.items()}
    agreed, public = island.state["agreed"], island.state["public"]
    island.state = {
        "agreed": agreed,
        "public": public,
        "shares": kept,
        "form": layout.form,
        "matter": island.matter,
    }


# ------------------------------------------------------------------ the party's half of a masked sum for a cohort that runs in blocks
#
# The party's half of a masked sum for a cohort that runs in blocks: the stream of a pair that is here is made once.


_MOST = 1 << 29
"""Bytes of words that are masked together."""


def masked_many(cohort: Cohort, message: Tree, written_in: str) -> Iterator[Batch]:
    """`masked` for a cohort in blocks, whose parties have dealt in a task of the name ``written_in``."""
    if message is not None:
        yield from _unmasked_many(cohort, Agreement.of(message))
        return
    waiting, nbytes = list[_MaskedBlock](), 0
    for block in cohort.totals(least_of(cohort)):
        waiting.append(_MaskedBlock.of(cohort, block, written_in))
        nbytes += sum(words.nbytes for words in waiting[-1].coded.lanes.values())
        # Pairs whose ends are in different groups make their stream twice, so groups are as large as memory allows.
        if nbytes > _MOST:
            yield from _together(waiting)
            waiting, nbytes = [], 0
    yield from _together(waiting)


def least_of(cohort: Cohort) -> int | None:
    """The least number of parties in a sum by the agreements that the parties of a cohort hold; ``None`` if one holds none."""
    states = (cohort.state(i) for i in range(len(cohort)))
    found = [int(state["agreed"]["least"]) if state and "agreed" in state else 0 for state in states]
    return min(found, default=0) or None


@dataclass
class _MaskedBlock:
    """The words of a block of parties, before they are masked.

    Attributes:
        coded: the words.
        islands: the parties that have words.
        letters: what each of them has opened.
        agreed: the agreement.
    """

    coded: CodedBlock
    islands: list[Island]
    letters: list[dict[str, Any]]
    agreed: Agreement

    @classmethod
    def of(cls, cohort: Cohort, block: TotalsBlock, written_in: str) -> _MaskedBlock:
        """Encode the totals of a block."""
        islands = [cohort.island(i) for i in block.positions.tolist()]
        ready = [prepare_agreement(island, written_in) for island in islands]
        agreed = ready[0][0]
        coded = CodedBlock.of(block, agreed.layout, [island.name for island in islands])
        kept = [islands[i] for i in coded.good]
        for i, island in enumerate(kept):
            add_parts(island, coded.layout, {lane: words[i] for lane, words in coded.lanes.items()})
        return cls(coded, kept, [ready[i][1] for i in coded.good], agreed)


def _together(blocks: list[_MaskedBlock]) -> Iterator[Batch]:
    """Mask the words of parties that run in one process: the stream of a pair that is here is made once, added at one end and subtracted at the other."""
    rows = [(block, i) for block in blocks for i in range(len(block.islands))]
    here = {block.islands[i].name: at for at, (block, i) in enumerate(rows)}
    contexts = [block.agreed.context(block.islands[i].asked, block.coded.layout.fingerprint) for block, i in rows]
    seeds = list[tuple[bytes, int | None, int | None]]()
    for at, (block, i) in enumerate(rows):
        island, agreed = block.islands[i], block.agreed
        me = agreed.place(island.name)
        elsewhere = {}
        for name, letter in block.letters[i].items():
            other = here.get(name)
            # Not here, or bound to another request or form: the two streams differ, so each end makes its own.
            if other is None or other == at or contexts[other] != contexts[at]:
                elsewhere[name] = letter
            elif agreed.place(name) > me and agreed.place(name) in agreed.graph[me]:
                seeds.append((pair_of(island, name, letter, contexts[at]), at, other))
        mine = masks_of(island, agreed, elsewhere, contexts[at])
        seeds += [(seed, None, at) if subtract else (seed, at, None) for seed, subtract in mine]
    for lane in blocks[0].coded.lanes if blocks else ():
        words = [block.coded.lanes[lane][i].view(np.ndarray) for block, i in rows]
        add_between(words, ((derived(seed, f"lane {lane}"), plus, minus) for seed, plus, minus in seeds))
    for block in blocks:
        for island, letters in zip(block.islands, block.letters, strict=True):
            leave(island, letters, block.coded.layout)
        reply: dict[str, Aggregate] = {lane: Sum(words) for lane, words in block.coded.lanes.items()}
        yield Batch(block.coded.positions, reply, errors=block.coded.errors)


def _unmasked_many(cohort: Cohort, agreed: Agreement) -> Iterator[Batch]:
    """The words themselves, for a simulation with virtual masks."""
    for block in cohort.totals(agreed.least):
        encoded = M.encode(form_of(block.totals, block=True))
        made, form = CodedBlock.under(agreed.known_layout(encoded), block), np.frombuffer(encoded, dtype=np.uint8)
        states = {"form": np.broadcast_to(form, (len(made.good), len(form)))}
        reply: dict[str, Aggregate] = {lane: Sum(words) for lane, words in made.lanes.items()}
        yield Batch(made.positions, reply, states, errors=made.errors)


# ------------------------------------------------------------------ the party's half of a masked sum (Bonawitz et al. 2017; Bell et al. 2020), as tasks


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
