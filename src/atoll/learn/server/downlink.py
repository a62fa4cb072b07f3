"""Compression on the way down: what is sent is a difference to what the receiving client holds.

The server keeps ``x_hat``, what everyone holds who was there last time. It sends ``C(x - x_hat)`` and goes to ``x_hat + C(x - x_hat)``, which is what every
client works with. What compression left over stays in ``x - x_hat`` and is sent later: that is error feedback at the server, ``p = update + e``,
``e = p - C(p)``. Zheng, Huang, Kwok 2019, "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", algorithm 1; Sattler et al.
2019, algorithm 2.

A client that holds the last version is charged the packed difference, any other the whole ``x_hat``. Use a contraction (``TopK``, ``Sign``, ``STC``, or a
quantiser with ``omega < 1``): with a larger error ``x_hat`` leaves ``x``. The model that a training returns is the server's ``x``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.capability import SERVER, Need
from atoll.core.errors import CompositionError
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Stage

from ..capabilities import ONE_MODEL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties

__all__ = ["DOWNLINK_NEEDS", "check_downlink", "held_by", "lowered"]


DOWNLINK_NEEDS = (
    Need(SERVER, "compresses what a server sends", "no downlink"),
    Need(ONE_MODEL, "is told against the one model that everybody holds", "no downlink"),
)
"""What a compressor on the way down needs of the other parts, whatever it needs on the way up."""


def check_downlink(stage: Stage | None) -> None:
    """Refuse what cannot compress the way down.

    Raises:
        CompositionError: it acts on summands, or keeps memory: what it left over is kept by the server anyway.
    """
    if stage is not None and (stage.on != "value" or stage.remembers):
        raise CompositionError(
            f"{type(stage).__name__} cannot compress what the server sends",
            where="Training.downlink",
            remedy="use a stage without memory that acts on values, such as Sign() or TopK(0.01); the server keeps the error itself",
        )


def lowered(
    fed: Federation,
    stage: Stage | None,
    state: Tree,
    broadcast: Tree,
    rest: Tree,
    parties: Parties,
    at: tuple[int, str],
) -> tuple[Tree, Tree, NDArray[np.int64] | None]:
    """What the clients of a cohort work with, and what it costs to tell them.

    Args:
        fed: for randomness and the number of parties.
        stage: the compressor; ``None`` sends everything as it is.
        state: what the clients hold: entry -> held, target, version, and the version that every party holds.
        broadcast: the algorithm's. Every entry that is a tree of arrays of floats is compressed; the others are sent as they are.
        rest: sent beside it, as it is.
        parties: the cohort.
        at: contact and phase.

    Returns:
        The broadcast with ``x_hat`` in place of ``x``, the new state, and bytes a party (``None`` when nothing is compressed).
    """
    if stage is None:
        return broadcast, state, None
    given, packed, fresh, holds = dict(broadcast), dict[str, Tree](), dict(state), dict[str, Any]()
    for name, value in broadcast.items():
        if not _is_dense(value):
            continue
        entry = state.get(name)
        if entry is None or not _alike(entry["held"], value):
            fresh[name] = {
                "held": value,
                "target": value,
                "version": 1,
                "of": np.zeros(len(fed.world.roster), np.int32),
            }
            holds[name] = np.zeros(len(parties), dtype=bool)
        else:
            holds[name] = entry["of"][parties.positions] == entry["version"]
            if not M.equal(entry["target"], value):
                rng = fed.rng.child("down", *at, name)
                public = stage.public(rng.child("public"))
                packed[name] = stage.encode(T.sub(value, entry["held"]), StageContext.of(rng, public))
                moved = T.add(entry["held"], stage.decode(packed[name], public, 1))
                fresh[name] = {**entry, "held": moved, "target": value, "version": entry["version"] + 1}
        given[name] = fresh[name]["held"]
    return given, fresh, _sizes(given, packed, rest, holds, at[1], len(parties))


def _sizes(
    given: Tree, packed: dict[str, Tree], rest: Tree, holds: dict[str, Any], phase: str, count: int
) -> NDArray[np.int64]:
    """Encoded size of what each client is sent: clients that hold the same entries are sent the same."""
    names = list(holds)
    kind = np.zeros(count, dtype=np.int64)
    for i, name in enumerate(names):
        kind |= holds[name].astype(np.int64) << i
    sizes = np.zeros(count, dtype=np.int64)
    for found in np.unique(kind).tolist():
        known = {name for i, name in enumerate(names) if found >> i & 1}
        message = {
            name: packed[name] if name in known else tree
            for name, tree in given.items()
            if name not in known or name in packed
        }
        sizes[kind == found] = M.nbytes({"broadcast": {**message, **rest}, "phase": phase})
    return sizes


def held_by(state: Tree, positions: NDArray[np.int64]) -> Tree:
    """These clients hold what was sent last: they have answered to it."""

    def told(entry: Tree) -> Tree:
        of = entry["of"].copy()
        of[positions] = entry["version"]
        return {**entry, "of": of}

    return {name: told(entry) for name, entry in state.items()}


def _is_dense(value: Tree) -> bool:
    leaves = T.leaves(value)
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"]
    return bool(arrays) and len(arrays) == len(leaves) and any(leaf.ndim for leaf in arrays)


def _alike(one: Tree, other: Tree) -> bool:
    rows = [[(path, leaf.shape, leaf.dtype) for path, leaf in T.items(tree)] for tree in (one, other)]
    return bool(rows[0] == rows[1])
