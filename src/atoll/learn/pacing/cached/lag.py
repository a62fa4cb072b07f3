"""The lag that a client's model may have: the same for all clients, or by how often each fails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError

__all__ = ["AdaptiveLag", "deprecation_rate"]


def deprecation_rate(crash: NDArray[np.float64] | float, tolerance: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Return the share of rounds that a client with a constant crash probability loses to deprecation in the long run.

    A client is deprecated after ``tau + 1`` crashes in a row: ``(1 - cr) cr^(tau+1) / (1 - cr^(tau+1))`` per round, for ``lag > tau``. This is
    also what SAFA throws away (futility).

    Args:
        crash: probability ``cr``, of any shape.
        tolerance: ``tau``, of a compatible shape.
    """
    run = np.asarray(crash, dtype=np.float64) ** (np.asarray(tolerance) + 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # A client that always crashes: the limit for cr -> 1 is 1 / (tau + 1).
        return np.where(run < 1.0, (1.0 - np.asarray(crash)) * run / (1.0 - run), 1.0 / (np.asarray(tolerance) + 1.0))


@dataclass(frozen=True, kw_only=True)
class AdaptiveLag:
    """Gives each client the smallest tolerance at which it loses an expected share of at most ``loss`` of its rounds to deprecation.

    A small tolerance keeps models fresh but costs downloads and discarded work; how much depends on how often a client crashes (see
    `deprecation_rate`). The crash probability is estimated as ``(failed + prior) / (tried + 2 prior)``. So reliable clients stay close to the
    model, and only clients that fail often may lag.

    Attributes:
        loss: share of its rounds that a client may lose, in (0, 1).
        most: the largest tolerance.
        prior: failures, and successes, assumed before any observation.
    """

    loss: float = 0.01
    most: int = 10
    prior: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.loss < 1.0:
            raise ConfigError(f"loss={self.loss}", where="AdaptiveLag", remedy="use a share of rounds between 0 and 1")
        if self.most < 0:
            raise ConfigError(
                f"most={self.most}", where="AdaptiveLag", remedy="use a whole number of rounds, at least 0"
            )
        if not self.prior > 0.0:
            raise ConfigError(f"prior={self.prior}", where="AdaptiveLag", remedy="use a positive number")

    def tolerance(self, failed: NDArray[np.int64], tried: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tolerance of each client, ``(clients,)``, from its failures and tries."""
        crash = (failed + self.prior) / (tried + 2.0 * self.prior)
        rates = deprecation_rate(crash[:, None], np.arange(self.most + 1)[None, :])
        fits = rates <= self.loss
        return np.where(fits.any(axis=1), fits.argmax(axis=1), self.most).astype(np.int64)
