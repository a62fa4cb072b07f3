"""The server's half of opening a masked sum: collect shares, find wrong ones, and take the masks off."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import LetterError, QuorumError

from ..keystream import SEED, add_masks, derived
from .agreement import use_of
from .seeds import SHARE, commitment, open_secret, pair_seed, public_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..noise import ExcessNoise
    from .agreement import Agreement

__all__ = ["Opening", "is_dealt"]


def is_dealt(agreed: Agreement, name: str, reply: Any) -> bool:
    """Whether a reply to *deal* has a public key, a commitment to the party's own seed, and one to each share."""
    size = {"key": SEED, "own": SEED, "shares": len(agreed.uses) * SEED * len(agreed.holders(agreed.place(name)))}
    size |= {"anchor": SEED} if agreed.parts else {}
    return isinstance(reply, dict) and all(
        isinstance(reply.get(part), bytes) and len(reply[part]) == nbytes for part, nbytes in size.items()
    )


@dataclass
class Opening:
    """Shares on their way to the seeds of one sum.

    Attributes:
        agreed: the agreement.
        dealt: dealer -> its public key and commitments, as it replied to *deal*.
        kept: the parties in the sum.
        lost: the parties that dealt but are not in it.
        wrong: party -> what is wrong with shares that it revealed or dealt.
    """

    agreed: Agreement
    dealt: Mapping[int, Any]
    kept: list[int]
    lost: list[int]
    wrong: dict[int, str] = field(default_factory=dict)
    _shares: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)

    @property
    def needed(self) -> list[tuple[str, int]]:
        """The seeds that the sum needs: the own one of each party in it, and the key of each lost one that shares a mask with such a party."""
        kept = set(self.kept)
        keys = [("key", j) for j in self.lost if kept & set(self.agreed.graph[j])]
        return [*(("own", i) for i in self.kept), *keys]

    def take(self, holder: int, shares: Any, use_of: str = "own") -> None:
        """Take what one holder reveals; a share that its dealer has not committed to is left out, and the holder is named.

        Args:
            holder: the holder's place.
            shares: dealer's name -> share.
            use_of: which seed of a party in the sum it is of.
        """
        lost, places = set(self.lost), {self.agreed.names[place]: place for place in self.dealt}
        if not isinstance(shares, dict):
            self.wrong[holder] = "it revealed something else than shares"
            return
        for name, share in shares.items():
            dealer = places.get(name)
            if dealer is None:
                self.wrong[holder] = f"it revealed a share of {str(name)[:80]!r}, which has dealt none"
                continue
            use = "key" if dealer in lost else use_of
            holders = self.agreed.holders(dealer)
            if holder not in holders:
                self.wrong[holder] = f"it revealed a share of {name}, which it does not hold"
            elif self._is_right(dealer, use, holders.index(holder), share):
                self._shares.setdefault((use, dealer), {})[holders.index(holder)] = share
            else:
                self.wrong[holder] = f"its share of the seed of {name} is not the one that {name} has committed to"

    def _is_right(self, dealer: int, use: str, place: int, share: Any) -> bool:
        said = self.dealt[dealer]["shares"]
        at = SEED * (place + self.agreed.uses.index(use) * len(self.agreed.holders(dealer)))
        return isinstance(share, bytes) and len(share) == SHARE and commitment(use, share) == said[at : at + SEED]

    def seeds(self) -> dict[tuple[str, int], bytes]:
        """The seeds, each from its first ``threshold`` shares.

        Raises:
            QuorumError: too few right shares of a seed were revealed, or a dealer has dealt shares of no seed.
        """
        return {which: self._seed(*which) for which in self.needed}

    def _seed(self, use: str, dealer: int) -> bytes:
        shares = dict(sorted(self._shares.get((use, dealer), {}).items())[: self.agreed.threshold])
        name = self.agreed.names[dealer]
        if len(shares) < self.agreed.threshold:
            wrong = "".join(f"; {self.agreed.names[i]}: {why}" for i, why in self.wrong.items())
            raise QuorumError(
                f"{len(shares)} right shares of the {'key' if use == 'key' else 'seed'} of {name}, fewer than the threshold of {self.agreed.threshold}{wrong}",
                where="masked sum",
                remedy="lengthen the deadline, lower the threshold, or look at the parties that are named",
            )
        try:
            seed = open_secret(shares)
            sound = self.is_seed(use, dealer, seed)
        except LetterError:
            sound = False
        if not sound:
            self.wrong[dealer] = "it dealt shares that give another seed than it has committed to"
            raise QuorumError(
                f"{name} dealt shares that give another {'key' if use == 'key' else 'seed'} than it has committed to",
                where="masked sum",
                remedy=f"leave {name} out, and look at it",
            )
        return seed

    def is_seed(self, use: str, dealer: int, seed: bytes) -> bool:
        """Whether opened shares are what their dealer has committed to."""
        said = self.dealt[dealer]
        return bool(public_key(seed) == said["key"] if use == "key" else commitment("seed", seed) == said["own"])

    def pair(self, key: bytes, lost: int, other: int, context: bytes) -> bytes:
        """The seed of the mask that a lost party, whose key was opened, shares with another."""
        del lost
        return pair_seed(key, self.dealt[other]["key"], context)

    def excess(self, noise: ExcessNoise) -> tuple[int, dict[int, bytes]]:
        """Return the first part of the parties' noise that the sum does not need, and the seed of each party's; those without right shares have none."""
        first, found = noise.first(len(self.kept)), dict[int, bytes]()
        for i in self.kept if first < noise.anchor else ():
            shares = dict(sorted(self._shares.get((use_of(first), i), {}).items())[: self.agreed.threshold])
            try:
                seed = open_secret(shares) if len(shares) == self.agreed.threshold else b""
            except LetterError:
                seed = b""
            if seed and noise.link(seed, noise.anchor - first) == self.dealt[i]["anchor"]:
                found[i] = seed
        return first, found

    def unmask(self, lanes: dict[str, Any], context: bytes) -> None:
        """Take the masks off the sum of the words, in place.

        Of two parties in the sum the masks have cancelled. What is left are the masks of their own seeds, and those that they share with lost parties.
        """
        seeds, masks, kept = self.seeds(), list[tuple[bytes, bool]](), set(self.kept)
        for i in self.kept:
            masks.append((derived(seeds["own", i], "own", context), True))
        for j in self.lost:
            for i in sorted(kept & set(self.agreed.graph[j])):
                seed = self.pair(seeds["key", j], j, i, context)
                masks.append((seed, not j < i))  # party i has added it, unless j comes first: then it has subtracted it
        add_masks({lane: np.asarray(words) for lane, words in lanes.items()}, masks)
