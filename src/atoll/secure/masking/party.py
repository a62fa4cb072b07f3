"""What a party has between the steps of a masked sum: its key, its own seed, and the letters of its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.errors import LetterError, PolicyError

from ..keystream import derived
from .agreement import Agreement
from .excess import require_noise
from .seeds import pair_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.core.requests.island import Island

    from ..words import WordLayout

__all__ = ["leave", "masks_of", "pair_of", "prepare_agreement"]


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
    kept = {name: letter["shares"] for name, letter in letters.items()}
    agreed, public = island.state["agreed"], island.state["public"]
    island.state = {
        "agreed": agreed,
        "public": public,
        "shares": kept,
        "form": layout.form,
        "matter": island.matter,
    }
