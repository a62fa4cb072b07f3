"""The outcome for each device that is asked: it replies, or fails for a reason, at a moment, after a share of its work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.requests.cost import REASONS, Outcomes, Plan, Spending
from atoll.core.time.deadline import WHOLE

from .draws import DrawnPopulation
from .rules import Rules
from .times import Times

__all__ = ["DeviceOutcomes", "crashes", "decide", "unable"]

CRASHED, LEFT, AWAY, MEMORY, BATTERY = (REASONS.index(r) for r in REASONS[1:])


@dataclass
class DeviceOutcomes:
    """Outcomes while they are computed.

    Attributes:
        seconds: from sending until the reply arrives, or until the link notices the failure.
        reason: index into ``REASONS``.
        fraction: share of the work done.
        energy: joules, or ``None``.
        spending: how the energy is spent, or ``None``.
    """

    seconds: NDArray[np.float64]
    reason: NDArray[np.int8]
    fraction: NDArray[np.float64]
    energy: NDArray[np.float64] | None
    spending: Spending | None = None

    def outcomes(self) -> Outcomes:
        """The outcomes in the form that a simulation takes."""
        return Outcomes(self.seconds, self.reason == 0, self.fraction, self.energy, self.reason, self.spending)


def decide(
    fleet: Rules, population: DrawnPopulation, positions: NDArray[np.int64], plan: Plan, times: Times
) -> DeviceOutcomes:
    """Decide which devices reply. A reason that keeps a device from beginning takes precedence over one that stops it."""
    crashed, point = crashes(fleet, population, positions, plan)
    training, whole = fleet.trace.span == "training", times.response
    moment = np.where(crashed, times.begun + point * times.train if training else point * whole, whole)
    share = point if training else times.share(moment)
    reason = np.where(crashed, CRASHED, 0).astype(np.int8)
    there = None
    if fleet.availability is not None:
        there = fleet.availability.there(population, positions, plan.now)
        start = plan.now + times.wait
        until = start + whole
        leaves = fleet.availability.leaves(population, positions, plan.now, until)
        leaves = np.where(there & (leaves < until), leaves, np.where(there, np.inf, -np.inf)) - start
        left = leaves < moment
        moment, reason[left] = np.where(left, np.maximum(leaves, 0.0), moment), LEFT
        share = np.where(left, times.share(moment), share)
    failed = reason > 0
    fraction = np.where(failed, share, 1.0)
    energy = _spent(fleet, times, moment, fraction, failed)
    seconds = times.wait + moment + np.where(failed, fleet.notice, 0.0)
    found = DeviceOutcomes(seconds, reason, fraction, energy, _spending(fleet, times, moment))
    for why, cannot in unable(fleet, population, positions, plan, times, there):
        found.reason[cannot], found.fraction[cannot], found.seconds[cannot] = why, 0.0, fleet.notice
        if found.energy is not None:
            found.energy[cannot] = 0.0
    return found


def crashes(
    fleet: Rules, population: DrawnPopulation, positions: NDArray[np.int64], plan: Plan
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which devices crash before the end of the request's part of the turn, and at which point of that part; 0 if they crashed before it."""
    crashed, point = fleet.trace.at(plan.turn, population, positions)
    begin, end = plan.risk
    if (begin, end) == WHOLE:
        return crashed, point
    point = np.clip((point - begin) / (end - begin), 0.0, None) if end > begin else np.where(point < begin, 0.0, 1.0)
    reached = point < 1.0 if end < 1.0 else np.ones(len(point), dtype=bool)
    return crashed & reached, np.where(reached, np.minimum(point, 1.0), 0.0)


def _whole(fleet: Rules, times: Times) -> NDArray[np.float64] | None:
    """Joules of a whole participation; ``None`` if energy is not counted."""
    gigahertz = fleet.compute.gigahertz(times.speed)
    if fleet.power is None or gigahertz is None:
        return None
    return fleet.power.joules(times.down + times.up, times.train, gigahertz)


def _spent(
    fleet: Rules, times: Times, moment: NDArray[np.float64], fraction: NDArray[np.float64], failed: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """Joules of each device, including those that stopped at a moment."""
    whole, gigahertz = _whole(fleet, times), fleet.compute.gigahertz(times.speed)
    if whole is None or fleet.power is None or gigahertz is None or fleet.power.lost == "full":
        return whole
    if fleet.power.lost == "share":
        response = times.response
        done = fraction if fleet.trace.span == "training" else moment / np.where(response > 0.0, response, 1.0)
        return np.where(failed, done * whole, whole)
    received = np.clip(moment - times.latency, 0.0, times.down)
    sent = np.clip(moment - times.begun - times.train, 0.0, times.up)
    return np.where(failed, fleet.power.joules(received + sent, times.share(moment) * times.train, gigahertz), whole)


def _spending(fleet: Rules, times: Times, moment: NDArray[np.float64]) -> Spending | None:
    """The spending of a participation that ends at a moment; the server's message to stop takes one latency, as the request did."""
    gigahertz = fleet.compute.gigahertz(times.speed)
    if fleet.power is None or gigahertz is None or fleet.power.stopped == "full":
        return None
    none, power = np.zeros(len(moment)), fleet.power
    seconds = np.cumsum([none + times.wait, times.down, times.train, times.up], axis=0)
    down, up = power.joules(times.down, none, gigahertz), power.joules(times.up, none, gigahertz)
    joules = np.cumsum([none, down, power.joules(none, times.train, gigahertz), up], axis=0)
    return Spending(seconds, joules, times.wait + moment - times.latency)


def unable(
    fleet: Rules,
    population: DrawnPopulation,
    positions: NDArray[np.int64],
    plan: Plan,
    times: Times,
    there: NDArray[np.bool_] | None,
) -> list[tuple[int, NDArray[np.bool_]]]:
    """The reasons that keep devices from beginning, in rising precedence."""
    found: list[tuple[int, NDArray[np.bool_]]] = []
    needs = _whole(fleet, times)
    if fleet.battery is not None and needs is not None:
        lacking = np.zeros(len(positions)) if plan.lacking is None else plan.lacking()
        capacity = fleet.column("battery", population, positions)
        found.append((BATTERY, fleet.battery.charge(capacity, lacking) < needs))
    if there is not None:
        found.append((AWAY, ~there))
    if fleet.memory is not None:
        every = fleet.column("memory", population, population.positions)
        size, copies = every[positions], fleet.memory.copies * times.size
        if len(copies) and copies.min() > every.max():
            raise ConfigError(
                f"the model needs {copies.min():,.0f} bytes, and no device has more than {every.max():,.0f}",
                where=plan.request,
                remedy="use a smaller model, or devices with more memory",
            )
        found.append((MEMORY, copies > size))
    return found
