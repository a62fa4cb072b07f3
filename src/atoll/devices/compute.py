"""The computing time of devices: rules that turn declared work into seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.requests.task import Workload
from atoll.core.validation import Checked

from .distributions import Distribution
from .traits import Trait, lift, positive

__all__ = ["BatchRate", "Compute", "Cycles"]


@dataclass(frozen=True)
class Compute(Checked):
    """A rule for the duration of local work, with the speed of each device."""

    @property
    def trait(self) -> Distribution:
        """The distribution of speeds over devices."""
        raise NotImplementedError

    def seconds(self, work: Workload, speed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of computing for each device."""
        raise NotImplementedError

    def gigahertz(self, speed: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """The clock rate of each device in GHz, which energy needs; ``None`` if the rule has none."""
        del speed
        return None


@dataclass(frozen=True, eq=False)
class BatchRate(Compute):
    """Mini-batches per second: ``T = batches / speed`` (W. Wu, PhD thesis, Warwick 2021, Eq. 3.5).

    Args:
        speed: mini-batches per second of each device.
        batch: count fractional batches, ``examples * epochs / batch``, as the thesis' program does; by default the batches that the task declares.
        scale: number of examples that a device is charged for each one it trains on.
    """

    speed: Trait = 1.0
    batch: int | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "speed", positive(self.speed, "speed", "BatchRate"))
        for name, value in (("batch", self.batch), ("scale", self.scale)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value}", where="BatchRate", remedy="use a positive number")

    @property
    def trait(self) -> Distribution:
        """Mini-batches per second."""
        return lift(self.speed)

    def seconds(self, work: Workload, speed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Batches divided by speed."""
        batches = work.batches if self.batch is None else work.examples * work.epochs / self.batch
        return self.scale * batches / speed


@dataclass(frozen=True, eq=False)
class Cycles(Compute):
    """Processor cycles: ``T = examples * epochs * bits * cycles / hertz`` (thesis, Eqs. 4.41 and 5.29).

    Args:
        hertz: clock rate of each device, cycles per second.
        bits: bits of one example.
        cycles: cycles for one bit.
    """

    hertz: Trait = 1e9
    bits: float = 6272.0
    cycles: float = 400.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hertz", positive(self.hertz, "hertz", "Cycles"))
        for name, value in (("bits", self.bits), ("cycles", self.cycles)):
            if not value > 0:
                raise ConfigError(f"{name}={value}", where="Cycles", remedy="use a positive number")

    @property
    def trait(self) -> Distribution:
        """Clock rates in Hz."""
        return lift(self.hertz)

    def seconds(self, work: Workload, speed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cycles divided by the clock rate."""
        return work.examples * work.epochs * self.bits * self.cycles / speed

    def gigahertz(self, speed: NDArray[np.float64]) -> NDArray[np.float64]:
        """The clock rate in GHz."""
        return speed / 1e9
