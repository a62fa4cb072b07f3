"""Declared bits: what the stages on the way up say that a reply takes, to stand beside what the meter measures."""

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
    """Bits of what one reply of a phase holds: entry by entry of the algorithm's reply, what the last stage says of the form that reaches it.

    Headers, padding and the weight, which the meter measures as well, are not in it, nor are measures and reports that ride along.

    Args:
        algorithm: whose reply; of a form that does not depend on the data.
        chain: the stages on its way up.
        params: a model; its form alone counts.
        phase: of the round.

    Returns:
        The bits; ``None`` where there are no stages, or their size depends on the values (a threshold keeps what happens to be large).
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
    """Bits of a value of this form that goes through some stages; ``None`` where that depends on what it holds."""
    for stage, known in list(zip(chain.stages, chain.public(Rng(0)), strict=True))[:-1]:
        if not stage.secret:  # which keeps the form
            value = stage.encode(value, StageContext.of(Rng(0).child(name), known))
    bits = chain.stages[-1].bits(value)
    return None if bits is None or bits != chain.stages[-1].bits(T.map(_largest, value)) else bits


def declare(row: dict[str, Any], bits: int | None, taken: int) -> None:
    """Write into a round's row, beside its bytes, what is declared of the messages that were taken; nothing where nobody can tell.

    Args:
        row: of the round; what it holds already is added to.
        bits: of a message.
        taken: how many messages.
    """
    if bits is not None:
        row["bits_declared"] = row.get("bits_declared", 0) + bits * taken


def _largest(leaf: Any) -> Any:
    """An array of the same form that keeps every entry, whatever the bound."""
    return np.full_like(leaf, np.inf) if np.issubdtype(leaf.dtype, np.floating) else leaf
