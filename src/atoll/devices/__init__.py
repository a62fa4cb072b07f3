"""Devices: their speed, their links, when they are available, what they spend and when they fail.

A `Fleet` is the model of devices of a simulation: ``atoll.simulate(job, islands, devices=fleet)``. Its traits are drawn from distributions, its crashes
come from a `Trace`, and both are pure functions of seeds, so that you can run several methods on the same devices with the same crashes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accounting import COMPAT, CORRECTED, Accounting, RoundAccount
    from .availability import Availability, Diurnal, Markov, Windows
    from .compute import BatchRate, Compute, Cycles
    from .distributions import Distribution, Equal, Exponential, Normal, Uniform
    from .feasible import planned, require_feasible
    from .files.fleets import load_fleet
    from .fleet import Fleet
    from .links import Backhaul, Link, Shannon, Throughput
    from .power import Battery, DeviceMemory, Power
    from .presets import exponential, mec, safa
    from .traces import GeneratedTrace, Recorded, Trace, load_trace
    from .traits import ByRegion, GivenTraits, Trait
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "accounting": ("COMPAT", "CORRECTED", "Accounting", "RoundAccount"),
            "availability": ("Availability", "Diurnal", "Markov", "Windows"),
            "compute": ("BatchRate", "Compute", "Cycles"),
            "distributions": ("Distribution", "Equal", "Exponential", "Normal", "Uniform"),
            "feasible": ("planned", "require_feasible"),
            "fleet": ("Fleet",),
            "files.fleets": ("load_fleet",),
            "links": ("Backhaul", "Link", "Shannon", "Throughput"),
            "power": ("Battery", "DeviceMemory", "Power"),
            "presets": ("exponential", "mec", "safa"),
            "traces": ("GeneratedTrace", "Recorded", "Trace", "load_trace"),
            "traits": ("ByRegion", "GivenTraits", "Trait"),
        },
    )

__all__ = [
    "COMPAT",
    "CORRECTED",
    "Accounting",
    "Availability",
    "Backhaul",
    "BatchRate",
    "Battery",
    "ByRegion",
    "Compute",
    "Cycles",
    "DeviceMemory",
    "Distribution",
    "Diurnal",
    "Equal",
    "Exponential",
    "Fleet",
    "GeneratedTrace",
    "GivenTraits",
    "Link",
    "Markov",
    "Normal",
    "Power",
    "Recorded",
    "RoundAccount",
    "Shannon",
    "Throughput",
    "Trace",
    "Trait",
    "Uniform",
    "Windows",
    "exponential",
    "load_fleet",
    "load_trace",
    "mec",
    "planned",
    "require_feasible",
    "safa",
]
