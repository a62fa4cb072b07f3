"""Tasks that wait for the test: a party is slow because a pipe that it reads has not been written to."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.requests.task import task


@task
def counted(island, message):
    """Counts its runs; a party whose gate is closed waits before it answers."""
    runs = (island.state or 0) + 1
    wait_at(message.get("gate"), island.name)
    island.state = runs
    return {"runs": Sum(float(runs)), "who": Mean(np.array([island.data]), examples=1.0)}


@task
def asked(island, message):
    runs = (island.state or 0) + 1
    wait_at(message.get("gate"), island.name)
    island.state = runs
    return runs


@task
async def talks(island, peers):
    await peers.send("b", {"x": 1.0})
    return await peers.recv("b")


@task
async def wait_in(island, peers, gate):
    """A role that hangs in the middle of its thread."""
    await peers.recv("a")
    wait_at(gate, island.name)


def wait_at(gate, name):
    if gate and (Path(gate) / name).exists():
        with (Path(gate) / name).open("rb", buffering=0) as pipe:
            pipe.read(1)


class Gate:
    """Holds parties up until they are let through."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.path = str(folder)
        folder.mkdir(exist_ok=True)
        self._open = []
        for name in names:
            os.mkfifo(folder / name)

    def open(self, name: str) -> None:
        """Let a party through, now and later."""
        handle = os.open(Path(self.path) / name, os.O_RDWR)  # does not wait for a reader
        os.write(handle, b"." * 1000)
        self._open.append(handle)

    def __del__(self) -> None:
        for handle in self._open:
            os.close(handle)
