"""The server's half of opening a masked sum: collect shares, find wrong ones, and take the masks off."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, LetterError, QuorumError
from atoll.core.extras import need

from ..keystream import SEED, add_masks, derived
from .agreement import use_of

if TYPE_CHECKING:
    from atoll.core.requests.island import Secret

    from ..noise import ExcessNoise
    from .agreement import Agreement

__all__ = ["Opening", "PRIME", "SHARE", "commitment", "is_dealt", "open_secret", "pair_seed", "public_key", "shares_of"]


# ------------------------------------------------------------------ seeds of masks
#
# Seeds of masks: agreed in pairs, split into shares that a threshold of holders can open, and committed to.
# The sharing is Shamir's (1979) over the integers modulo the prime ``2^256 + 297``: a secret of 32 bytes is the value at 0 of a random polynomial of degree
# ``threshold - 1``, and holder ``x = 1, 2, ...`` gets its value at ``x``. Any ``threshold`` shares give the secret; fewer are independent of it.
#
# A commitment is the SHA-256 of a share, a secret or a public key with its label. Shares are uniform over 256 bits, so a commitment tells nothing of them, and whoever
# opens a sum can tell a wrong share from a right one.


PRIME = 2**256 + 297
SHARE = 33
"""Bytes of a share."""


def shares_of(secret: bytes, holders: int, threshold: int, entropy: Secret) -> list[bytes]:
    """Split a secret of 32 bytes; share ``i`` is the polynomial's value at ``i + 1``.

    Args:
        secret: 32 bytes.
        holders: number of shares.
        threshold: number of shares that give the secret.
        entropy: of the polynomial; one draw.

    Raises:
        ConfigError: the threshold is not 1 to ``holders``, or the secret has another length.
    """
    if len(secret) != SEED or not 1 <= threshold <= holders:
        raise ConfigError(
            f"{len(secret)} bytes for {holders} holders with a threshold of {threshold}",
            where="shares_of",
            remedy=f"share {SEED} bytes, with a threshold of 1 to {holders}",
        )
    raw = entropy.bytes(48 * (threshold - 1))  # 384 bits modulo a prime of 257: the bias is below 2^-127
    line = [int.from_bytes(raw[at : at + 48], "little") % PRIME for at in range(0, len(raw), 48)]
    made = []
    for x in range(1, holders + 1):
        value = 0
        for coefficient in line:
            value = (value + coefficient) * x % PRIME
        made.append(((value + int.from_bytes(secret, "little")) % PRIME).to_bytes(SHARE, "little"))
    return made


def open_secret(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from ``threshold`` shares or more.

    Args:
        shares: holder's place, from 0 -> its share.

    Raises:
        LetterError: the shares do not give a secret of 32 bytes: one of them is wrong.
    """
    places = tuple(sorted(shares))
    factors = _lagrange(places)
    total = sum(f * int.from_bytes(shares[x], "little") for x, f in zip(places, factors, strict=True)) % PRIME
    if total >= 1 << (8 * SEED):
        raise LetterError("the shares of a seed do not fit together", remedy="check them against their commitments")
    return total.to_bytes(SEED, "little")


@functools.lru_cache(maxsize=4096)
def _lagrange(places: Sequence[int]) -> list[int]:
    """The factor of each share in the value at 0."""
    made = []
    for place in places:
        over = under = 1
        for other in places:
            if other != place:
                # Places count from 0 and points from 1, because the value at point 0 is the secret.
                over = over * (other + 1) % PRIME
                under = under * (other - place) % PRIME
        made.append(over * pow(under, -1, PRIME) % PRIME)
    return made


def commitment(use: str, value: bytes) -> bytes:
    """SHA-256 of a value with its use, 32 bytes."""
    return hashlib.sha256(b"atoll commitment " + use.encode() + b"\0" + value).digest()


def public_key(private: bytes) -> bytes:
    """The X25519 public key (RFC 7748) of 32 secret bytes.

    Raises:
        MissingExtraError: cryptography is not installed.
    """
    return bytes(_x25519().X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def pair_seed(private: bytes, public: bytes, context: bytes) -> bytes:
    """The seed that two parties share: HKDF of their X25519 agreement, bound to a context.

    Both ends derive the same seed, and whoever opens one end's private key does too.

    Args:
        private: one end's private key.
        public: the other end's public key.
        context: what the masks are bound to.

    Raises:
        LetterError: the public key is not a usable point.
    """
    x25519 = _x25519()
    try:
        shared = x25519.X25519PrivateKey.from_private_bytes(private).exchange(
            x25519.X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:
        raise LetterError(f"a public key is not usable: {error}", remedy="look at the party that sent it") from error
    return derived(hashlib.sha256(b"atoll pair" + shared).digest(), "pair", context)


def _x25519() -> Any:
    return need("cryptography.hazmat.primitives.asymmetric.x25519", "secure", "agreeing on masks")


# ------------------------------------------------------------------ the server's half of opening a masked sum: collect shares, find wrong ones, and take the masks off


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
