"""Declared bits: the size of a reply according to the uplink stages, to compare with the meter's measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.requests.chain import Chain
from atoll.core.requests.context import StageContext

from ..wrapped import dry_reply

if TYPE_CHECKING:
    from ..algorithm import Algorithm

__all__ = ["bits_of", "declare", "declared_bits"]


def declared_bits(algorithm: Algorithm, chain: Chain, params: Tree, phase: str) -> int | None:
    """Return the bits of one reply of a phase: for each entry of the algorithm's reply, what the last stage declares for the form that reaches it.

    Headers, padding and the weight, which the meter also measures, do not count. Neither do measures and reports in the reply.

    Args:
        algorithm: the algorithm; the form of its reply must not depend on the data.
        chain: the uplink stages.
        params: a model; only its form matters.
        phase: the phase.

    Returns:
        The bits; ``None`` if there are no stages, or the size depends on the values (a threshold keeps only large values).
    """
    if not chain:
        return None
    total = 0
    for name, aggregate in dry_reply(algorithm, params, phase).items():
        if not aggregate.staged:
            continue
        bits = bits_of(chain, T.map(np.asarray, aggregate.value), name)
        if bits is None:
            return None
        total += bits
    return total


def bits_of(chain: Chain, value: Tree, name: str = "") -> int | None:
    """Return the bits of a value of this form after some stages; ``None`` if they depend on the values."""
    public = chain.public(Rng(0))
    for i, stage in enumerate(chain.stages[:-1]):
        if not stage.secret:  # a secret stage keeps the form
            value = stage.encode(value, StageContext.of(Rng(0).child(name), chain.known(public, i, name)))
    bits = chain.stages[-1].wire_bits(value)
    return None if bits is None or bits != chain.stages[-1].wire_bits(T.map(_largest, value)) else bits


def declare(row: dict[str, Any], bits: int | None, taken: int) -> None:
    """Write the declared bits of the taken messages into a round's row, next to its bytes; nothing if they are unknown.

    Args:
        row: the round's row; existing values are added to.
        bits: declared bits of a message.
        taken: number of messages.
    """
    if bits is not None:
        row["bits_declared"] = row.get("bits_declared", 0) + bits * taken


def _largest(leaf: Any) -> Any:
    """Return an array of the same form with every entry above any bound."""
    return np.full_like(leaf, np.inf) if np.issubdtype(leaf.dtype, np.floating) else leaf
