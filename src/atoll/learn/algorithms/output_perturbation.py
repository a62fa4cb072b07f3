"""Output perturbation: clipped models with Gaussian noise, for local differential privacy of each example of a client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian
from atoll.learn.card import Card
from atoll.learn.local.client_mechanism import ClientMechanism
from atoll.privacy.discrete import GaussianLattice, words_of

from ..algorithm import Private

__all__ = ["OutputPerturbation"]


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(ClientMechanism, Private):
    """Clients release ``w / max(1, ||w|| / tau) + N(0, sigma^2 I)``, and compute everything they send from it.

    It clips the *model*, not the update. Two clipped models are at most ``2 tau`` apart, whatever the data. This is the only sensitivity that always
    holds, and the default. A smaller one needs a proof for your loss, such as ``2 c / (n mu)`` for exact minimisers of ``c``-Lipschitz,
    ``mu``-strongly convex objectives. It protects single examples against all parties that see the replies, including the server, for neighbours that
    replace one example (so the number of examples is public). A base that keeps or sends a second model releases twice.

    Attributes:
        base: the algorithm inside.
        tau: bound on the norm of a released model.
        sigma: standard deviation of the noise on each coordinate.
        sensitivity: how far one example can move a release, in L2; ``None`` is ``2 tau``.
    """

    tau: float
    sigma: float
    sensitivity: float | None = None
    citation: ClassVar[str] = (
        "Yin, Zhang, Zhang, Liu. Federated Learning with Reduced Information Leakage and Computation. TMLR 2025, section 6."
    )
    card: ClassVar[Card] = Card(
        example={"tau": 1.0, "sigma": 1.0},
        family="wrapper",
        note="Local differential privacy for each example. A base that keeps a second model releases twice.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        reach = 2 * self.tau if self.sensitivity is None else self.sensitivity
        if not all(value > 0 and math.isfinite(value) for value in (self.tau, self.sigma, reach)):
            raise ConfigError(
                f"tau={self.tau}, sigma={self.sigma}, sensitivity={self.sensitivity}",
                where="OutputPerturbation",
                remedy="use positive, finite numbers",
            )

    def events(self, examples: int) -> tuple[Event, ...]:
        """Return a Gaussian release for each outgoing entry."""
        del examples
        reach = 2 * self.tau if self.sensitivity is None else self.sensitivity
        return (Gaussian(unit="example", noise_multiplier=self.sigma / reach, count=len(self.outgoing)),)

    def noise(self, rng: Rng, entry: Tree) -> Tree:
        """Draw ``N(0, sigma^2)`` on every coordinate."""
        words, lattice = words_of(rng.generator()), self._lattice(entry)

        def one(leaf: Any) -> Any:
            drawn = lattice.draw(words, math.prod(np.shape(leaf))) * lattice.step
            return drawn.reshape(np.shape(leaf)).astype(np.asarray(leaf).dtype)

        return T.map(one, entry)

    def _lattice(self, entry: Tree) -> GaussianLattice:
        """Where noise and models are in float64; a sensitivity of your own says nothing of rounding, for which the noise is wider."""
        size = sum(math.prod(np.shape(leaf)) for leaf in T.leaves(entry))
        return GaussianLattice.covering(self.sigma, self.sensitivity, size)

    def privatise(self, entry: Tree, noise: Tree) -> Tree:
        """Return the entry, clipped and with noise; in float64 on a lattice, so that no last bits tell it."""
        length = T.norm(entry)
        factor = self.tau / (self.tau + (length - self.tau) * (length > self.tau))
        return T.add(self._lattice(entry).round_tree(T.scale(entry, factor)), noise)
