"""What a device has besides time: energy, a battery, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

from .traits import Trait, positive

__all__ = ["Battery", "DeviceMemory", "Power"]

Lost = Literal["share", "parts", "full"]
Stopped = Literal["done", "full"]


@dataclass(frozen=True)
class Power(Checked):
    """Energy of a participation: ``E = transmit * T_comm + compute * s**3 * T_train`` joules, ``s`` in GHz (thesis, Eqs. 4.42, 5.31 to 5.34).

    Args:
        transmit: watts while sending or receiving.
        compute: watts at 1 GHz; the power of a processor grows with the cube of its clock rate.
        lost: what a device that drops out has spent. ``"share"``: of the whole energy, the share of its work that it did (a hypothesis that fits the
            thesis' figures: half of it on average); ``"parts"``: for what it received and computed until then; ``"full"``: all.
        stopped: what a device that is called off has spent. ``"done"``: for what it received, computed and sent until the message reached it; ``"full"``:
            all, as the thesis counts (a late client has used the energy of its whole round).
    """

    transmit: float = 0.5
    compute: float = 0.7
    lost: Lost = "share"
    stopped: Stopped = "done"

    def __post_init__(self) -> None:
        if not (self.transmit >= 0 and self.compute >= 0):
            raise ConfigError(
                f"transmit={self.transmit}, compute={self.compute} watts", where="Power", remedy="use at least 0"
            )
        if self.lost not in get_args(Lost):
            raise ConfigError(f"lost={self.lost!r}", where="Power", remedy="use 'share', 'parts' or 'full'")
        if self.stopped not in get_args(Stopped):
            raise ConfigError(f"stopped={self.stopped!r}", where="Power", remedy="use 'done' or 'full'")

    def joules(
        self, talking: NDArray[np.float64], training: NDArray[np.float64], gigahertz: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Energy of this many seconds of communication and of training."""
        return self.transmit * talking + self.compute * gigahertz**3 * training


@dataclass(frozen=True, eq=False)
class Battery(Checked):
    """A device declines a request if its battery lacks the energy for it.

    The battery starts full, recharges with ``watts`` until it is full, and gives the energy of a participation at once when that begins (energy saved
    by a cancellation is credited at that moment): ``charge = min(capacity, charge + watts * seconds)`` from one participation to the next. The object
    that keeps the meters keeps how much a battery lacks, see ``Plan.lacking``; it is counted in whole microjoules.

    Args:
        capacity: joules of each device's full battery.
        watts: recharging power, all the time.
        reserve: share of the capacity that is never spent on a request.
    """

    capacity: Trait = 1000.0
    watts: float = 0.0
    reserve: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", positive(self.capacity, "capacity", "Battery"))
        if not (self.watts >= 0 and 0 <= self.reserve <= 1):
            raise ConfigError(
                f"watts={self.watts}, reserve={self.reserve}",
                where="Battery",
                remedy="use watts of at least 0 and a reserve from 0 to 1",
            )

    def charge(self, capacity: NDArray[np.float64], lacking: NDArray[np.float64]) -> NDArray[np.float64]:
        """Joules that each device may spend when its battery lacks this many of being full."""
        return np.maximum(0.0, capacity - lacking - self.reserve * capacity)


@dataclass(frozen=True, eq=False)
class DeviceMemory(Checked):
    """A device that cannot hold the model never does the work.

    Args:
        size: bytes of memory of each device.
        copies: memory needed, in multiples of the size of the request: model, gradient, momentum, activations.
    """

    size: Trait = 1e9
    copies: float = 3.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", positive(self.size, "size", "DeviceMemory"))
        if not self.copies > 0:
            raise ConfigError(f"copies={self.copies}", where="DeviceMemory", remedy="use a positive number")
