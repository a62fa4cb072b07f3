"""Devices: their speed, their links, when they are available, what they spend and when they fail.

A `Fleet` is the model of devices of a simulation: ``atoll.simulate(job, islands, devices=fleet)``. Its traits are drawn from distributions, its crashes
come from a `Trace`, and both are pure functions of seeds, so that you can run several methods on the same devices with the same crashes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accounting import COMPAT, CORRECTED, Accounting, RoundAccount
    from .availability import Availability, Diurnal, Markov, Windows
    from .distributions import Distribution, Equal, Exponential, Normal, Uniform
    from .fleet import Fleet, planned, require_feasible
    from .fleet_file import load_fleet
    from .presets import exponential, mec, safa
    from .rules import Backhaul, BatchRate, Battery, Compute, Cycles, DeviceMemory, Link, Power, Shannon, Throughput
    from .traces import GeneratedTrace, Recorded, Trace, load_trace
    from .traits import ByRegion, GivenTraits, Trait
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "accounting": ("COMPAT", "CORRECTED", "Accounting", "RoundAccount"),
            "availability": ("Availability", "Diurnal", "Markov", "Windows"),
            "rules": (
                "BatchRate",
                "Compute",
                "Cycles",
                "Backhaul",
                "Link",
                "Shannon",
                "Throughput",
                "Battery",
                "DeviceMemory",
                "Power",
            ),
            "distributions": ("Distribution", "Equal", "Exponential", "Normal", "Uniform"),
            "fleet": ("planned", "require_feasible", "Fleet"),
            "fleet_file": ("load_fleet",),
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
