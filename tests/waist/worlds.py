"""Every engine that a miniature runs on: those of a simulation, the network's with its sites as processes, and the same over mutual TLS."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from bridge import Bridge
from certificates import authority

from atoll.engines import ENGINES
from atoll.runtime.network.rehearsal import Rehearsal


@cache
def bridge() -> Bridge:
    """The two processes that the connections go between, for all tests of this process."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-"))
    made = Bridge(folder, "grpc", authority())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(made.close)
    return made


def over_tls(workers: int | None = None) -> Rehearsal:
    return bridge().engine(sites=workers or 3)


WORLDS = {**ENGINES, "network": Rehearsal, "network over TLS": over_tls}
