"""The server's half of central differential privacy: a sum over a fixed denominator, plus noise from the server's secret."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.core.event import Event
from atoll.core.requests.results import Combined
from atoll.learn.aggregation.base import Aggregation, EqualWeights
from atoll.privacy.discrete import add_gaussian

from ..algorithm import Algorithm, RoundInfo

if TYPE_CHECKING:
    from atoll.core.requests.island import Secret

__all__ = ["NoisySum", "entries", "noisy_sums"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NoisySum(Aggregation):
    """``(sum_{k in S} v_k + N(0, (z_v D)^2)) / m`` in place of a mean, with ``m`` the expected number of clients; sums get the noise and no denominator.

    Clients count the same, whatever they hold, and ``m`` is public: neither the number of replies nor anybody's number of examples is in the result.
    Each value has noise of its own, ``z_v = z / sqrt(s_v)`` with shares ``s_v`` that add up to 1, so that all values of a client's replies in one round
    are together one Gaussian release of noise multiplier ``z``: ``1/z^2 = sum_v 1/z_v^2``. Folds are told ``m`` replies, not how many there were. The noise is discrete Gaussian on
    a lattice, wider by what rounding the sum to it may add to ``D``; see `atoll.privacy.discrete`.

    Attributes:
        bound: largest L2 norm of one value of one client.
        sensitivity: how far one unit moves a sum, ``D``: ``bound``, or twice that if a client is replaced.
        expected: the denominator ``m``.
        noise: noise multiplier ``z`` of a round.
        values: named values of a client's replies in a round.
        released: what a round releases about one client.
        shares: name and share of values with a share of their own; the others share the rest equally.
    """

    bound: float
    sensitivity: float
    expected: float
    noise: float
    values: int
    released: Event
    shares: tuple[tuple[str, float], ...] = ()

    @property
    def event(self) -> Event | None:
        """What a round releases about one client."""
        return self.released

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with every mean weighted by 1."""
        return EqualWeights().algorithm(base)

    def disclosed(self, info: RoundInfo) -> RoundInfo:
        """Return the round as if the expected number of clients had replied."""
        count = max(1, round(self.expected))
        return replace(info, selected=count, replied=count, weight=None, odds=None)

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the noisy sums, over the fixed denominator where the algorithm takes a mean.

        Raises:
            CompositionError: the round has no secret, because it is none of a central server's own.
        """
        del params
        draw = self.secret_of(info).generator()

        def add(name: str, values: Array) -> Array:
            return add_gaussian(values, self.deviation(name), draw, self.sensitivity)

        return noisy_sums(combined, add, self.expected), memory

    @staticmethod
    def secret_of(info: RoundInfo) -> Secret:
        """Return the server's secret of the round.

        Raises:
            CompositionError: the round has no secret, because it is none of a central server's own.
        """
        if info.secret is None:
            raise CompositionError(
                "noise is added to the sums of a round at the server, and this round has none of its own",
                where="Training.privacy",
                remedy="use Synchronous() on Star()",
            )
        return info.secret

    def deviation(self, name: str) -> float:
        """Return the standard deviation of the noise on each entry of a sum, before it is divided."""
        own = dict(self.shares)
        rest = (1.0 - sum(own.values())) / max(1, self.values - len(own))
        return self.noise * self.sensitivity / math.sqrt(own.get(name, rest))


def entries(combined: Combined) -> int:
    """Return the number of entries of all values."""
    return sum(math.prod(np.shape(leaf)) for value in combined.value.values() for leaf in T.leaves(value))


def noisy_sums(combined: Combined, add: Callable[[str, Array], Array], expected: float) -> dict[str, Any]:
    """Return the sums plus noise, over ``expected`` where they are means: ``add(sum) / expected``, by name.

    Args:
        combined: sums and means; a mean is its sum over its weight.
        add: adds the noise to all entries of a name, in float64; called in order of names.
        expected: the denominator in place of the weight.
    """
    made = dict[str, Any]()
    for name in sorted(combined.value):
        factor, over = (combined.weight[name], expected) if combined.kinds[name] == "mean" else (1.0, 1.0)
        given = T.leaves(combined.value[name])
        hosts = [np.ravel(host_of(leaf)) for leaf in given]
        noisy = add(name, np.concatenate([np.empty(0), *hosts]) * factor) / over
        parts = np.split(noisy, np.cumsum([len(host) for host in hosts])[:-1])
        leaves = [_like(part.reshape(np.shape(leaf)), leaf) for part, leaf in zip(parts, given, strict=True)]
        made[name] = T.rebuild(combined.value[name], leaves)
    return made


def host_of(leaf: Any) -> Array:
    """A leaf as an array of NumPy in float64."""
    return np.asarray(leaf if T.namespace(leaf) is np else leaf.detach().cpu(), dtype=np.float64)


def _like(made: Array, leaf: Any) -> Any:
    """The numbers in the leaf's own library and dtype."""
    xp = T.namespace(leaf)
    if xp is np:
        return np.asarray(made, dtype=np.asarray(leaf).dtype)[()]
    return xp.as_tensor(made, dtype=leaf.dtype, device=leaf.device)
