"""Chains of keys: one link a sum, from which all secrets of this sum follow; a party keeps the next link only.

A *link* is 32 secret bytes. From the link of sum ``t`` follow, each by HKDF-Expand with a use of its own (`derived`), the secrets of this sum and the link of sum ``t + 1``. So a secret that
is opened tells nothing of other sums, and whoever steals what a party keeps after sum ``t`` learns nothing of the masks of sums up to ``t``.

A party has one chain of its own, and one with each neighbour, whose first link both derive from their X25519 agreement.
"""

from __future__ import annotations

from ..keystream import derived

__all__ = ["USES", "ahead", "hide_seed", "key_of", "own_of", "pair_of"]

USES = ("key", "own")
"""The secrets of a party in each sum, in the order of their shares."""


def ahead(link: bytes, steps: int) -> bytes:
    """The link so many sums later."""
    for _ in range(steps):
        link = derived(link, "next link")
    return link


def own_of(link: bytes) -> bytes:
    """The seed of the party's own mask in the sum of a link of its own chain."""
    return derived(link, "own seed")


def key_of(link: bytes) -> bytes:
    """The key under which the party's pairs' seeds of this sum lie at the server."""
    return derived(link, "recovery key")


def pair_of(link: bytes) -> bytes:
    """The seed that two parties share in the sum of a link of their chain."""
    return derived(link, "pair seed")


def hide_seed(key: bytes, name: str, seed: bytes) -> bytes:
    """The seed that a party shares with a neighbour, under its key of the sum: a one-time pad of 32 bytes. It is its own inverse.

    Args:
        key: of this sum alone.
        name: of the neighbour.
        seed: shared with it.
    """
    pad = derived(key, "hidden pair", name.encode())
    return bytes(a ^ b for a, b in zip(pad, seed, strict=True))
