"""The rules of a fleet: what its devices have, and what work and bytes cost them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.requests.cost import Plan
from atoll.core.requests.party import Parties
from atoll.core.validation import Checked, require_parts

from .availability import Availability
from .compute import BatchRate, Compute
from .distributions import Distribution
from .draws import DrawnPopulation, key_of, region_names
from .links import Backhaul, Link, Throughput
from .power import Battery, DeviceMemory, Power
from .times import Times
from .traces import GeneratedTrace, Recorded, Trace
from .traits import lift

__all__ = ["Rules"]


_PARTS: dict[str, tuple[Any, str]] = {
    "compute": (Compute, "BatchRate(1.0)"),
    "link": (Link, "Throughput(175_000.0)"),
    "trace": (Trace, "GeneratedTrace(crash=0.1)"),
}
_OPTIONAL: dict[str, tuple[Any, str]] = {
    "availability": (Availability, "Diurnal(0.5)"),
    "backhaul": (Backhaul, "Backhaul()"),
    "power": (Power, "Power()"),
    "battery": (Battery, "Battery(1000.0)"),
    "memory": (DeviceMemory, "DeviceMemory(1e9)"),
}


@dataclass(frozen=True, eq=False)
class Rules(Checked):
    """What is known of devices before the first request; `Fleet` describes each setting."""

    compute: Compute = field(default_factory=BatchRate)
    link: Link = field(default_factory=Throughput)
    trace: Trace = field(default_factory=GeneratedTrace)
    availability: Availability | None = None
    latency: float = 0.0
    egress: float | None = None
    backhaul: Backhaul | None = None
    model_bytes: float | None = None
    model_over: int = 0
    notice: float = 0.0
    power: Power | None = None
    battery: Battery | None = None
    memory: DeviceMemory | None = None
    regions: int | Sequence[str] = 1
    seed: int = 0
    _populations: dict[int, DrawnPopulation] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_parts(self, _PARTS, optional=_OPTIONAL)
        for name, value, zero in (
            ("latency", self.latency, True),
            ("notice", self.notice, True),
            ("model_over", self.model_over, True),
            ("egress", self.egress, False),
            ("model_bytes", self.model_bytes, False),
        ):
            if value is not None and not (value > 0 or (zero and value == 0)):
                least = "at least 0" if zero else "above 0"
                raise ConfigError(f"{name}={value}", where="Fleet", remedy=f"use a number {least}")
        if self.power is not None and self.compute.gigahertz(np.ones(1)) is None:
            raise ConfigError(
                f"power needs the clock rate of a device, and {type(self.compute).__name__} has none",
                where="Fleet",
                remedy="use compute=Cycles(...)",
            )
        if self.battery is not None and self.power is None:
            raise ConfigError("battery without power: nothing is spent", where="Fleet", remedy="give power=Power()")
        if self.regions < 1 if isinstance(self.regions, int) else not isinstance(self.regions, Sequence):
            raise ConfigError(
                f"regions={self.regions!r}", where="Fleet", remedy="use a number of at least 1, or names of regions"
            )
        self._check_regions()

    def _check_regions(self) -> None:
        names = region_names(self.regions)
        self.trace.check_regions(names)
        for name, trait in self.traits.items():
            trait.check_regions(names, name)

    def charged(self, nbytes: Any) -> NDArray[np.float64]:
        """Bytes as the model of devices counts them."""
        real = np.asarray(nbytes, dtype=np.float64)
        return real if self.model_bytes is None else np.where(real > self.model_over, self.model_bytes, real)

    def times(self, parties: Parties, plan: Plan) -> Times:
        """The parts of each device's response time, if nothing fails."""
        population, positions, wired = self.places(parties)
        n = len(positions)
        down = np.full(n, self.charged(plan.down))
        largest = np.max(plan.down, initial=0)
        reply = float(self.charged(plan.up if plan.up > 0 else largest))
        speed = self.trait("speed", parties)
        traits = {name: self.column(name, population, positions) for name in self.link.traits}
        rate_down, rate_up = self.link.rates(traits)
        receive, work, answer = down / rate_down, self.compute.seconds(plan.work(), speed), reply / rate_up
        size = np.maximum(down, reply)
        if wired is not None:
            receive, work, answer, down, size = (np.where(wired, 0.0, c) for c in (receive, work, answer, down, size))
        wait = 0.0 if self.egress is None else float(down.sum()) / self.egress
        return Times(wait, self.latency, receive, work, answer, speed, size)

    def trait(self, name: str, parties: Parties) -> NDArray[np.float64]:
        """A trait of these devices by name: see ``traits``."""
        population, positions, _ = self.places(parties)
        return self.column(name, population, positions)

    @property
    def traits(self) -> dict[str, Distribution]:
        """The distribution of each trait: ``"speed"``, the link's traits, and ``"battery"`` (joules) and ``"memory"`` (bytes) if set."""
        found = {"speed": self.compute.trait, **self.link.traits}
        if self.battery is not None:
            found["battery"] = lift(self.battery.capacity)
        if self.memory is not None:
            found["memory"] = lift(self.memory.size)
        return found

    def column(self, name: str, population: DrawnPopulation, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """A trait of the devices at these positions of a population."""
        traits = self.traits
        if name not in traits:
            raise ConfigError(
                f"{name!r} is not a trait of this fleet", where="Fleet", remedy=f"use {', '.join(traits)}"
            )
        return population.column(traits[name], key_of(self.seed, name), positions)

    def region(self, parties: Parties) -> list[str]:
        """The name of each device's region."""
        population, positions, _ = self.places(parties)
        return [population.names[i] for i in population.region[positions]]

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """Seconds from one server to another."""
        return 0.0 if self.backhaul is None else self.backhaul.seconds(source, target, float(self.charged(nbytes)))

    def record(self, turns: int, devices: int) -> Recorded:
        """The trace as arrays, for turns 0 (before the first round) to ``turns``: enough for a training of this many rounds.

        Args:
            turns: the last turn.
            devices: size of the population.
        """
        if turns < 0:
            raise ConfigError(f"turns={turns}", where="Fleet.record", remedy="use at least 0")
        population = self._population(devices)
        rows = [self.trace.at(turn, population, population.positions) for turn in range(turns + 1)]
        crashed, point = np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])
        return Recorded(crashed, point, self.trace.span)

    def _population(self, size: int) -> DrawnPopulation:
        if size not in self._populations:
            self._populations[size] = DrawnPopulation(size, self.regions)
        return self._populations[size]

    def places(self, parties: Parties) -> tuple[DrawnPopulation, NDArray[np.int64], NDArray[np.bool_] | None]:
        """The population, the positions of these parties in it, and which of them are not its members (``None``: all are)."""
        population = self._population(len(parties.roster.names))
        positions = parties.positions
        if not len(positions) or positions.max() < population.size:
            return population, positions, None
        wired = positions >= population.size
        return population, np.where(wired, 0, positions), wired
