"""The halves of a sum whose masks' seeds a third party holds, as tasks.

==========  ========  =====================================================================  =========================
superstep   who       what it does                                                           the server gets
==========  ========  =====================================================================  =========================
attest      holder    vouches for its code (an enclave)                                      the statement
entrust     party     draws a seed, and seals it to the holder                               nothing
masked      party     runs the task, and adds the mask of its seed to its words              masked words, added up
describe    party     tells what its totals are, which is the same at every party            names, kinds and shapes
open_masks  holder    adds up the masks of the parties in the sum                            the sum of their masks
==========  ========  =====================================================================  =========================

A holder opens one set a sum, and binds itself to it in its record (`bind_set`), whatever crashes or is replayed. Between organisations it opens the set for which the parties
vote. The letters say how many parties the sum must have at least, so a server cannot ask for the masks of a few.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import MessageError, PolicyError
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.core.requests.task import Batch, task

from ..ballot import Electorate, ready_to_vote, require_majority
from ..keystream import SEED, add_masks, derived
from ..masking.agreement import Agreement
from ..masking.blocks import least_of
from ..words import WordLayout, form_of
from ..words.blocks import CodedBlock
from .attestation import SimulatedAttestation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.core.requests.cohort import Cohort
    from atoll.core.requests.island import Island

    from .attestation import Attestation

__all__ = ["attest", "attestation_of", "describe", "entrust", "masked", "open_masks", "register_attestation"]

_ATTESTATIONS: dict[str, type[Any]] = {"SimulatedAttestation": SimulatedAttestation}


def register_attestation(kind: type[Any]) -> type[Any]:
    """Make an attestation known by its class's name, as a decorator: a dataclass whose settings are plain values. Every party registers it."""
    _ATTESTATIONS[kind.__name__] = kind
    return kind


def attestation_of(spec: dict[str, Any]) -> Attestation:
    """An attestation from its name and settings; see `register_attestation`.

    Raises:
        PolicyError: no attestation of that name is known here.
    """
    if spec["name"] not in _ATTESTATIONS:
        raise PolicyError(
            f"an attestation {spec['name']!r}",
            where="attestation",
            remedy=f"use one of {sorted(_ATTESTATIONS)}, or register it",
        )
    made: Attestation = _ATTESTATIONS[spec["name"]](**spec["settings"])
    return made


@task
def attest(island: Island, message: Tree) -> bytes:
    """The holder's statement about its code, for a challenge."""
    del island
    return attestation_of(message["attestation"]).quote(message["challenge"])


@task
def entrust(island: Island, message: Tree) -> None:
    """Draw a seed and seal it to the holder, once its statement is accepted."""
    agreed, holder = Agreement.of(message["agreed"]), message["holder"]
    agreed.place(island.name)
    island.bind_letters(agreed.fingerprint)
    if message["quote"] is not None:
        attestation_of(message["attestation"]).verify(message["quote"], challenge_of(agreed))
    seed = island.secret.bytes(SEED)
    island.post(holder, {"seed": seed, "agreed": agreed.fingerprint, "least": agreed.least})
    island.state = {"agreed": message["agreed"], "seed": seed}


def challenge_of(agreed: Agreement) -> bytes:
    """What the enclave's statement must be bound to: this sum."""
    return hashlib.sha256(b"atoll attestation" + agreed.fingerprint).digest()


def _mask(island: Island, agreed: Agreement, layout: WordLayout, lanes: dict[str, Any]) -> None:
    """Add the party's mask, and forget the seed."""
    context = agreed.context(island.asked, layout.fingerprint)
    add_masks(lanes, [(derived(island.state["seed"], "held", context), False)])
    electorate = Electorate(agreed.names, agreed.least, agreed.fingerprint)
    form = np.frombuffer(M.encode(layout.form), dtype=np.uint8)
    island.state = {"form": form, **ready_to_vote(island, electorate)}


def _read_agreement(island: Island) -> Agreement:
    if island.state is None or "seed" not in island.state:
        raise PolicyError(
            "masked words without a seed", where="masked sum", remedy="look at the server: it left out a step"
        )
    return Agreement.of(island.state["agreed"])


def _masked_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    """`masked` for a cohort in blocks."""
    del message
    for block in cohort.totals(least_of(cohort)):
        islands = [cohort.island(i) for i in block.positions.tolist()]
        agreed = [_read_agreement(island) for island in islands]
        made = CodedBlock.of(block, agreed[0].layout, [island.name for island in islands])
        for row, i in enumerate(made.good):
            _mask(islands[i], agreed[i], made.layout, {lane: words[row] for lane, words in made.lanes.items()})
        yield Batch(made.positions, {lane: Sum(words) for lane, words in made.lanes.items()}, errors=made.errors)


@task(many=_masked_many)
async def masked(island: Island, message: Tree) -> Tree:
    """Reply with the masked words of the party's totals, by lane."""
    del message
    agreed = _read_agreement(island)
    totals = await island.totals(agreed.least)
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    _mask(island, agreed, layout, lanes)
    return {lane: Sum(words) for lane, words in lanes.items()}


@task
def describe(island: Island, message: Tree) -> Tree:
    """Reply with the form of the totals, see `form_of`."""
    del message
    return M.decode(np.asarray(island.state["form"]).tobytes())


@task
def open_masks(island: Island, message: Tree) -> Tree:
    """At the holder: the sum of the masks of all whose letters are here, once.

    Args:
        island: the holder.
        message: what the masks are bound to (``context``), the word counts by lane (``lanes``), the agreement, the names of the parties in the sum (``kept``),
            and their votes.

    Raises:
        PolicyError: fewer parties than they demand, or letters of another sum.
    """
    agreed, kept = Agreement.of(message["agreed"]), list(message["kept"])
    island.bind_letters(agreed.fingerprint, entrust.name)
    letters = island.inbox
    for name, letter in letters.items():
        _require_seed(name, letter, agreed.fingerprint)
    if set(letters) != set(kept):
        raise PolicyError(
            f"the masks of {len(letters)} parties for a sum of {len(kept)}",
            where="masked sum",
            remedy="look at the server",
        )
    electorate = Electorate(agreed.names, agreed.least, agreed.fingerprint)
    require_majority(island, electorate, kept, message["votes"])
    least = max((letter["least"] for letter in letters.values()), default=2)
    if len(letters) < max(2, least):
        raise PolicyError(
            f"the masks of {len(letters)} parties, fewer than {max(2, least)}",
            where="masked sum",
            remedy="look at the server, or invite more parties",
        )
    lanes = {lane: np.zeros(count, dtype=word_dtype(int(lane))) for lane, count in message["lanes"].items()}
    add_masks(lanes, [(derived(letter["seed"], "held", message["context"]), False) for letter in letters.values()])
    return {lane: Words.of(words, int(lane)) for lane, words in lanes.items()}


def _require_seed(name: str, letter: Any, agreed: bytes) -> None:
    """Require a letter of *entrust* for this sum.

    Raises:
        MessageError: it is none.
        PolicyError: it is for another sum.
    """
    kinds = {"seed": bytes, "agreed": bytes, "least": int}
    sound = isinstance(letter, dict) and all(isinstance(letter.get(part), kind) for part, kind in kinds.items())
    if not sound or len(letter["seed"]) != SEED:
        raise MessageError(
            f"{name} sealed a letter without a seed", where="masked sum", remedy=f"leave {name} out, and look at it"
        )
    if letter["agreed"] != agreed:
        raise PolicyError(
            f"{name} has entrusted its seed to another sum", where="masked sum", remedy="look at the server"
        )
