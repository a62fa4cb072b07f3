"""Every engine that a miniature runs on: those of a simulation, the network's with its sites as processes, and the same over mutual TLS."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from atoll.engines import ENGINES
from atoll.testing.lying.sites import Rehearsal
from tests.support.bridge import Bridge
from tests.support.certificates import authority


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
SLOW = ("network", "processes", "ray", "socket")


def on_every_engine(hardest: tuple[Any, ...], *others: tuple[Any, ...]) -> list[Any]:
    """``(engine, *case)``: all cases in this process and the hardest over TLS; the other engines where slow tests run.

    Who is lost or late is decided before an engine is asked: a case is the same code on each, but for what carries the bytes.
    The network without TLS is the network over TLS with pipes of this machine's between the same processes.
    """

    def marks(engine: str, case: int) -> Any:
        return pytest.mark.slow if engine in SLOW or (engine == "network over TLS" and case > 0) else ()

    return [
        pytest.param(engine, *values, marks=marks(engine, case))
        for engine in sorted(WORLDS)
        for case, values in enumerate((hardest, *others))
    ]


async def soon(work):
    """Its result; on a clock that stands still while workers work, real seconds are a thread's."""
    asked, there = asyncio.ensure_future(work), threading.Event()
    waits = asyncio.get_running_loop().run_in_executor(None, there.wait, 60)
    await asyncio.wait({asked, waits}, return_when=asyncio.FIRST_COMPLETED)
    there.set()
    assert asked.done(), "it hangs"
    return asked.result()
