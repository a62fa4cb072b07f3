"""Masks as a code: shares of a mask that add up, and the party's halves of a sum that one vector of each party opens (So et al. 2022).

============  ====================================================================  ======================================
superstep     the party                                                             the server gets
============  ====================================================================  ======================================
code_words    runs the task, adds the mask of a fresh seed to its words, and seals  masked words, and what the totals are
              to every party its share of the mask
vote_on_sum   adds up its shares of the masks of the parties in the sum, and tells  nothing
              the others who is in it (between organisations)
sum_shares    shows that total, once                                                the sum of the shares
============  ====================================================================  ======================================
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import MessageError, PolicyError
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.core.requests.task import task

from ..ballot import Electorate, cast_vote, ready_to_vote, require_majority
from ..galois import GaloisRing
from ..keystream import SEED, add_masks, derived, keystream
from ..shares.word_ring import WordRing
from ..words import form_of
from .agreement import Agreement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.core.requests.island import Island

    from ..shares.domain import Array

__all__ = ["Code", "code_words", "sum_shares", "vote_on_sum"]


@dataclass(frozen=True)
class Code:
    """A linear code over words: ``parties`` shares of a vector, any ``threshold`` of which give it, and any ``private`` of which tell nothing.

    The vector is cut into ``threshold - private`` pieces, the high coefficients of a polynomial over a Galois ring. The low coefficients are noise. Share ``i`` is the
    value at point ``i``. Shares of several vectors add up to shares of their sum.

    Attributes:
        parties: number of shares.
        threshold: shares that give the vector.
        private: shares that tell nothing; below the threshold.
    """

    parties: int
    threshold: int
    private: int

    @functools.cached_property
    def ring(self) -> GaloisRing:
        """The ring, with a point for each party."""
        return GaloisRing.with_points(self.parties)

    @functools.cached_property
    def _evaluation(self) -> Array:
        return self.ring.vandermonde(self.ring.points(self.parties), self.threshold)

    def elements(self, length: int) -> int:
        """Ring elements of a piece of a vector."""
        return -(-length // (self.ring.m * (self.threshold - self.private)))

    def share_length(self, length: int) -> int:
        """Words of a share."""
        return self.ring.m * self.elements(length)

    def shares(self, vector: Array, noise: Array, bits: int) -> Array:
        """The shares of a vector of words, ``(parties, share_length)``.

        Args:
            vector: the words.
            noise: ``private * share_length`` uniform words.
            bits: word length ``p``.
        """
        each, pieces = self.elements(len(vector)), self.threshold - self.private
        filled = np.zeros(pieces * self.ring.m * each, dtype=np.uint64)
        filled[: len(vector)] = vector
        rows = np.concatenate([noise.astype(np.uint64), filled]).reshape(self.threshold * self.ring.m, each)
        return WordRing(max(2, bits)).dot(self._evaluation, rows).reshape(self.parties, -1)

    def open_shares(self, shares: Mapping[int, Any], length: int, bits: int) -> tuple[Array, list[int]]:
        """The vector, and the places of shares beyond the threshold that do not fit it.

        Args:
            shares: party's place -> its share; ``threshold`` or more.
            length: words of the vector.
            bits: word length ``p``.
        """
        places, ring, words = sorted(shares), self.ring, WordRing(max(2, bits))
        first, rest = places[: self.threshold], places[self.threshold :]
        rows = np.concatenate([np.asarray(shares[i]).astype(np.uint64).reshape(ring.m, -1) for i in first])
        coefficients = words.dot(ring.interpolation(ring.points(self.parties)[first]), rows)
        # A threshold of shares fixes the polynomial, so every further share is a check of it.
        again = [words.dot(self._evaluation[i * ring.m : (i + 1) * ring.m], coefficients) for i in rest]
        nothing = np.zeros(rows.shape[1] * ring.m, dtype=np.uint64)
        sent = [words.add(np.asarray(shares[i]).astype(np.uint64), nothing) for i in rest]
        wrong = [i for i, row, share in zip(rest, again, sent, strict=True) if not np.array_equal(row.ravel(), share)]
        return coefficients[self.private * ring.m :].reshape(-1)[:length], wrong


@task
async def code_words(island: Island, message: Tree) -> Tree:
    """Reply with the masked words of the party's totals, and seal to every party its share of the mask."""
    agreed = Agreement.of(message["agreed"])
    totals = await island.totals(agreed.least)
    code = Code(len(agreed.names), agreed.threshold, int(message["private"]))
    if not 1 <= code.private < code.threshold:
        raise PolicyError(
            f"a mask that {code.private} parties must not open with a threshold of {code.threshold}",
            where="masked sum",
            remedy="look at the server",
        )
    agreed.place(island.name)
    island.bind_letters(agreed.fingerprint)
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    seed = island.secret.bytes(SEED)
    context = agreed.context(island.asked, layout.fingerprint)
    own = (derived(seed, "one-shot mask", context), False)
    masks = {lane: np.zeros(len(words), dtype=word_dtype(int(lane))) for lane, words in lanes.items()}
    # The mask alone, which is shared out in code. The same mask goes onto the words below.
    add_masks(masks, [own])
    rows: list[dict[str, Any]] = [{} for _ in agreed.names]
    for lane, mask in masks.items():
        bits = int(lane)
        noise = keystream(derived(seed, f"one-shot noise {lane}"), bits, code.private * code.share_length(len(mask)))
        for row, share in zip(rows, code.shares(mask, np.asarray(noise), bits), strict=True):
            row[lane] = Words.of(share.astype(mask.dtype), bits)
    for name, row in zip(agreed.names, rows, strict=True):
        island.post(name, {"context": context, "lanes": row})
    add_masks(lanes, [own])
    electorate = Electorate(agreed.names, agreed.least, agreed.fingerprint, code.private)
    island.state = {"agreed": message["agreed"], "context": context, **ready_to_vote(island, electorate)}
    return {"words": lanes, "form": layout.form}


@task
def vote_on_sum(island: Island, message: Tree) -> None:
    """Add up my shares of the masks of the parties in the sum, and tell these parties who is in it, once."""
    kept, total = _list_kept(island, message), _total_of(island, message)
    label = cast_vote(island, kept)
    for name in kept:
        island.post(name, label)
    island.state = {**island.state, "total": total}


@task
def sum_shares(island: Island, message: Tree) -> Tree:
    """Reply with the sum of my shares of the masks of the parties in the sum, once."""
    kept = _list_kept(island, message)
    state = island.state
    if island.remote and "total" not in state:
        raise PolicyError("shares before a vote", where="masked sum", remedy="look at the server: it left out a step")
    votes = island.letters if "total" in state else {}
    require_majority(island, Electorate.of(state["electorate"]), kept, votes, vote_on_sum.name)
    total = state["total"] if "total" in state else _total_of(island, message)
    return {lane: Words.of(np.asarray(words), int(lane)) for lane, words in total.items()}


def _list_kept(island: Island, message: Tree) -> list[str]:
    """Names of the parties in the sum.

    Raises:
        PolicyError: the party has sent no words, or the set would tell a sum of a few.
    """
    state = island.state
    if not state or "context" not in state:
        raise PolicyError("shares without words", where="masked sum", remedy="look at the server: it left out a step")
    agreed, kept = Agreement.of(state["agreed"]), set(message["kept"])
    agreed.require_set(kept, set(), agreed.place(island.name), island.organisation)
    return [agreed.names[place] for place in sorted(kept)]


def _total_of(island: Island, message: Tree) -> dict[str, Any]:
    """The sum of a party's shares of the masks of the parties in the sum, by lane."""
    state = island.state
    agreed, kept = Agreement.of(state["agreed"]), set(message["kept"])
    island.bind_letters(agreed.fingerprint, code_words.name)
    letters = island.inbox
    missing = sorted(agreed.names[place] for place in kept if agreed.names[place] not in letters)
    if missing or len(letters) != len(kept):
        raise PolicyError(
            f"letters of {len(letters)} parties for a sum of {len(kept)}; without {missing[:1]}",
            where="masked sum",
            remedy="look at the server",
        )
    forms = {name: _form_of(name, letter) for name, letter in letters.items()}
    odd = [name for name, form in forms.items() if form != forms[island.name]]
    if odd:
        raise MessageError(
            f"{odd[0]} sealed shares of other sizes", where=island.name, remedy=f"leave {odd[0]} out, and look at it"
        )
    strangers = [name for name, letter in letters.items() if bytes(letter["context"]) != bytes(state["context"])]
    if strangers:
        raise PolicyError(
            f"{strangers[0]} was asked something else than {island.name}: another model, cohort or code",
            where="masked sum",
            remedy="look at the server: it told parties different things",
        )
    total: dict[str, Any] = {}
    for letter in letters.values():
        for lane, share in letter["lanes"].items():
            total[lane] = np.asarray(share) + total[lane] if lane in total else np.array(share)
    return total


def _form_of(name: str, letter: Any) -> dict[str, Any]:
    """Shape and dtype of a letter's shares by lane.

    Raises:
        MessageError: names the sender of a letter that has none.
    """
    lanes = letter.get("lanes") if isinstance(letter, dict) and isinstance(letter.get("context"), bytes) else None
    if not isinstance(lanes, dict) or not all(isinstance(share, np.ndarray) for share in lanes.values()):
        raise MessageError(
            f"{name} sealed a letter without shares", where="masked sum", remedy=f"leave {name} out, and look at it"
        )
    return {lane: (share.shape, share.dtype) for lane, share in lanes.items()}
