"""Excess noise in a masked sum: parties add it in parts, and once it is known who is in the sum, the server takes the parts off that it does not need.

==========  ============================================================================================================================
superstep   what is added to the steps of `halves`
==========  ============================================================================================================================
deal        the party draws the seed of its first part, from which the others follow, and splits the seed of each part among its holders
masked      it adds all parts to the words of the stage that relies on them (`atoll.secure.noise.ExcessNoise`)
reveal      holders open, for each party in the sum, their shares of one seed: that of the first part which a sum of so many does not need
==========  ============================================================================================================================

A holder computes which part that is from the number of parties in the sum, and from the agreement that its own words were made for; the server names none. So the server can take
back more only if it names more parties than are in the sum. Then it misses the words of those, whose masks stay in the sum.

A party that is lost after it has sent its words is in the sum, and its holders open its seed as they open that of its mask. If shares are wrong, the noise stays: the sum is then less
exact, and never less private.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import PolicyError
from atoll.privacy.discrete import SkellamLaw, sampler_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from atoll.core.requests.island import Island

    from ..keystream import Keystream
    from ..noise import ExcessNoise
    from ..words import WordLayout
    from ..words.slots import Slot
    from .agreement import Agreement

__all__ = ["add_missing", "add_parts", "require_noise", "subtract_parts"]


def require_noise(island: Island, agreed: Agreement) -> None:
    """Refuse a sum in which the stages of the party's reply would have less noise than they rely on.

    Raises:
        PolicyError: fewer replies may be opened than the stages rely on, or other parts of their noise than they add.
    """
    uplink = island.uplink
    noise: ExcessNoise | None = None if uplink is None else uplink.excess
    parts, most = (0, 0) if noise is None else (noise.parts, noise.most)
    if (agreed.parts, agreed.most) != (parts, most):
        raise PolicyError(
            f"a masked sum that takes back noise in {agreed.parts} parts up to {agreed.most} replies, and stages with {parts} parts up to {most}",
            where="masked sum",
            remedy="look at the server: it would take back noise that the sum needs",
        )
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
