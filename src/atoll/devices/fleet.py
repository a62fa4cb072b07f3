"""A fleet: devices with their links as columns, and the rules that turn work and bytes into seconds, joules and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.core.requests.cost import Outcomes, Plan
from atoll.core.requests.party import Parties
from atoll.core.time.prospect import Prospects

from .failures import DeviceOutcomes, decide
from .recording import recorded
from .roles import prospects_of
from .rules import Rules
from .times import Times

__all__ = ["Fleet"]


@dataclass(frozen=True, eq=False)
class Fleet(Rules):
    """The model of devices of a simulation: ``atoll.simulate(..., devices=fleet)``.

    A request to a device takes ``T_dist + T_down + T_train + T_up`` seconds: the server sends all copies of the request (``T_dist`` = their bytes over
    ``egress``, which delays every recipient), then the device receives, computes and replies. Every draw is a function of a seed, the device and the
    turn, so an outcome does not depend on the other devices asked, the order or the engine. A party outside the population (an edge
    server, a key holder) is a machine with mains power and a wired link: it replies at once and never fails.

    Args:
        compute: rule for the duration of work.
        link: rule for the duration of transfers.
        trace: which devices crash, and when.
        availability: which devices are available when; by default all, always.
        latency: additional seconds of each request and each reply.
        egress: bytes per second at which the server sends; by default sending takes no time.
        backhaul: links between servers; by default they take no time.
        model_bytes: fixed size of a model: every message above ``model_over`` bytes, in either direction, counts as this many bytes.
        model_over: messages of at most this many bytes contain no model, and count with their own size.
        notice: seconds from a crash until the link notices it; a round without a deadline waits for this.
        power: energy cost of participation; needs a clock rate, as ``Cycles`` has.
        battery: energy that devices have.
        memory: bytes of memory that devices have for a model.
        regions: number of regions of (nearly) equal size, in the order of the devices; or the name of each device's region.
        seed: seed of the traits; a trace has its own.

    If the size of a reply is not known beforehand (``Plan.up == 0``), it is taken to be the largest download of the request.
    """

    # ------------------------------------------------------------------ the contract of a cost model

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Decide when each device replies, or that it does not; see ``Outcomes``.

        Raises:
            ConfigError: the trace is shorter than the run, or the model fits on no device.
        """
        population, positions, wired = self.places(parties)
        times = self.times(parties, plan)
        found = decide(self, population, positions, plan, times)
        return self._with_servers(found, wired, times) if wired is not None else found.outcomes()

    def forecast(self, parties: Parties, plan: Plan) -> NDArray[np.float64]:
        """Seconds from the moment the server has sent its copy until each device's reply arrives, if nothing fails."""
        return self.times(parties, plan).response

    def available(self, parties: Parties, now: float) -> NDArray[np.bool_]:
        """Which devices are available now."""
        population, positions, wired = self.places(parties)
        if self.availability is None:
            return np.ones(len(parties), dtype=bool)
        there = self.availability.there(population, positions, now)
        return there if wired is None else there | wired

    def require_turns(self, parties: Parties, last: int) -> None:
        """Refuse a run whose last turn is not in the trace.

        Args:
            parties: some parties of the population.
            last: number of the last turn.

        Raises:
            ConfigError: the trace is shorter than the run, or has other devices.
        """
        self.trace.require_turns(last, len(parties.roster.names))

    def session(self, parties: Parties, plans: Sequence[Plan], until: float) -> Prospects:
        """The prospects of the roles of a session; see `atoll.devices.roles`."""
        return prospects_of(self, parties, plans, until)

    @property
    def recharge(self) -> float:
        """Watts that recharge every battery, all the time; see ``Cost``."""
        return 0.0 if self.battery is None else self.battery.watts

    # ------------------------------------------------------------------ traces

    def recorded(self, turns: int, devices: int, until: float | None = None) -> Fleet:
        """This fleet with every draw as data: the same devices to the bit, independent of seeds, until the trace or the clock runs out.

        Traits become ``GivenTraits``, the trace ``Recorded``, availability ``Windows``. Rules (seconds of work and of bytes, power) stay unchanged.

        Args:
            turns: the last turn, as in ``record``.
            devices: size of the population.
            until: seconds on the clock up to which to record availability; asking about later moments raises an error. Required if availability is unlimited.

        Raises:
            ConfigError: a rule of your own cannot be recorded, or ``until`` is missing.
        """
        return recorded(self, self._population(devices), turns, until)

    def save(self, path: str | Path) -> Path:
        """Write a recorded fleet as one file: NumPy's zipped arrays with a checked header, never pickled; see ``load_fleet``.

        Raises:
            ConfigError: the fleet is not ``recorded``, or has rules of your own.
        """
        from .files.fleets import write_fleet

        return write_fleet(Path(path), self)

    @staticmethod
    def _with_servers(found: DeviceOutcomes, wired: NDArray[np.bool_], times: Times) -> Outcomes:
        out = found.outcomes()
        energy = None if out.energy is None else np.where(wired, 0.0, out.energy)  # none of it can be credited
        reason = np.where(wired, 0, found.reason).astype(np.int8)
        seconds = np.where(wired, times.wait, out.seconds)
        fraction = np.where(wired, 1.0, out.fraction)
        return Outcomes(seconds, out.done | wired, fraction, energy, reason, out.spending)
