"""Noise of a campaign: what all sums tell of one worker is bounded, by noise that no party knows.

In each step a party scales the contributions of every worker down to a length of ``clip``, adds them up as whole numbers, and adds a part of the noise: a discrete Gaussian on each entry (`atoll.secure.DiscreteGaussianNoise`). The
parts of ``honest`` of the parties are enough. So the others may be lost, or tell the server theirs. A sum of fewer parties than that is refused by whoever holds shares.

The unit is a worker with all its reports, in all steps: exchanged for any other worker of its party. The number of workers is no secret. `ContributionNoise` finds the least noise with which all steps together keep epsilon and delta.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.privacy import smallest_noise
from atoll.privacy.accountant import epsilon_of
from atoll.privacy.discrete import DiscreteGaussianLaw, clip_rows, sampler_of
from atoll.secure.keystream import Keystream, derived
from atoll.secure.noise import DiscreteGaussianNoise

if TYPE_CHECKING:
    from atoll.core.event import Event

__all__ = ["ContributionNoise"]

_FINE, _COARSE = 10, 4
"""Bits of the noise of one party, in steps of the grid: rounding is invisible beside it. Of ``clip``, at least: a coarser grid would change the contributions."""

_TAIL = 40
"""Standard deviations that a sum's noise may have: beyond lies less than ``2^-1000``."""


@dataclass(frozen=True)
class ContributionNoise:
    """The noise of all steps of a campaign.

    Args:
        epsilon: of a worker's reports in all steps.
        delta: in (0, 1).
        clip: largest length of a worker's contributions in a step; longer ones are scaled down.
        parties: how many parties there are.
        releases: steps.
        honest: part of the parties whose noise counts.
    """

    epsilon: float
    delta: float
    clip: float
    parties: int
    releases: int
    honest: float = 0.5

    @property
    def least(self) -> int:
        """Parties that must contribute to a sum."""
        return max(1, math.ceil(self.honest * self.parties - 1e-9))

    def _stage(self, multiplier: float) -> DiscreteGaussianNoise:
        """The noise of one step, on the coarsest grid of which a party's noise has enough bits."""
        own = multiplier * 2 * self.clip / math.sqrt(self.least)
        bits = max(_FINE - math.ceil(math.log2(own)), _COARSE - math.floor(math.log2(self.clip)))
        return DiscreteGaussianNoise(multiplier=multiplier, clip=self.clip, step=2.0**-bits, least=self.least, replaced=True)  # fmt: skip

    @functools.cached_property
    def stage(self) -> DiscreteGaussianNoise:
        """The least noise that keeps epsilon and delta, by Rényi divergences.

        Raises:
            ConfigError: no noise that can be drawn does.
        """
        try:
            cost = lambda multiplier: epsilon_of(((self._stage(multiplier).released(), self.releases),), self.delta, "rdp", "server", "replace-one")  # noqa: E731  # fmt: skip
            return self._stage(smallest_noise(cost, self.epsilon, math.sqrt(self.releases)))
        except ConfigError as error:
            raise ConfigError(f"epsilon={self.epsilon:g} for {self.releases} sums: {error.what}", where="Truth", remedy="use a larger epsilon or fewer iterations") from error  # fmt: skip

    @property
    def released(self) -> Event:
        """What one step releases."""
        return self.stage.released()

    @property
    def bits(self) -> int:
        """Bits after the point of whole numbers; negative if the grid is coarser than 1."""
        return -round(math.log2(self.stage.step))

    @property
    def largest(self) -> int:
        """How far the noise of all parties moves a sum at most, in steps."""
        return math.ceil(_TAIL * math.sqrt(self.stage.variance * self.parties / self.least))

    def deviation(self, parties: int | None = None) -> float:
        """Standard deviation of an entry of a sum of so many parties; by default of all."""
        return self.stage.step * math.sqrt(self.stage.variance * (parties or self.parties) / self.least)

    def add_up(self, rows: Iterable[NDArray[np.float64]], entries: int, seed: bytes, number: int) -> NDArray[np.int64]:
        """Return the clipped contributions of a party's workers with the party's noise, as whole numbers.

        Args:
            rows: the contributions of each worker, ``(entries,)``.
            entries: their number.
            seed: the party's secret of this campaign: a step that is asked for twice has the same noise.
            number: the step.
        """
        total = np.zeros(entries, dtype=np.int64)
        for row in rows:
            total += clip_rows(row[None], self.clip, 2, self.stage.step)[0].astype(np.int64)
        source = Keystream(derived(seed, "noise of a step", str(number).encode()))
        sampler = sampler_of(DiscreteGaussianLaw(self.stage.variance / self.least))
        return total + sampler.draw(source, entries)
