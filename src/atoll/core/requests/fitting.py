"""Round parameters that are fitted: a scale or a codebook that follows from the last sum, or from a mock client on public data.

A program keeps them as a tree of its state, so that they are in its checkpoints: ``{aggregate: {stage: parameters}}``, with stages by their place in the chain.
Each entry has a ``"version"``, which grows with every fit. An encoding has its version in its structure, so encodings of two versions do not add up, and one
that is decoded under another version is refused.

A stage is fitted to its *input*: what it gets at a typical party, after the stages before it, and after the weight if it acts on summands. The mean input of a
sum is known when the sum is decoded (``Combined.inputs``); that of a mock client's reply is what ``inputs_of`` returns.
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

__all__ = ["Inputs", "Told", "due", "fitted", "inputs_of"]

Inputs = Mapping[str, Mapping[str, "Tree"]]
"""Maps an aggregate to the inputs of stages that fit, by place in the chain."""


Told = Mapping[str, Mapping[str, int]]
"""Maps an aggregate to what the chain's last stage counted in a sum; see ``Combined.told``."""


def due(chain: Chain, before: Tree, turn: int, told: Told | None = None) -> bool:
    """Return whether a fit in this turn would change anything: a stage is not fitted yet, its ``refresh`` has passed, or what was counted makes it stale."""
    known = {place for rows in (before or {}).values() for place in rows}
    last = len(chain.stages) - 1
    return any(
        stage.fits
        and (
            str(i) not in known
            or turn % stage.refresh == 0
            or (i == last and any(_is_stale(chain, rows, name, told) for name, rows in (before or {}).items()))
        )
        for i, stage in enumerate(chain.stages)
    )


def _is_stale(chain: Chain, rows: Mapping[str, Tree], name: str, told: Told | None) -> bool:
    known = rows.get(str(len(chain.stages) - 1))
    return known is not None and chain.stages[-1].stale(known, (told or {}).get(name))


def fitted(chain: Chain, before: Tree, inputs: Inputs, rng: Rng, turn: int, told: Told | None = None) -> Tree:
    """Return the fitted round parameters of a chain.

    Args:
        chain: the stages.
        before: the parameters so far; ``None`` at the beginning. An entry stays if its stage is fitted and its ``refresh`` rounds have not passed.
        inputs: what the stages got, or will get.
        rng: a public stream.
        turn: the number of the round.
        told: what was counted in the last sum.
    """
    made: dict[str, dict[str, Tree]] = {name: dict(rows) for name, rows in (before or {}).items()}
    for name, given in inputs.items():
        rows = made.setdefault(name, {})
        for place, value in given.items():
            stage = chain.stages[int(place)]
            if place not in rows:
                rows[place] = {**stage.fit(value, rng.child(name, place)), "version": 1}
                continue
            last = int(place) == len(chain.stages) - 1
            if turn % stage.refresh and not (last and _is_stale(chain, rows, name, told)):
                continue
            counted = (told or {}).get(name) if last else None
            found = stage.refit(value, rng.child(name, place), rows[place], counted)
            if found is not None:
                rows[place] = {**found, "version": int(rows[place]["version"]) + 1}
    return {name: rows for name, rows in made.items() if rows}


def inputs_of(chain: Chain, reply: Mapping[str, Aggregate], rng: Rng) -> dict[str, dict[str, Tree]]:
    """Return what stages that fit get for one reply, such as that of a mock client.

    Args:
        chain: the stages, with the parameters so far.
        reply: the reply.
        rng: the stream of the round parameters and of the mock client.
    """
    public = chain.public(rng.child("public"))
    found: dict[str, dict[str, Tree]] = {}
    for name, aggregate in reply.items():
        if not aggregate.staged or not aggregate.summable:
            continue
        value, weighted = aggregate.value, False
        for i, stage in enumerate(chain.stages):
            if stage.on == "summand" and not weighted:
                value, weighted = aggregate.with_value(value).summand(), True
            if stage.fits:
                found.setdefault(name, {})[str(i)] = value
            if i < len(chain.stages) - 1:
                value = _through(stage, value, chain.known(public, i, name), rng.child("stage", name, i))
    return found


def _through(stage: Stage, value: Tree, known: Tree, rng: Rng) -> Tree:
    """A value after a stage; secret stages add noise and keep the form, so they are passed over."""
    if stage.secret:
        return value
    return stage.encode(value, StageContext(known, np.array([rng.key], dtype=np.uint64)))
