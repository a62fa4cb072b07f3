"""Devices: their speed, their links, when they are available, what they spend and when they fail.

A `Fleet` is the model of devices of a simulation: ``atoll.simulate(job, islands, devices=fleet)``. Its traits are drawn from distributions, its crashes
come from a `Trace`, and both are pure functions of seeds, so that you can run several methods on the same devices with the same crashes.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
