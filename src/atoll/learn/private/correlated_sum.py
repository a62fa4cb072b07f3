"""The server's half of DP-FTRL: sums over a fixed denominator, plus noise that is correlated across rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.requests.results import Combined
from atoll.privacy.discrete import snap
from atoll.privacy.factorisation import Factorisation

from ..algorithm import RoundInfo
from .noisy_sum import NoisySum, entries, noisy_sums

__all__ = ["CorrelatedSum"]


@dataclass(frozen=True, kw_only=True)
class CorrelatedSum(NoisySum):
    """``(sum_{k in S} v_k + s D n_t) / m`` with the noise ``n_t`` of a factorisation: `NoisySum`, but what one round adds, later rounds take back in part.

    With noise multiplier ``z`` a participation, ``s = z sqrt(values cost)``. The memory is what later rounds need of earlier noise; it is in checkpoints, so a run that
    resumes goes on with the very same noise. It must stay with the server: who has it can subtract it.

    Attributes:
        factorisation: how noise is correlated.
        cost: squared sensitivity of one participation, see `Factorisation.cost`.
    """

    factorisation: Factorisation
    cost: float

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the noisy sums, over the fixed denominator where the algorithm takes a mean.

        Raises:
            CompositionError: the round has no secret, because it is none of a central server's own.
        """
        del params
        numbers, size = self.secret_of(info).generator(), entries(combined)
        noise, memory = self.factorisation.step(memory, lambda: numbers.standard_normal(size))
        deviation = self.noise * math.sqrt(self.values * self.cost) * self.sensitivity
        rest = iter(np.split(noise, np.cumsum([_size(combined.value[name]) for name in sorted(combined.value)])[:-1]))

        def add(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
            del name
            return snap(values + deviation * next(rest), deviation)

        return noisy_sums(combined, add, self.expected), memory


def _size(value: Any) -> int:
    return sum(math.prod(np.shape(leaf)) for leaf in T.leaves(value))
