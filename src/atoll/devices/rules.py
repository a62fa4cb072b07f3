"""Rules that turn work and bytes into seconds and joules: computing, links, power, and the rules of a fleet together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties
from atoll.core.requests.results import Plan
from atoll.core.requests.task import Workload
from atoll.core.validation import Checked, require_parts

from .availability import Availability
from .traces import GeneratedTrace, Recorded, Trace
from .traits import Distribution, DrawnPopulation, Trait, key_of, lift, positive, region_names

__all__ = [
    "Backhaul",
    "BatchRate",
    "Battery",
    "Compute",
    "Cycles",
    "DeviceMemory",
    "Link",
    "Power",
    "Rules",
    "Shannon",
    "Throughput",
    "Times",
]


# The response time of each device, part by part.


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


# The computing time of devices: rules that turn declared work into seconds.


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


# The duration of transfers: rules for the links of devices, and for the links between servers.


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


# What a device has besides time: energy, a battery, memory.


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

    def charge_bytes(self, nbytes: Any) -> NDArray[np.float64]:
        """Bytes as the model of devices counts them."""
        real = np.asarray(nbytes, dtype=np.float64)
        return real if self.model_bytes is None else np.where(real > self.model_over, self.model_bytes, real)

    def times(self, parties: Parties, plan: Plan) -> Times:
        """The parts of each device's response time, if nothing fails."""
        population, positions, wired = self.places(parties)
        n = len(positions)
        down = np.full(n, self.charge_bytes(plan.down))
        largest = np.max(plan.down, initial=0)
        reply = float(self.charge_bytes(plan.up if plan.up > 0 else largest))
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
        return 0.0 if self.backhaul is None else self.backhaul.seconds(source, target, float(self.charge_bytes(nbytes)))

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
