"""A fleet: devices with their links as columns, and the rules that turn work and bytes into seconds, joules and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties, Roster
from atoll.core.requests.results import REASONS, Outcomes, Plan, Spending
from atoll.core.requests.task import Workload
from atoll.core.time.deadline import WHOLE, Prospect, Prospects

from .availability import Windows
from .rules import Backhaul, BatchRate, Battery, Cycles, DeviceMemory, Power, Rules, Shannon, Throughput, Times
from .traces import Recorded, check_version, digest, pack_crashes, read_arrays, unpack_crashes, write_arrays
from .traits import Distribution, DrawnPopulation, Equal, GivenTraits

__all__ = [
    "DeviceOutcomes",
    "FORMAT",
    "Fleet",
    "VERSION",
    "crashes",
    "decide",
    "load_fleet",
    "planned",
    "prospects_of",
    "recorded",
    "require_feasible",
    "unable",
    "write_fleet",
]


# ------------------------------------------------------------------ a fleet
#
# A fleet: devices with their links as columns, and the rules that turn work and bytes into seconds, joules and failures.


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
    energy = _joules_until(fleet, times, moment, fraction, failed)
    seconds = times.wait + moment + np.where(failed, fleet.notice, 0.0)
    found = DeviceOutcomes(seconds, reason, fraction, energy, _spending_until(fleet, times, moment))
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


def _joules_of_whole(fleet: Rules, times: Times) -> NDArray[np.float64] | None:
    """Joules of a whole participation; ``None`` if energy is not counted."""
    gigahertz = fleet.compute.gigahertz(times.speed)
    if fleet.power is None or gigahertz is None:
        return None
    return fleet.power.joules(times.down + times.up, times.train, gigahertz)


def _joules_until(
    fleet: Rules, times: Times, moment: NDArray[np.float64], fraction: NDArray[np.float64], failed: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """Joules of each device, including those that stopped at a moment."""
    whole, gigahertz = _joules_of_whole(fleet, times), fleet.compute.gigahertz(times.speed)
    if whole is None or fleet.power is None or gigahertz is None or fleet.power.lost == "full":
        return whole
    if fleet.power.lost == "share":
        response = times.response
        done = fraction if fleet.trace.span == "training" else moment / np.where(response > 0.0, response, 1.0)
        return np.where(failed, done * whole, whole)
    received = np.clip(moment - times.latency, 0.0, times.down)
    sent = np.clip(moment - times.begun - times.train, 0.0, times.up)
    return np.where(failed, fleet.power.joules(received + sent, times.share(moment) * times.train, gigahertz), whole)


def _spending_until(fleet: Rules, times: Times, moment: NDArray[np.float64]) -> Spending | None:
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
    needs = _joules_of_whole(fleet, times)
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


def prospects_of(fleet: Rules, parties: Parties, plans: Sequence[Plan], until: float) -> Prospects:
    """Return the prospects of the devices that play the roles of a session.

    * The work that a role's task declares takes the seconds of ``fleet.compute``.
    * A device that crashes in the turn does so at the point of its work that the trace draws, for any span of the trace: the duration of a session is
      not known beforehand.
    * A device that is absent, or lacks memory or energy for the work, is lost before its role begins. A device that leaves is lost at that moment.
      Absences are looked up until the deadline; without one, for as long as the declared work takes.
    * A message goes up the sender's link and down the receiver's, each with the fleet's latency. Between two servers it takes the backhaul.

    The energy of sessions is not counted.

    Args:
        fleet: the fleet.
        parties: parties of the roles, in their order.
        plans: plan of each role, in the same order.
        until: the time of the deadline, or ``math.inf``.
    """
    roles = [_prospect_of(fleet, parties[i : i + 1], plan, until) for i, plan in enumerate(plans)]
    wired = parties.positions >= len(parties.roster.names)
    up, down = _rates_of_links(fleet, parties, wired)
    names = parties.names

    def carry(source: int, target: int, nbytes: int) -> float:
        if wired[source] and wired[target]:
            return fleet.transfer(names[source], names[target], nbytes)
        size = float(fleet.charge_bytes(nbytes))
        sending = 0.0 if wired[source] else size / up[source] + fleet.latency
        receiving = 0.0 if wired[target] else size / down[target] + fleet.latency
        return float(sending + receiving)

    return Prospects(roles, carry)


def _rates_of_links(
    fleet: Rules, parties: Parties, wired: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes per second from and to each device."""
    population, places, _ = fleet.places(parties)
    traits = {name: fleet.column(name, population, places) for name in fleet.link.traits}
    down, up = fleet.link.rates(traits)
    return np.where(wired, np.inf, up), np.where(wired, np.inf, down)


def _prospect_of(fleet: Rules, party: Parties, plan: Plan, until: float) -> Prospect:
    population, positions, wired = fleet.places(party)
    if wired is not None:
        return Prospect()
    times = fleet.times(party, plan)
    work, moment, there = float(times.train[0]), math.inf, None
    if fleet.availability is not None:
        there = fleet.availability.there(population, positions, plan.now)
        last = np.array([plan.now + work if math.isinf(until) else until])
        moment = float(fleet.availability.leaves(population, positions, plan.now, last)[0])
    crashed, point = crashes(fleet, population, positions, plan)
    share = float(point[0]) if crashed[0] else math.inf
    if any(cannot[0] for _, cannot in unable(fleet, population, positions, plan, times, there)):
        share = 0.0
    return Prospect(work=work, share=share, moment=moment, notice=fleet.notice)


Rule = TypeVar("Rule")
FleetOf = TypeVar("FleetOf", bound=Rules)


def recorded(fleet: FleetOf, population: DrawnPopulation, turns: int, until: float | None) -> FleetOf:
    """See ``Fleet.recorded``."""
    known = {name: _fix_trait(fleet, name, trait, population) for name, trait in fleet.traits.items()}
    kept: dict[str, Any] = {}
    if fleet.battery is not None:
        kept["battery"] = replace(fleet.battery, capacity=known["battery"])
    if fleet.memory is not None:
        kept["memory"] = replace(fleet.memory, size=known["memory"])
    if fleet.availability is not None:
        kept["availability"] = fleet.availability.recorded(population, _choose_horizon(fleet, until))
    return replace(
        fleet,
        compute=_fix_traits_of_rule(fleet.compute, {"speed": fleet.compute.trait}, known),
        link=_fix_traits_of_rule(fleet.link, fleet.link.traits, known),
        trace=fleet.record(turns, population.size),
        **kept,
    )


def _fix_trait(fleet: Rules, name: str, trait: Distribution, population: DrawnPopulation) -> Distribution:
    """The drawn values of a trait; a trait that is equal for all devices stays unchanged."""
    if isinstance(trait, Equal):
        return trait
    return GivenTraits(cast("Sequence[float]", fleet.column(name, population, population.positions)))


def _fix_traits_of_rule(rule: Rule, traits: Mapping[str, Distribution], known: Mapping[str, Distribution]) -> Rule:
    """A rule with known traits, in the fields of their names or in those that contain the same distribution."""
    changes, names = {}, [f.name for f in fields(cast("Any", rule))]
    for name, trait in traits.items():
        places = [name] if name in names else [field for field in names if getattr(rule, field) is trait]
        if not places:
            raise ConfigError(
                f"{type(rule).__name__} cannot be recorded: none of its fields contains its trait {name!r}",
                where="Fleet.recorded",
                remedy=f"keep the trait in a field named {name}",
            )
        changes[places[0]] = known[name]
    return cast("Rule", replace(cast("Any", rule), **changes))


def _choose_horizon(fleet: Rules, until: float | None) -> float:
    if until is None and isinstance(fleet.availability, Windows):  # it is data already
        return math.inf if fleet.availability.until is None else fleet.availability.until
    if until is None or not (until > 0 and math.isfinite(until)):
        raise ConfigError(
            f"until={until}: {type(fleet.availability).__name__} has no end",
            where="Fleet.recorded",
            remedy="give the seconds on the clock up to which to record availability, such as until=86400.0 for a day",
        )
    return float(until)


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
        """The prospects of the roles of a session; see `atoll.devices.fleet`."""
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
        return write_fleet(Path(path), self)

    @staticmethod
    def _with_servers(found: DeviceOutcomes, wired: NDArray[np.bool_], times: Times) -> Outcomes:
        out = found.outcomes()
        energy = None if out.energy is None else np.where(wired, 0.0, out.energy)  # none of it can be credited
        reason = np.where(wired, 0, found.reason).astype(np.int8)
        seconds = np.where(wired, times.wait, out.seconds)
        fraction = np.where(wired, 1.0, out.fraction)
        return Outcomes(seconds, out.done | wired, fraction, energy, reason, out.spending)


@checked_call
def planned(
    examples: float | Sequence[float] | NDArray[np.float64],
    *,
    epochs: float = 1.0,
    batch: int | None = None,
    down: int = 0,
    up: int = 0,
    turn: int = 0,
    now: float = 0.0,
) -> Plan:
    """A request as a fleet sees it, for questions without a run.

    Args:
        examples: number of examples of each device.
        epochs: passes over the examples.
        batch: examples of a mini-batch; the last batch of an epoch may be smaller. ``None`` is one batch an epoch.
        down: bytes to each device.
        up: bytes of the reply, 0 for unknown.
        turn: number of the round.
        now: seconds on the clock.
    """
    rows = np.atleast_1d(np.asarray(examples, dtype=np.float64))
    steps = np.ones(len(rows)) if batch is None else np.ceil(rows / batch)
    work = Workload(rows, steps * epochs, np.full(len(rows), float(epochs)))
    return Plan(f"plan/{turn}", down, up, now, 0, lambda: work, turn)


@checked_call
def require_feasible(
    fleet: Fleet, parties: Parties | int, plan: Plan, deadline: float, *, replies: int = 1
) -> NDArray[np.float64]:
    """Refuse a deadline that too few devices could meet even without failures.

    Args:
        fleet: the devices.
        parties: the parties to ask, or the number of devices.
        plan: the request.
        deadline: seconds after sending.
        replies: number of devices that must be able to meet it.

    Returns:
        The seconds of each device, including those for sending the copies.

    Raises:
            ConfigError: names the fastest device, and when its reply arrives.
    """
    asked = Roster(parties).all() if isinstance(parties, int) else parties
    times = fleet.times(asked, plan)
    seconds = times.wait + times.response
    made = int((seconds <= deadline).sum())
    if made >= replies:
        return seconds
    order = np.argsort(seconds, kind="stable")
    needed = min(replies, len(order))
    fastest = (
        f"the fastest, {asked[int(order[0])].name}, after {seconds[order[0]]:.4g} s" if len(order) else "no device is"
    )
    enough = "" if needed < 2 else f"; {needed} of them after {seconds[order[needed - 1]]:.4g} s"
    raise ConfigError(
        f"deadline={deadline:g} s is met by {made} of {len(asked)} devices, but {replies} must meet it; {fastest}{enough}",
        where="devices",
        remedy="lengthen the deadline, give less work, or ask faster devices",
    )


# ------------------------------------------------------------------ recorded fleets as files
#
# Recorded fleets as files: rules by name with plain settings, as in configurations, and every draw as an array.


FORMAT = "atoll fleet of devices"
VERSION = 1
_REMEDY = "give a file that Fleet.save wrote"
_KNOWN: dict[str, Any] = {
    part.__name__: part
    for part in (Fleet, BatchRate, Cycles, Throughput, Shannon, Backhaul, Power, Battery, DeviceMemory, Equal, GivenTraits, Recorded, Windows)
}  # fmt: skip
"""All types that a file may name: a closed list. Nothing is imported by name."""

Arrays = dict[str, NDArray[Any]]


def write_fleet(path: Path, fleet: Fleet) -> Path:
    """Write a recorded fleet; see ``Fleet.save``."""
    arrays: Arrays = {}
    header = {"format": FORMAT, "version": VERSION, "rules": _serialise(fleet, "fleet", arrays)}
    return write_arrays(path, header | {"digest": digest(header, arrays)}, arrays)


@checked_call
def load_fleet(path: str | Path, wrap: bool = False) -> Fleet:
    """Read a recorded fleet from a file.

    Args:
        path: the file.
        wrap: whether to start again after the last turn of its trace.

    Raises:
        ConfigError: the file is not a fleet, is of a later version, or is damaged.
    """
    place = Path(path)
    header, arrays = read_arrays(place, "fleet", _REMEDY)
    if not isinstance(header, dict) or header.get("format") != FORMAT or not isinstance(header.get("version"), int):
        _refuse_file(place, "the file is not a fleet: it has another header")
    check_version(place, "fleet", header["version"], VERSION)
    if header.get("digest") != digest(header, arrays):
        _refuse_file(place, "the file is damaged: its contents do not match its header")
    try:
        found = _restore(header.get("rules"), "fleet", arrays, {"wrap": wrap, "_where": str(place)})
    except ConfigError as error:
        raise ConfigError(f"the file is not a fleet: {error.what}", where=str(place), remedy=_REMEDY) from error
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise ConfigError(f"the file is not a fleet: {error}", where=str(place), remedy=_REMEDY) from error
    if not isinstance(found, Fleet):
        _refuse_file(place, "the file is not a fleet: it has another header")
    return found


def _refuse_file(path: Path, what: str) -> NoReturn:
    raise ConfigError(what, where=str(path), remedy=_REMEDY)


def _serialise(value: Any, path: str, arrays: Arrays) -> Any:
    """A part as plain data; its arrays are stored separately under their path."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if _KNOWN.get(type(value).__name__) is not type(value):
        raise ConfigError(
            f"a fleet file cannot contain {type(value).__name__}",
            where=f"Fleet.save: {path}",
            remedy="save what fleet.recorded(...) returns, with Atoll's own rules; with rules of your own, save only the trace",
        )
    if isinstance(value, GivenTraits | Windows | Recorded):
        arrays.update({f"{path}.{name}": column for name, column in _columns_of(value).items()})
    settings = [f.name for f in fields(value) if f.init and not f.name.startswith("_") and f.name not in _ASIDE]
    made = {"name": type(value).__name__}
    for name in settings:
        found = getattr(value, name)
        if name == "regions" and not isinstance(found, int | np.integer):
            names = list(dict.fromkeys(str(region) for region in found))
            arrays[f"{path}.regions"] = np.array([names.index(str(region)) for region in found], dtype="<i4")
            made[name] = names  # type: ignore[assignment]
        else:
            made[name] = _serialise(found, f"{path}.{name}", arrays)
    return made


_ASIDE = ("values", "windows", "crashed", "point", "wrap")
"""Settings that are arrays, or that the reader of the file gives."""


def _columns_of(value: GivenTraits | Windows | Recorded) -> Arrays:
    if isinstance(value, GivenTraits):
        return {"values": np.asarray(value.values, dtype="<f8")}
    if isinstance(value, Windows):
        return dict(zip(("who", "begin", "end"), value.columns, strict=True))
    bits, points = pack_crashes(value.crashed, value.point)
    return {"shape": np.array(value.crashed.shape, dtype="<i8"), "crashed": bits, "points": points}


def _restore(said: Any, path: str, arrays: Arrays, trace: dict[str, Any]) -> Any:
    """The inverse of ``_serialise``."""
    if not isinstance(said, dict):
        return said
    settings = {k: _restore(v, f"{path}.{k}", arrays, trace) for k, v in said.items() if k != "name"}
    part = _KNOWN[said["name"]]
    allowed = {f.name for f in fields(part) if f.init and not f.name.startswith("_") and f.name not in _ASIDE}
    if not settings.keys() <= allowed:
        raise ValueError(f"{sorted(settings.keys() - allowed)[0]!r} is not a setting of {said['name']}")

    def column(name: str) -> NDArray[Any]:
        return arrays[f"{path}.{name}"]

    if part is GivenTraits:
        settings["values"] = column("values")
    elif part is Windows:
        settings["windows"] = np.column_stack([column("who"), column("begin"), column("end")])
    elif part is Recorded:
        turns, devices = (int(n) for n in column("shape"))
        crashed, point = unpack_crashes(column("crashed"), column("points"), turns, devices)
        settings |= {"crashed": crashed, "point": point, **trace}
    elif part is Fleet and isinstance(settings["regions"], list):
        settings["regions"] = [settings["regions"][i] for i in column("regions")]
    return part(**settings)
