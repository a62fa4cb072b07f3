"""Steps on single examples: sampled mini-batches, clipped gradients, and noise drawn from a client's secret."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.privacy.discrete import GaussianLattice
from atoll.secure.keystream import NoiseStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Secret

__all__ = ["Clipping", "ExampleSteps", "SecretStream", "StepSecrets", "clip", "clipped_rows", "layer_of"]


class SecretStream(Rng):
    """A random stream that no party can draw again: every generator starts from 256 fresh bits of an island's secret.

    Args:
        secret: the island's secret.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: Secret) -> None:
        super().__init__(0)
        self._secret = secret

    def child(self, *path: str | int) -> Rng:
        """Return the stream itself: a secret stream has no positions to return to."""
        del path
        return self

    def generator(self) -> np.random.Generator:
        """Return a generator with its own seed."""
        return self._secret.generator()

    def seed(self) -> bytes:
        """Return 32 fresh bytes of the secret."""
        return self._secret.bytes(32)


def seed_of(stream: Rng) -> bytes:
    """Return 32 bytes for a keystream: fresh ones of a secret stream; of any other, a function of its path, which hides nothing."""
    if isinstance(stream, SecretStream):
        return stream.seed()
    return hashlib.blake2b(stream.key.to_bytes(8, "little"), digest_size=32).digest()


# ---------------------------------------------------------------- local steps whose gradients are sums of bounded gradients of single examples


_MARGIN = 1e-5
"""Norms are computed in floating point: gradients are scaled to this share less than the bound, so that rounding never takes them over it."""


@dataclass(frozen=True)
class Clipping:
    """How far one example moves a sum of gradients.

    Attributes:
        bound: ``C``: the largest norm of one example's contribution, over all leaves.
        by_layer: bound each of ``L`` layers by ``C / sqrt(L)`` instead of all leaves together. The whole contribution still has norm at most ``C``.
        share: factor of every clipped gradient: ``1 / B`` to divide the sum by a mini-batch's expected size.
    """

    bound: float
    by_layer: bool = False
    share: float = 1.0

    def groups(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Return the leaves that are bounded together."""
        if not self.by_layer:
            return (tuple(names),)
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(layer_of(name), []).append(name)
        return tuple(map(tuple, found.values()))

    def limit(self, groups: int) -> float:
        """Return the largest norm of one of several groups, with a margin for rounding."""
        return self.bound * (1.0 - _MARGIN) / math.sqrt(groups)


def layer_of(name: str) -> str:
    """Return the layer of a parameter: ``"body.0"`` of ``"body.0.weight"``."""
    return name.rpartition(".")[0]


@dataclass(frozen=True)
class ExampleSteps:
    """What an algorithm's local steps draw from a client's secret.

    Attributes:
        batch: the expected number of examples in a mini-batch.
        rate: the probability that an example is in a mini-batch; ``None`` is ``min(1, batch / n)`` at a client with ``n`` examples.
        draws: how often a step draws noise in the shape of the parameters.
        deviation: standard deviation of the noise.
        sensitivity: how far one example moves a sum, in L2.
    """

    batch: int
    rate: float | None = None
    draws: int = 1
    deviation: float = 1.0
    sensitivity: float | None = None

    def lattice(self, params: Tree) -> GaussianLattice:
        """Where the noise for NumPy parameters in float64 is, and the sums that it hides: no last bits tell them."""
        entries = sum(int(np.size(leaf)) for leaf in T.leaves(params))
        return GaussianLattice.covering(self.deviation, self.sensitivity, entries)

    def round_sum(self, total: Tree) -> Tree:
        """Return a sum as it is before noise is added: on the lattice, if it is one of NumPy in float64."""
        exact = all(isinstance(leaf, np.ndarray | np.generic) and leaf.dtype == np.float64 for leaf in T.leaves(total))
        return self.lattice(total).round_tree(total) if exact else total

    def rate_of(self, examples: int) -> float:
        """Return the probability that an example is in a mini-batch of a client with ``examples`` examples."""
        return self.rate if self.rate is not None else min(1.0, self.batch / max(examples, 1))


class StepSecrets:
    """The mini-batches and the noise of one client in one local update.

    Every example is in every mini-batch with probability ``rate``, independently, so that mini-batches have different sizes and may be empty.

    Args:
        plan: what steps draw.
        examples: the client's number of examples.
        steps: number of steps.
        secret: a stream of the client's secret, or of its key where nothing is promised.
    """

    def __init__(self, plan: ExampleSteps, examples: int, steps: int, secret: Rng) -> None:
        self._plan, self._deviation = plan, plan.deviation
        self.stream = NoiseStream(seed_of(secret.child("examples")))
        rate = plan.rate_of(examples)
        self.rows = [np.flatnonzero(self.stream.coins(examples, rate)) for _ in range(steps)]

    def normal(self, count: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Return the next normal numbers, float32."""
        return self.stream.normal(count, out, self._deviation)

    def like(self, params: Tree) -> Tree:
        """Return noise in the shapes and dtypes of NumPy parameters: one draw."""
        leaves = T.leaves(params)
        count = sum(int(np.size(leaf)) for leaf in leaves)
        if all(np.asarray(leaf).dtype == np.float64 for leaf in leaves):
            lattice = self._plan.lattice(params)
            flat: NDArray[Any] = lattice.draw(self.stream.words, count) * lattice.step
        else:
            flat = self.normal(count)
        cuts = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
        parts = np.split(flat, cuts)
        made = [p.reshape(np.shape(leaf)).astype(np.asarray(leaf).dtype) for p, leaf in zip(parts, leaves, strict=True)]
        return T.rebuild(params, made)


def clipped_rows(gradient: Callable[[int], Tree], count: int, params: Tree, clipping: Clipping) -> Tree:
    """Return ``sum_i clip(g_i)`` from the gradients of single examples, one at a time: the definition, and the path of a model without a faster one.

    An example whose gradient is not finite adds nothing.

    Args:
        gradient: number of an example -> its gradient.
        count: number of examples.
        params: the parameters, for the shapes of an empty sum.
        clipping: the bounds.
    """
    total = T.map(np.zeros_like, params)
    for i in range(count):
        total = T.add(total, clip(gradient(i), clipping))
    return total


def clip(gradient: Tree, clipping: Clipping) -> Tree:
    """Return the share of one example's gradient, each group scaled to its limit; zero if it is not finite."""
    named = dict(T.items(gradient))
    groups = clipping.groups(list(named))
    limit, factors = clipping.limit(len(groups)), dict[str, float]()
    for group in groups:
        length = math.sqrt(sum(float(np.vdot(named[name], named[name])) for name in group))
        factors.update(
            dict.fromkeys(group, clipping.share * limit / max(length, limit) if math.isfinite(length) else 0.0)
        )
    scaled: list[Any] = [
        np.zeros_like(leaf) if factors[name] == 0.0 else leaf * np.asarray(factors[name], leaf.dtype)
        for name, leaf in named.items()
    ]
    return T.rebuild(gradient, scaled)
