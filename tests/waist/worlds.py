"""Every engine that a miniature runs on: those of a simulation, and the network's with its sites as processes."""

from __future__ import annotations

from atoll.engines import ENGINES
from atoll.runtime.network.rehearsal import Rehearsal

WORLDS = {**ENGINES, "network": Rehearsal}
