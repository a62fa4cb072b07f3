"""The response time of each device, part by part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Times"]


@dataclass(frozen=True)
class Times:
    """The parts of response times in seconds, one entry a device.

    Attributes:
        wait: until the server has sent all copies.
        latency: of the request and of the reply, each.
        down: download.
        train: local work.
        up: upload.
        speed: speed of each device, in the unit of the compute rule.
        size: bytes of the larger of download and reply.
    """

    wait: float
    latency: float
    down: NDArray[np.float64]
    train: NDArray[np.float64]
    up: NDArray[np.float64]
    speed: NDArray[np.float64]
    size: NDArray[np.float64]

    @property
    def response(self) -> NDArray[np.float64]:
        """From the moment the copy leaves the server until the reply arrives."""
        return 2.0 * self.latency + self.down + self.train + self.up

    @property
    def begun(self) -> NDArray[np.float64]:
        """From the moment the copy leaves the server until the work begins."""
        return self.latency + self.down

    def share(self, moment: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the work that is done this long after the copy left the server."""
        into = moment - self.begun
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.train > 0.0, np.clip(into / self.train, 0.0, 1.0), (into >= 0.0).astype(np.float64))
