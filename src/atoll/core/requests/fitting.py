"""Round parameters that are fitted: a scale or a codebook that follows from the last sum, or from a mock client on public data.

A program keeps them as a tree of its state, so that they are in its checkpoints: ``{aggregate: {stage: parameters}}``, with stages by their place in the chain.
Each entry has a ``"version"``, which grows with every fit. An encoding has its version in its structure, so encodings of two versions do not add up, and one
that is decoded under another version is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..algebra.aggregate import Aggregate
from ..algebra.rng import Rng
from .context import StageContext
from .stage import Stage

if TYPE_CHECKING:
    from ..algebra.tree import Tree
    from .chain import Chain

__all__ = ["due", "fitted"]


def due(chain: Chain, before: Tree, turn: int) -> bool:
    """Return whether a fit in this turn would change anything: a stage is not fitted yet, or its ``refresh`` has passed."""
    known = {place for rows in (before or {}).values() for place in rows}
    return any(
        stage.fits and (str(i) not in known or turn % stage.refresh == 0) for i, stage in enumerate(chain.stages)
    )


def fitted(chain: Chain, before: Tree, reply: Mapping[str, Aggregate], rng: Rng, turn: int) -> Tree:
    """Return the fitted round parameters of a chain for replies like this one.

    Each stage that fits sees what it would get at a party: the value after the stages before it, and, if it acts on summands, after the weight.

    Args:
        chain: the stages.
        before: the parameters so far; ``None`` at the beginning. An entry stays if its stage is fitted and its ``refresh`` rounds have not passed.
        reply: what a typical party would reply: the mean of the last sum with the mean weight, or the reply of a mock client on public data.
        rng: a public stream.
        turn: the number of the round.
    """
    before = before or {}
    public = chain.knowing(before).public(rng.child("public"))
    made: dict[str, dict[str, Tree]] = {name: dict(rows) for name, rows in before.items()}
    for name, aggregate in reply.items():
        if not aggregate.staged or not aggregate.summable:
            continue
        rows, value, weighted = made.setdefault(name, {}), aggregate.value, False
        for i, stage in enumerate(chain.stages):
            if stage.on == "summand" and not weighted:
                value, weighted = aggregate.with_value(value).summand(), True
            known, place = chain.known(public, i, name), str(i)
            if stage.fits and (place not in rows or turn % stage.refresh == 0):
                version = int(rows[place]["version"]) + 1 if place in rows else 1
                known = rows[place] = {**stage.fit(value, rng.child("fit", name, i)), "version": version}
            if i < len(chain.stages) - 1:
                value = _through(stage, value, known, rng.child("stage", name, i))
    return {name: rows for name, rows in made.items() if rows}


def _through(stage: Stage, value: Tree, known: Tree, rng: Rng) -> Tree:
    """A value after a stage; secret stages add noise and keep the form, so they are passed over."""
    if stage.secret:
        return value
    return stage.encode(value, StageContext(known, np.array([rng.key], dtype=np.uint64)))
