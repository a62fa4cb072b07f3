"""The duration of transfers: rules for the links of devices, and for the links between servers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

from .distributions import Distribution
from .traits import Trait, lift, positive

__all__ = ["Backhaul", "Link", "Shannon", "Throughput"]


@dataclass(frozen=True)
class Link(Checked):
    """A rule for the rates of each device's link."""

    @property
    def traits(self) -> dict[str, Distribution]:
        """Traits by name, each drawn independently."""
        raise NotImplementedError

    def rates(self, traits: dict[str, NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bytes per second to each device, and from it."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Throughput(Link):
    """Bytes per second: ``T_down = bytes / down``, ``T_up = bytes / up`` (thesis, Eq. 3.4).

    Args:
        down: bytes per second to each device.
        up: bytes per second from each device; by default as ``down``.
    """

    down: Trait = 175_000.0
    up: Trait | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "down", positive(self.down, "down", "Throughput"))
        if self.up is not None:
            object.__setattr__(self, "up", positive(self.up, "up", "Throughput"))

    @property
    def traits(self) -> dict[str, Distribution]:
        """The two rates, or the one if they are equal."""
        return {"down": lift(self.down)} | ({} if self.up is None else {"up": lift(self.up)})

    def rates(self, traits: dict[str, NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The rates as drawn."""
        return traits["down"], traits.get("up", traits["down"])


@dataclass(frozen=True, eq=False)
class Shannon(Link):
    """A radio link: ``bandwidth * log2(1 + snr)`` bits per second down, a share of it up (thesis, Eqs. 4.40 and 5.28).

    With ``up=0.5``, sending a model in both directions takes ``3 * 8 bytes / rate`` seconds.

    Args:
        bandwidth: bandwidth of each device in Hz.
        snr: signal-to-noise ratio, not in decibels.
        up: upload rate divided by download rate.
    """

    bandwidth: Trait = 1e6
    snr: Trait = 100.0
    up: float = 0.5

    def __post_init__(self) -> None:
        for name in ("bandwidth", "snr"):
            object.__setattr__(self, name, positive(getattr(self, name), name, "Shannon"))
        if not self.up > 0:
            raise ConfigError(f"up={self.up}", where="Shannon", remedy="use a positive share, such as 0.5")

    @property
    def traits(self) -> dict[str, Distribution]:
        """Bandwidth and signal-to-noise ratio."""
        return {"bandwidth": lift(self.bandwidth), "snr": lift(self.snr)}

    def rates(self, traits: dict[str, NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Shannon's capacity, in bytes per second."""
        rate = traits["bandwidth"] * np.log2(1.0 + traits["snr"]) / 8.0
        return rate, self.up * rate


@dataclass(frozen=True)
class Backhaul(Checked):
    """The links between servers: edge servers share the link to the cloud.

    Sending a model to every edge and back takes ``T_c2e2c = 3 * bytes * edges / rate`` with ``up=0.5`` (thesis, Eq. 4.39).

    Args:
        rate: bytes per second of the shared link towards the edges.
        edges: number of edges that share the link.
        up: rate towards the cloud divided by ``rate``.
        hub: the party in the cloud. Messages to it go up, messages from it go down, and messages between other servers go up and down.
    """

    rate: float = 125e6
    edges: int = 1
    up: float = 0.5
    hub: str = "server"

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.edges >= 1 and self.up > 0):
            raise ConfigError(
                f"rate={self.rate}, edges={self.edges}, up={self.up}",
                where="Backhaul",
                remedy="use positive numbers, and at least one edge",
            )

    def seconds(self, source: str, target: str, nbytes: float) -> float:
        """Seconds from one server to another."""
        down = nbytes * self.edges / self.rate
        if source == self.hub:
            return down
        return down / self.up if target == self.hub else down + down / self.up
