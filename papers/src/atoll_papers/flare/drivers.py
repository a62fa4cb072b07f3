"""NVIDIA FLARE, Fig. 2: rounds of 18 MB messages between a server and ten clients, over gRPC and over TCP.

Source: "NVIDIA FLARE: Federated Learning from Simulation to Real-World" (2022), section on communication drivers: 100 rounds of FedAvg, messages of about 18 MB, a server and 8 clients on
Azure, 2 clients on AWS; means with 95 % intervals, in a figure whose values cannot be read. The text says that downloads are slower than uploads, since all clients pull at once while their uploads
are staggered. Ours has 20 rounds on one machine, over loopback with mutual TLS: seconds are not the paper's, and the clients on AWS have no counterpart.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import multiprocessing as mp
import tempfile
import time
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.reproduce import Claim, Entry, keeping_nothing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.runtime.transport import Pipe

__all__ = ["ENTRY", "Timings", "timed"]


# ------------------------------------------------------------------ times of rounds over a transport

_GO = b"go"


@dataclass(frozen=True)
class Timings:
    """What was measured.

    Attributes:
        down: seconds until each client had the message, ``(rounds, clients)``.
        up: seconds of each client's message to the server, ``(rounds, clients)``.
        round: seconds of each round.
        whole: whether every message arrived as it was sent.
    """

    down: NDArray[np.float64]
    up: NDArray[np.float64]
    round: NDArray[np.float64]
    whole: bool


def timed(kind: str, *, clients: int, size: int, rounds: int) -> Timings:
    """Send ``size`` bytes to all clients at once, and let them send as many back one after the other, in each round.

    Raises:
        MissingExtraError: a library of the transport is not installed.
    """
    from atoll.runtime.provision import ProjectConfig, provision

    names = [f"site-{k + 1}" for k in range(clients)]
    project = {
        "project": "drivers",
        "servers": [{"name": "server", "hosts": ["127.0.0.1"], "port": 8443}],
        "sites": [{"name": name, "org": name} for name in names],
        "admins": [{"name": "admin", "org": "drivers"}],
    }
    with tempfile.TemporaryDirectory() as folder:
        provision(ProjectConfig.model_validate(project), Path(folder))
        return asyncio.run(_serve(kind, Path(folder), names, size, rounds))


async def _serve(kind: str, kits: Path, names: list[str], size: int, rounds: int) -> Timings:
    from atoll.runtime.transport import transport

    came: asyncio.Queue[Pipe] = asyncio.Queue()
    listener = await transport(kind).listen("127.0.0.1:0", _me(kits / "server"), came.put)
    message = np.random.default_rng(0).bytes(size)
    child = mp.get_context("spawn").Process(
        target=_clients, args=(kind, listener.address, str(kits), names), daemon=True
    )
    child.start()
    try:
        pipes = [await asyncio.wait_for(came.get(), 120) for _ in names]
        one = await _round(pipes, message)  # connections warm up
        measured = [await _round(pipes, message) for _ in range(rounds)]
        for pipe in pipes:
            await pipe.close()
    finally:
        child.join(30)
        if child.is_alive():
            child.terminate()
        await listener.close()
    down, up, whole = (np.array([found[k] for found in measured]) for k in range(3))
    return Timings(down, up, np.array([found[3] for found in measured]), bool(whole.all() and one[2]))


async def _round(pipes: list[Pipe], message: bytes) -> tuple[list[float], list[float], bool, float]:
    """Run one round; return seconds down and up by client, whether all bytes were right, and seconds of the round."""
    wanted, start = hashlib.blake2b(message, digest_size=16).digest(), time.perf_counter()

    async def given(pipe: Pipe) -> tuple[float, bool]:
        await _send(pipe, message)
        digest = bytes(await pipe.recv())
        return time.perf_counter() - start, digest == wanted

    heard = await asyncio.gather(*(given(pipe) for pipe in pipes))
    ups, right = [], [ok for _, ok in heard]
    for pipe in pipes:
        began = time.perf_counter()
        await pipe.send(_GO)
        back = await _receive(pipe)
        ups.append(time.perf_counter() - began)
        right.append(back == message)
    return [seconds for seconds, _ in heard], ups, all(right), time.perf_counter() - start


async def _send(pipe: Pipe, message: bytes) -> None:
    from atoll.runtime.transport import BLOCK

    await pipe.send(len(message).to_bytes(8, "little"))
    view = memoryview(message)
    for at in range(0, len(view), BLOCK):
        await pipe.send(view[at : at + BLOCK])


async def _receive(pipe: Pipe) -> bytes:
    size, found = int.from_bytes(bytes(await pipe.recv()), "little"), bytearray()
    while len(found) < size:
        found += await pipe.recv()
    return bytes(found)


def _me(kit: Path) -> Any:
    from atoll.runtime.provision import Kit

    return Kit.read(kit).credentials()


def _clients(kind: str, address: str, kits: str, names: list[str]) -> None:
    """Run all clients: each receives, confirms, and sends the same back when it is its turn."""
    from atoll.runtime.transport import PipeClosed, transport

    async def client(name: str) -> None:
        pipe = await transport(kind).dial(address, _me(Path(kits) / name))
        with contextlib.suppress(PipeClosed):
            while True:
                message = await _receive(pipe)
                await pipe.send(hashlib.blake2b(message, digest_size=16).digest())
                await pipe.recv()
                await _send(pipe, message)

    async def everyone() -> None:
        await asyncio.gather(*(client(name) for name in names))

    asyncio.run(everyone())


# ------------------------------------------------------------------ the entry

_CLIENTS, _PAPER, _OURS = 10, "", "Between the drivers: the paper gives no values"


@keeping_nothing("flare-drivers")
def _run(quick: bool) -> list[Claim]:
    size, rounds = (1_800_000, 8) if quick else (18_000_000, 20)
    found = {kind: timed(kind, clients=_CLIENTS, size=size, rounds=rounds) for kind in ("grpc", "tcp")}
    claims = [claim for kind, one in found.items() for claim in _judged(kind, one, size, rounds)]
    claims.append(_compared(found["grpc"], found["tcp"]))
    return claims


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % interval, by the normal law."""
    return float(values.mean()), 1.96 * float(values.std(ddof=1)) / sqrt(len(values))


def _shown(values: np.ndarray) -> str:
    mean, half = _interval(values)
    return f"{mean:.3f} ± {half:.3f}"


def _judged(kind: str, found: Timings, size: int, rounds: int) -> list[Claim]:
    down, up = found.down.mean(axis=1), found.up.mean(axis=1)
    gap, half = _interval(down - up)
    where = f"{size / 1e6:g} MB to {_CLIENTS} clients and back, {rounds} rounds, loopback, mutual TLS; seconds a client, mean with 95 % interval"
    return [
        Claim(f"every message arrives as it was sent: {kind}", None, "all" if found.whole else "some differ", found.whole, f"{2 * rounds * _CLIENTS:,} messages; {where}", _PAPER),
        Claim(f"a download takes longer than an upload: {kind}", "longer", f"{_shown(down)} s and {_shown(up)} s", gap > half,
              f"the interval of the difference is above 0; all download at once, and upload one after the other, as after trainings of different lengths; {where}", _PAPER),
    ]  # fmt: skip


def _compared(grpc: Timings, tcp: Timings) -> Claim:
    a, b = grpc.round, tcp.round
    return Claim(
        "a round over TCP takes no longer than over gRPC", f"at most {_shown(a)} s", f"{_shown(b)} s",
        _interval(b)[0] <= _interval(a)[0] + _interval(a)[1], "seconds a round, mean with 95 % interval; our own expectation", _OURS,
    )  # fmt: skip


ENTRY = Entry(
    name="flare-drivers",
    title="NVIDIA FLARE, Fig. 2: rounds of 18 MB with ten clients over gRPC and over TCP",
    source="NVIDIA FLARE: Federated Learning from Simulation to Real-World (2022), Fig. 2",
    run=_run,
)
