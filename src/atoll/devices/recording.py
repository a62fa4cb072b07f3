"""A fleet as data: every draw computed once, and stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from atoll.core.errors import ConfigError

from .distributions import Distribution, Equal
from .rules import Rules
from .traits import GivenTraits
from .windows import Windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .draws import DrawnPopulation

__all__ = ["recorded"]

Rule = TypeVar("Rule")
FleetOf = TypeVar("FleetOf", bound=Rules)


def recorded(fleet: FleetOf, population: DrawnPopulation, turns: int, until: float | None) -> FleetOf:
    """See ``Fleet.recorded``."""
    known = {name: _given(fleet, name, trait, population) for name, trait in fleet.traits.items()}
    kept: dict[str, Any] = {}
    if fleet.battery is not None:
        kept["battery"] = replace(fleet.battery, capacity=known["battery"])
    if fleet.memory is not None:
        kept["memory"] = replace(fleet.memory, size=known["memory"])
    if fleet.availability is not None:
        kept["availability"] = fleet.availability.recorded(population, _horizon(fleet, until))
    return replace(
        fleet,
        compute=_pinned(fleet.compute, {"speed": fleet.compute.trait}, known),
        link=_pinned(fleet.link, fleet.link.traits, known),
        trace=fleet.record(turns, population.size),
        **kept,
    )


def _given(fleet: Rules, name: str, trait: Distribution, population: DrawnPopulation) -> Distribution:
    """The drawn values of a trait; a trait that is equal for all devices stays unchanged."""
    if isinstance(trait, Equal):
        return trait
    return GivenTraits(cast("Sequence[float]", fleet.column(name, population, population.positions)))


def _pinned(rule: Rule, traits: Mapping[str, Distribution], known: Mapping[str, Distribution]) -> Rule:
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


def _horizon(fleet: Rules, until: float | None) -> float:
    if until is None and isinstance(fleet.availability, Windows):  # it is data already
        return math.inf if fleet.availability.until is None else fleet.availability.until
    if until is None or not (until > 0 and math.isfinite(until)):
        raise ConfigError(
            f"until={until}: {type(fleet.availability).__name__} has no end",
            where="Fleet.recorded",
            remedy="give the seconds on the clock up to which to record availability, such as until=86400.0 for a day",
        )
    return float(until)
