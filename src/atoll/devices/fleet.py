"""A fleet: devices with their links as columns, and the rules that turn work and bytes into seconds, joules and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties
from atoll.core.time.clock import Outcomes, Plan
from atoll.core.time.prospect import Prospects
from atoll.core.validation import Checked, require_parts

from .availability import Availability
from .compute import BatchRate, Compute
from .distributions import Distribution
from .draws import DrawnPopulation, key_of, region_names
from .fates import Fates, Times, fates
from .links import Backhaul, Link, Throughput
from .power import Battery, DeviceMemory, Power
from .recording import recorded
from .traces import GeneratedTrace, Recorded, Trace
from .traits import lift

__all__ = ["Fleet"]


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
class Fleet(Checked):
    """The model of devices of a simulation: ``atoll.simulate(..., devices=fleet)``.

    A request to a device takes ``T_dist + T_down + T_train + T_up`` seconds: the server sends all copies of the request (``T_dist`` = their bytes over
    ``egress``, a wait for everyone it sends to), the device receives, computes and replies. Every draw is a function of a seed, the device and the
    turn, so that an outcome does not depend on who else is asked, on the order or on the engine. Whoever is no member of the population (an edge
    server, a key holder) is a machine with wire and power: it answers at once and never fails.

    Args:
        compute: how long work takes.
        link: how long bytes take.
        trace: what goes wrong.
        availability: who is there; by default all, always.
        latency: seconds that every request and every reply takes besides.
        egress: bytes per second that the server sends with; by default it needs no time.
        backhaul: links between servers; by default they need no time.
        model_bytes: size of a model by decree: every message above ``model_over`` bytes, in either direction, counts as this many.
        model_over: messages of at most this many bytes hold no model, and count as they are.
        notice: seconds after a crash until the link notices it; a round without a deadline waits for that.
        power: what participation costs in energy; needs a clock rate, as ``Cycles`` has.
        battery: how much energy devices have.
        memory: how large a model they can hold.
        regions: how many regions of (nearly) equal size, in the order of the devices; or the name of each device's region.
        seed: of the traits; a trace has its own.

    The size of a reply, when it is not known beforehand (``Plan.up == 0``), is taken to be the largest download of the request.
    """

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

    # ------------------------------------------------------------------ the contract of a cost model

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Decide when each device answers, or that it does not; see ``Outcomes``.

        Raises:
            ConfigError: the trace is shorter than the run; the model fits no device.
        """
        population, positions, wired = self.places(parties)
        times = self.times(parties, plan)
        found = fates(self, population, positions, plan, times)
        return self._with_servers(found, wired, times) if wired is not None else found.outcomes()

    def forecast(self, parties: Parties, plan: Plan) -> NDArray[np.float64]:
        """Seconds from the moment at which the server has sent its copy until each device's reply, if nothing goes wrong."""
        return self.times(parties, plan).response

    def available(self, parties: Parties, now: float) -> NDArray[np.bool_]:
        """Who can be asked now."""
        population, positions, wired = self.places(parties)
        if self.availability is None:
            return np.ones(len(parties), dtype=bool)
        there = self.availability.there(population, positions, now)
        return there if wired is None else there | wired

    def require_turns(self, parties: Parties, last: int) -> None:
        """Refuse a run whose last turn the trace does not hold.

        Args:
            parties: some of the population.
            last: number of the last turn.

        Raises:
            ConfigError: the trace is shorter than the run, or has other devices.
        """
        self.trace.require_turns(last, len(parties.roster.names))

    def session(self, parties: Parties, plans: Sequence[Plan], until: float) -> Prospects:
        """What becomes of the roles of a session; see `atoll.devices.roles`."""
        from .roles import prospects_of

        return prospects_of(self, parties, plans, until)

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """Seconds from one server to another."""
        return 0.0 if self.backhaul is None else self.backhaul.seconds(source, target, float(self.charged(nbytes)))

    @property
    def recharge(self) -> float:
        """Watts with which every battery is filled, all the time; see ``Cost``."""
        return 0.0 if self.battery is None else self.battery.watts

    # ------------------------------------------------------------------ times

    def charged(self, nbytes: Any) -> NDArray[np.float64]:
        """Bytes as the model of devices counts them."""
        real = np.asarray(nbytes, dtype=np.float64)
        return real if self.model_bytes is None else np.where(real > self.model_over, self.model_bytes, real)

    def times(self, parties: Parties, plan: Plan) -> Times:
        """The parts of each device's response time, if nothing goes wrong."""
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
        """How each trait is spread: ``"speed"``, what the link has, and ``"battery"`` (joules) and ``"memory"`` (bytes) where there are any."""
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
            raise ConfigError(f"{name!r} is no trait of this fleet", where="Fleet", remedy=f"use {', '.join(traits)}")
        return population.column(traits[name], key_of(self.seed, name), positions)

    def region(self, parties: Parties) -> list[str]:
        """The name of each device's region."""
        population, positions, _ = self.places(parties)
        return [population.names[i] for i in population.region[positions]]

    # ------------------------------------------------------------------ traces

    def record(self, turns: int, devices: int) -> Recorded:
        """The trace as arrays, for turns 0 (before the first round) to ``turns``: enough for a training of so many rounds.

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

    def recorded(self, turns: int, devices: int, until: float | None = None) -> Fleet:
        """This fleet with every draw as data: the same devices to the bit, whatever becomes of seeds, until the trace or the clock runs out.

        Traits become ``GivenTraits``, the trace ``Recorded``, availability ``Windows``. Rules (seconds of work and of bytes, power) stay as they are.

        Args:
            turns: the last turn, as in ``record``.
            devices: size of the population.
            until: seconds on the clock up to which availability is wanted; who asks about later moments is refused. Needed where it goes on for ever.

        Raises:
            ConfigError: a rule of your own cannot be recorded, or ``until`` is missing.
        """
        return recorded(self, self._population(devices), turns, until)

    def save(self, path: str | Path) -> Path:
        """Write a recorded fleet as one file: NumPy's zipped arrays with a checked header, never pickled; see ``load_fleet``.

        Raises:
            ConfigError: it is not ``recorded``, or has rules of your own.
        """
        from .fleetfile import write_fleet

        return write_fleet(Path(path), self)

    # ------------------------------------------------------------------ who is who

    def _population(self, size: int) -> DrawnPopulation:
        if size not in self._populations:
            self._populations[size] = DrawnPopulation(size, self.regions)
        return self._populations[size]

    def places(self, parties: Parties) -> tuple[DrawnPopulation, NDArray[np.int64], NDArray[np.bool_] | None]:
        """The population, the places of these parties in it, and which of them are none of its members (``None``: all are)."""
        population = self._population(len(parties.roster.names))
        positions = parties.positions
        if not len(positions) or positions.max() < population.size:
            return population, positions, None
        wired = positions >= population.size
        return population, np.where(wired, 0, positions), wired

    @staticmethod
    def _with_servers(found: Fates, wired: NDArray[np.bool_], times: Times) -> Outcomes:
        out = found.outcomes()
        energy = None if out.energy is None else np.where(wired, 0.0, out.energy)  # of which nothing can be given back
        reason = np.where(wired, 0, found.reason).astype(np.int8)
        seconds = np.where(wired, times.wait, out.seconds)
        fraction = np.where(wired, 1.0, out.fraction)
        return Outcomes(seconds, out.done | wired, fraction, energy, reason, out.spending)
