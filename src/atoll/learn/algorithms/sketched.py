"""Sketched SGD: heavy coordinates of the sum, found in a sketch of it (Ivkin et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Algorithm, Compressing, Gradient, LocalWork, Phased, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.stages import CountSketch, Threshold

from .one_gradient import OneGradient

__all__ = ["SketchedSGD"]


@dataclass(frozen=True, kw_only=True)
class SketchedSGD(OneGradient, Phased, Compressing, Stateful):
    """The heavy coordinates of the clients' sum, found in a sketch of it.

    At a client, ``u <- m u + g``, ``v <- v + u``. Clients send a count sketch of ``v``. The server reads the ``candidates * keep`` largest coordinates of the
    mean from the sum of the sketches and asks for their exact values. It applies the ``keep`` largest, ``w <- w - lr * sparse``, and clients set
    ``u`` and ``v`` to 0 there once they learn which.

    Sketches add up, but the sum of disjoint top-k's is dense. So the upload grows with the logarithm of the model's size.

    Attributes:
        lr: the server's learning rate.
        momentum: ``m``, in [0, 1).
        keep: coordinates applied per round.
        candidates: the server asks for this many times ``keep`` coordinates.
        columns: counters per row of the sketch.
        depth: rows of the sketch.
    """

    momentum: float = 0.9
    keep: int = 10
    candidates: int = 4
    columns: int = 100
    depth: int = 5
    phases: ClassVar[tuple[str, ...]] = ("sketch", "exact")
    citation: ClassVar[str] = (
        "Ivkin, Rothchild, Ullah, Braverman, Stoica, Arora. Communication-efficient Distributed SGD with Sketching. NeurIPS 2019."
    )
    card: ClassVar[Card] = Card(
        family="compressed",
        everyone=True,
        note="Two exchanges per round. A secure reducer can sum the sketch; exact values are sparse replies.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"momentum={self.momentum}", where="SketchedSGD", remedy="use a number in [0, 1)")
        if self.keep < 1 or self.candidates < 1:
            raise ConfigError(
                f"keep={self.keep}, candidates={self.candidates}", where="SketchedSGD", remedy="use at least 1 of each"
            )
        CountSketch(self.columns, self.depth, "median")

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply the sketch; then send only the requested values, which are the nonzero entries."""
        return (CountSketch(self.columns, self.depth, "median"),) if phase == "sketch" else (Threshold(0.0),)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run a gradient; for the exact values, a pass without data."""
        return (self,) if phase == "sketch" else (_Exact(lr=self.lr),)

    def init(self, params: Tree) -> Tree:
        """Start with the model; nothing applied or requested yet."""
        none = T.map(lambda leaf: np.zeros(np.shape(leaf), bool), params)
        return {"params": params, "taken": none, "asked": none}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send what was applied last, or what is requested."""
        name = "taken" if phase == "sketch" else "asked"
        return {"params": state["params"], "lr": self.lr, name: state[name]}

    def client_init(self, params: Tree) -> Tree:
        """Start with zero velocity and accumulation."""
        return {"u": T.zeros_like(params), "v": T.zeros_like(params)}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Clear what was applied."""
        u, v = (T.map(lambda leaf, out: leaf * ~out, client[name], broadcast["taken"]) for name in ("u", "v"))
        return {"params": broadcast["params"], "u": u, "v": v}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Accumulate the gradient."""
        del broadcast
        u = T.add(T.scale(local["u"], self.momentum), grad(local["params"]))
        return {**local, "u": u, "v": T.add(local["v"], u)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the accumulated values."""
        del broadcast, client
        return {"v": Mean(local["v"], examples=work.examples)}, {"u": local["u"], "v": local["v"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Choose candidates, or apply the largest."""
        del info
        if phase == "sketch":
            # Clients have cleared what was applied; if the next phase fails, they must not clear it twice.
            none = T.map(np.zeros_like, state["taken"])
            return {**state, "asked": _largest(sums["v"], self.keep * self.candidates), "taken": none}
        taken = _largest(sums["v"], self.keep)
        step = T.map(lambda leaf, chosen: np.where(chosen, leaf, 0).astype(leaf.dtype) * self.lr, sums["v"], taken)
        return {**state, "params": T.sub(state["params"], step), "taken": taken}


@dataclass(frozen=True, kw_only=True)
class _Exact(OneGradient, Stateful):
    """The values of the requested coordinates."""

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the accumulated values at these coordinates."""
        kept = T.map(lambda leaf, asked: leaf * asked, client["v"], broadcast["asked"])
        return {"params": broadcast["params"], "v": kept}

    def client_init(self, params: Tree) -> Tree:
        """Start as before a first round."""
        return {"u": T.zeros_like(params), "v": T.zeros_like(params)}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Do nothing."""
        del grad, broadcast
        return local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the values; keep the client's state."""
        del broadcast
        return {"v": Mean(local["v"], examples=work.examples)}, client


def _largest(tree: Tree, count: int) -> Tree:
    """Return the coordinates of largest magnitude over all leaves, without zeros."""
    flat = np.concatenate([np.abs(leaf).ravel() for leaf in T.leaves(tree)])
    chosen = np.zeros(len(flat), bool)
    chosen[np.argsort(-flat, kind="stable")[:count]] = True
    chosen &= flat > 0
    at, found = 0, []
    for leaf in T.leaves(tree):
        found.append(chosen[at : at + leaf.size].reshape(np.shape(leaf)))
        at += leaf.size
    return T.rebuild(tree, found)
