"""A fleet: devices with their links as columns, and the rules that turn work and bytes into seconds, joules and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.core.requests.party import Parties
from atoll.core.time.clock import Outcomes, Plan
from atoll.core.time.prospect import Prospects

from .fates import Fates, fates
from .recording import recorded
from .roles import prospects_of
from .rules import Rules
from .times import Times

__all__ = ["Fleet"]


@dataclass(frozen=True, eq=False)
class Fleet(Rules):
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
        return prospects_of(self, parties, plans, until)

    @property
    def recharge(self) -> float:
        """Watts with which every battery is filled, all the time; see ``Cost``."""
        return 0.0 if self.battery is None else self.battery.watts

    # ------------------------------------------------------------------ traces

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

    @staticmethod
    def _with_servers(found: Fates, wired: NDArray[np.bool_], times: Times) -> Outcomes:
        out = found.outcomes()
        energy = None if out.energy is None else np.where(wired, 0.0, out.energy)  # of which nothing can be given back
        reason = np.where(wired, 0, found.reason).astype(np.int8)
        seconds = np.where(wired, times.wait, out.seconds)
        fraction = np.where(wired, 1.0, out.fraction)
        return Outcomes(seconds, out.done | wired, fraction, energy, reason, out.spending)
